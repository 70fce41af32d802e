"""Locks that hold across all users and processes of a machine, and that die with their holder.

A lock is an `flock` on a file in a folder that everyone may write to. Such a folder invites tricks with links, so
nothing in it is followed, created over, or trusted for more than a message.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from proctor.errors import InfrastructureError

DEFAULT_FOLDER = "/tmp/proctor-locks"
TRIES = 20
"""Another process may be between creating a file and opening it up, or may just have deleted it."""


def lock_folder() -> Path:
    """$PROCTOR_LOCKS, or /tmp/proctor-locks. Containers that share GPUs must share it too."""
    return Path(os.environ.get("PROCTOR_LOCKS") or DEFAULT_FOLDER).absolute()


@dataclass(frozen=True)
class Holder:
    """What the holder of a lock said about itself; good for a message only, since anyone may write it."""

    pid: int | None
    run_id: str | None

    def __str__(self) -> str:
        return f"run {self.run_id or 'unknown'} (process {self.pid or 'unknown'})"


class MachineLock:
    """A lock that is held until `release`, or until the process is gone."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        os.ftruncate(fd, 0)
        # Unlocked by name of the act, not by closing alone: a forked child may hold a copy of the descriptor.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def try_lock(name: str, run_id: str) -> MachineLock | None:
    """Take the lock `name` and note who holds it; None if another has it.

    Raises:
        InfrastructureError: The folder or the file is not safe to use.
    """
    folder = _open_folder(lock_folder())
    try:
        for _ in range(TRIES):
            fd = _open_file(folder, name)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            # Cleaners of /tmp delete old files: a lock on a file that has lost its name locks nothing.
            if _same_file(folder, name, fd):
                _note(fd, run_id)
                return MachineLock(fd)
            os.close(fd)
    finally:
        os.close(folder)
    raise InfrastructureError(f"the lock file {lock_folder() / name}.lock keeps being deleted", "find out by whom")


def holder_of(name: str) -> Holder:
    """Who says that they hold the lock `name`."""
    folder = _open_folder(lock_folder())
    try:
        fd = os.open(_file_name(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return Holder(None, None)
    finally:
        os.close(folder)
    with os.fdopen(fd, "rb") as stream:
        raw = stream.read(4096)
    try:
        said = json.loads(raw)
    except ValueError:
        return Holder(None, None)
    if not isinstance(said, dict):
        return Holder(None, None)
    pid, run_id = said.get("pid"), said.get("run_id")
    # Anyone may have written this: it must not be able to play with a terminal.
    clean = "".join(c for c in run_id if c.isprintable())[:100] if isinstance(run_id, str) else None
    return Holder(pid if isinstance(pid, int) else None, clean)


def _file_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
        raise ValueError(f"not the name of a lock: {name!r}")
    return f"{name}.lock"


def _note(fd: int, run_id: str) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps({"pid": os.getpid(), "run_id": run_id}).encode(), 0)


def _open_folder(path: Path) -> int:
    """A descriptor of the lock folder, made if need be; refused if it is a link, or open for others to rename in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = _make(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        why = "it is a link or not a folder" if error.errno in (errno.ELOOP, errno.ENOTDIR) else error.strerror
        raise InfrastructureError(f"the lock folder {path} cannot be used: {why}", _WAY_OUT) from error
    if made:
        os.fchmod(fd, 0o1777)
    mode = os.fstat(fd).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        os.close(fd)
        raise InfrastructureError(
            f"in the lock folder {path} anyone may delete another's locks (mode {stat.S_IMODE(mode):o})",
            f"chmod 1777 {path}",
        )
    return fd


def _make(path: Path) -> bool:
    try:
        os.mkdir(path, 0o777)
    except FileExistsError:
        return False
    return True


def _open_file(folder: int, name: str) -> int:
    """A descriptor of the lock file, created if need be, never through a link.

    An existing file is opened without O_CREAT: in a sticky folder the kernel may refuse that for another's file
    (fs.protected_regular).
    """
    file_name = _file_name(name)
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    last: OSError | None = None
    for _ in range(TRIES):
        try:
            fd = os.open(file_name, flags, dir_fd=folder)
        except FileNotFoundError:
            try:
                fd = os.open(file_name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
            except FileExistsError:
                continue
            os.fchmod(fd, 0o666)
        except PermissionError as error:
            last = error
            time.sleep(0.01)  # its maker may be about to open it up
            continue
        except OSError as error:
            last = error
            break
        facts = os.fstat(fd)
        if stat.S_ISREG(facts.st_mode) and facts.st_nlink <= 1:
            return fd
        os.close(fd)
        last = None
        break
    why = last.strerror if last is not None else "it is not a plain file of its own"
    raise InfrastructureError(f"the lock file {lock_folder() / file_name} cannot be used: {why}", _WAY_OUT) from last


def _same_file(folder: int, name: str, fd: int) -> bool:
    try:
        there = os.stat(_file_name(name), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


_WAY_OUT = "have its owner remove it, or set PROCTOR_LOCKS to another folder, the same for every user of this machine"
