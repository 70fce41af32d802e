"""Starting processes and carrying their output away.

`bwrap --die-with-parent` asks the kernel to kill the box when the *thread* that started it ends. So every box is
started from one thread that lives as long as this process.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path

from proctor.box.tree import process_name
from proctor.errors import InfrastructureError

_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")
_SPAWNED: set[str] = set()
CHUNK = 1 << 16
DRAIN_S = 1.0
"""How long output is still taken after the end of a box."""


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
    fds: Sequence[int] = (),
    cwd: str | None = None,
    new_session: bool = True,
) -> subprocess.Popen[bytes]:
    """`subprocess.Popen`, from the long-lived thread."""

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(fds),
            cwd=cwd,
            start_new_session=new_session,
        )
        note_spawned(process.pid)
        return process

    return _SPAWNER.submit(start).result()


def note_spawned(pid: int) -> None:
    """Remember a child as one that was started here."""
    _SPAWNED.add(process_name(pid))


def was_spawned(pid: int) -> bool:
    """Whether a child was started here, and is not the orphan of some command."""
    return process_name(pid) in _SPAWNED


class OutputPump:
    """Copies a process's output to files by bytes, each up to a cap; what is over is counted and dropped.

    Reading goes on past the cap, so that a flood never blocks or kills the writer. No decoding, no lines: NUL, broken
    UTF-8, carriage returns and lines of any length are bytes like others.

    Args:
        sinks: File by descriptor to read from; the descriptors are closed by the pump, also if it cannot be made.
        cap_bytes: Bytes that each file takes.

    Raises:
        InfrastructureError: A file cannot be opened.
    """

    def __init__(self, sinks: Mapping[int, Path], cap_bytes: int) -> None:
        self._cap = cap_bytes
        self.written = dict.fromkeys(sinks.values(), 0)
        self.dropped = dict.fromkeys(sinks.values(), 0)
        self._files: dict[int, tuple[Path, FileIO]] = {}
        self._selector = selectors.DefaultSelector()
        self._stop_r, self._stop_w = os.pipe()
        self._stopped = False
        try:
            for fd, path in sinks.items():
                os.set_blocking(fd, False)
                self._files[fd] = (path, path.open("ab", buffering=0))
                self._selector.register(fd, selectors.EVENT_READ)
        except OSError as error:
            for fd in sinks:
                self._close(fd) if fd in self._files else os.close(fd)
            self._end()
            raise InfrastructureError(f"output cannot be kept: {error}") from error
        self._selector.register(self._stop_r, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        until: float | None = None
        while self._files:
            # After stop(), take what is there and no more: a process may hold the pipe open, and write, for ever.
            ready = self._selector.select(None if until is None else 0)
            if until is not None and (not ready or time.monotonic() > until):
                break
            for key, _ in ready:
                if key.fd == self._stop_r:
                    until = time.monotonic() + DRAIN_S
                    self._selector.unregister(self._stop_r)
                elif not self._copy(key.fd):
                    self._selector.unregister(key.fd)
                    self._close(key.fd)
        for fd in list(self._files):
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._files.pop(fd)[1].close()
        os.close(fd)

    def _copy(self, fd: int) -> bool:
        """Move what is ready; False at the end of the stream."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        path, stream = self._files[fd]
        room = max(0, self._cap - self.written[path])
        try:
            kept = stream.write(data[:room]) if room else 0
        except OSError:  # the disk is full: what comes now is lost, the run is not
            kept = 0
        self.written[path] += kept
        self.dropped[path] += len(data) - kept
        return bool(data)

    def stop(self) -> None:
        """Take what is left in the pipes and end, even if some process still holds them open."""
        if self._stopped:
            return
        self._stopped = True
        os.write(self._stop_w, b"x")
        self._thread.join()
        self._end()
        for path, lost in self.dropped.items():
            if lost:
                with suppress(OSError), path.open("ab") as stream:
                    stream.write(f"\n[proctor: {lost} more bytes were dropped here]\n".encode())

    def _end(self) -> None:
        self._selector.close()
        os.close(self._stop_r)
        os.close(self._stop_w)


def sealed_file(name: str, data: bytes) -> int:
    """A descriptor from which `data` can be read to its end, and to which nobody can write."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    except BaseException:
        os.close(fd)
        raise
    return fd
