"""Freezing a submission: what of the workspace is scored, copied while nothing in the box can change it.

The agent chooses every name and every byte here. So nothing is followed (links), nothing special is opened (devices,
FIFOs, sockets), files that are the same inode as an input are refused, and sizes are bounded before they are copied.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath

from proctor.errors import InfrastructureError, InvalidSubmission
from proctor.jsonio import write_json
from proctor.spec import MIB
from proctor.tasks.base import ArtefactRule

MAX_FILES = 20_000
MAX_SEEN = 200_000
"""Names looked at in one workspace, folders and left-out files too: the agent is frozen meanwhile."""
MAX_DEPTH = 64
MAX_PATH_BYTES = 1000
"""Our copies lie deeper than the originals, and the system's own limit is 4096."""
CHUNK = 1 << 22
NAME_LENGTH = 32
MAX_LEFT_OUT = 20
SETTLED_S = 1.0
"""A checkpoint younger than this may still be being written; silent snapshots prefer an older one."""


@dataclass(frozen=True)
class Snapshot:
    """A frozen submission.

    Attributes:
        folder: Host folder with the copied files under `files/`.
        target: What of it is scored, relative to `files/`.
        sha256: Hash over every path and content.
        left_out: What of the workspace was not copied, and why (shown to the agent).
    """

    folder: Path
    target: str
    sha256: str
    left_out: tuple[str, ...] = ()

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(frozen=True)
class _Entry:
    path: str
    size: int
    mtime: float
    inode: tuple[int, int]


@dataclass
class _Found:
    """What a look at the workspace came to.

    Attributes:
        entries: Regular files that could matter, by path.
        refused: Would-be targets that are no regular files of the agent's own, and why.
        left_out: What was passed over, in words.
    """

    entries: dict[str, _Entry] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


class _UnreadableError(Exception):
    """A file of the workspace cannot be read; the message says why."""


@lru_cache(maxsize=256)
def _pattern(glob: str) -> re.Pattern[str]:
    """A glob of an `ArtefactRule` as a regular expression: `**/` is any depth, `*` stays within a name."""
    out = ""
    i = 0
    while i < len(glob):
        if glob.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
        elif glob.startswith("**", i):
            out, i = out + ".*", i + 2
        elif glob[i] == "*":
            out, i = out + "[^/]*", i + 1
        else:
            out, i = out + re.escape(glob[i]), i + 1
    return re.compile(out, re.DOTALL)


def matches(path: str, globs: Iterable[str]) -> bool:
    """Whether a relative POSIX path matches one of the globs."""
    return any(_pattern(glob).fullmatch(path) for glob in globs)


class Snapshots:
    """Takes and keeps the snapshots of one run.

    Args:
        workspace: Host path of the agent's workspace.
        store: Host folder for snapshots (the run folder's `snapshots/`).
        rule: The task's rule.
        inputs: Files that a submission must not be a hard link to, as (device, inode).
    """

    def __init__(self, workspace: Path, store: Path, rule: ArtefactRule, inputs: frozenset[tuple[int, int]]) -> None:
        self._workspace = workspace
        self._store = store
        self._rule = rule
        self._inputs = inputs
        store.mkdir(exist_ok=True)

    def take(
        self, target: str | None = None, *, now: float | None = None, without: frozenset[str] = frozenset()
    ) -> Snapshot:
        """Copy the submission. The caller has frozen the agent.

        Args:
            target: What to score, relative to /workspace; the newest match of the rule's targets by default.
            now: For silent snapshots: the present time (`time.time`); files that have just been written are passed
                over if an older one matches.
            without: Targets not to choose.

        Raises:
            InvalidSubmission: There is nothing to score, or it may not be copied.
            InfrastructureError: It could not be written down here.
        """
        found = self._scan()
        chosen = self._named(found, target) if target is not None else self._newest(found, now, without)
        wanted = [
            e
            for e in found.entries.values()
            if _belongs(e.path, chosen)
            or (matches(e.path, self._rule.include) and not matches(e.path, self._rule.exclude))
        ]
        kept = []
        for entry in wanted:
            if entry.size > self._rule.max_file_bytes and not _belongs(entry.path, chosen):
                size = f"{entry.size // MIB} MiB, over {self._rule.max_file_bytes // MIB} MiB"
                found.left_out.append(f"{shown(entry.path)} ({size})")
            else:
                kept.append(entry)
        if len(kept) > MAX_FILES:
            raise InvalidSubmission(f"the workspace holds more than {MAX_FILES} files; remove some")
        total = sum(entry.size for entry in kept)
        if total > self._rule.max_total_bytes:
            raise InvalidSubmission(
                f"the submission is {total // MIB} MiB; at most {self._rule.max_total_bytes // MIB} MiB are accepted"
            )
        return self._copy(kept, chosen, found.left_out)

    def drop_all_but(self, names: set[str]) -> int:
        """Delete every kept snapshot whose name is not listed; how many went."""
        try:
            gone = [folder for folder in self._store.iterdir() if folder.name not in names]
        except OSError:
            return 0
        for folder in gone:
            shutil.rmtree(folder, ignore_errors=True)
        return len(gone)

    def _newest(self, found: _Found, now: float | None, without: frozenset[str]) -> str:
        """The newest target; links and special files are passed over as long as there is a real one."""
        targets = [e for e in found.entries.values() if matches(e.path, self._rule.targets) and e.path not in without]
        if not targets:
            for path, reason in found.refused.items():
                raise InvalidSubmission(f"{shown(path)} cannot be scored: it is {reason}")
            text = self._rule.missing or f"there is nothing to score yet: no {' or '.join(self._rule.targets)}"
            passed_over = "; ".join(found.left_out[:3])
            raise InvalidSubmission(text + (f" (passed over: {passed_over})" if passed_over else ""))
        settled = [e for e in targets if now is None or now - e.mtime >= SETTLED_S]
        return max(settled or targets, key=lambda e: (e.mtime, e.path)).path

    def _named(self, found: _Found, target: str) -> str:
        plain = PurePosixPath(target)
        if plain.is_absolute():
            try:
                plain = plain.relative_to("/workspace")
            except ValueError:
                raise InvalidSubmission(f"{shown(target)} is not inside /workspace") from None
        if ".." in plain.parts:
            raise InvalidSubmission(f"{shown(target)}: a path with .. is not accepted")
        path = plain.as_posix()
        if path in found.refused:
            raise InvalidSubmission(f"{shown(path)} cannot be scored: it is {found.refused[path]}")
        if path not in found.entries:
            raise InvalidSubmission(f"there is no regular file {shown(path)} in /workspace")
        if not matches(path, self._rule.targets):
            expected = " or ".join(self._rule.targets)
            raise InvalidSubmission(f"{shown(path)} is not something to score; expected {expected}")
        return path

    def _scan(self) -> _Found:
        """Every regular file of the workspace that could matter."""
        found = _Found()
        seen = 0
        todo = [""]
        while todo:
            folder = todo.pop()
            try:
                with os.scandir(self._workspace / folder) as listing:
                    for item in listing:
                        seen += 1
                        if seen > MAX_SEEN:
                            raise InvalidSubmission(f"the workspace holds more than {MAX_SEEN} names; remove some")
                        if self._look_at(f"{folder}{item.name}", item, found):
                            todo.append(f"{folder}{item.name}/")
            except OSError as error:
                found.left_out.append(f"{shown(folder)} (it cannot be read: {error.strerror})")
        return found

    def _look_at(self, path: str, item: os.DirEntry[str], found: _Found) -> bool:
        """Sort one name of the workspace into `found`; True for a folder that is to be looked into."""
        info = item.stat(follow_symlinks=False)
        folder = stat.S_ISDIR(info.st_mode)
        if folder and matches(f"{path}/x", self._rule.exclude) and not self._may_hold_target(path):
            return False
        if not folder and matches(path, self._rule.exclude) and not matches(path, self._rule.targets):
            return False
        awkward = _awkward(path)
        if awkward:
            found.left_out.append(f"{shown(path)} ({awkward})")
        elif folder:
            return True
        elif reason := self._refusal(info):
            found.left_out.append(f"{shown(path)} ({reason})")
            if matches(path, self._rule.targets):
                found.refused[path] = reason
        else:
            found.entries[path] = _Entry(path, info.st_size, info.st_mtime, (info.st_dev, info.st_ino))
        return False

    def _may_hold_target(self, folder: str) -> bool:
        return any(glob.startswith((f"{folder}/", "**")) for glob in self._rule.targets)

    def _refusal(self, info: os.stat_result) -> str | None:
        """Why something that is not a folder is not copied."""
        if stat.S_ISLNK(info.st_mode):
            return "a symbolic link; copy the file itself"
        if not stat.S_ISREG(info.st_mode):
            return "a device, FIFO or socket"
        if (info.st_dev, info.st_ino) in self._inputs:
            return "a hard link to an input"
        return None

    def _copy(self, entries: list[_Entry], target: str, left_out: list[str]) -> Snapshot:
        fresh = self._store / f".new-{os.getpid()}-{os.urandom(4).hex()}"
        files = fresh / "files"
        try:
            files.mkdir(parents=True)
            contents = self._copy_files(entries, target, files, left_out)
            sha256 = _digest(contents, target)
            about = {"target": target, "sha256": sha256, "files": len(contents), "left_out": left_out[:MAX_LEFT_OUT]}
            write_json(fresh / "snapshot.json", about, sync=False)  # the agent is frozen; a torn copy would be noticed
            final = self._store / sha256[:NAME_LENGTH]
            if final.exists():
                shutil.rmtree(fresh)
            else:
                fresh.rename(final)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            where = f"{error.strerror} ({error.filename})"
            raise InfrastructureError(f"the submission could not be copied: {where}", "is the disk full?") from error
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return Snapshot(final, target, sha256, tuple(left_out[:MAX_LEFT_OUT]))

    def _copy_files(self, entries: list[_Entry], target: str, files: Path, left_out: list[str]) -> dict[str, str]:
        """Copy what is to be scored; the sha256 of every file that was copied. What cannot be read is left out."""
        contents: dict[str, str] = {}
        for entry in entries:
            place = files / entry.path
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                contents[entry.path] = self._copy_file(entry, place)
            except _UnreadableError as error:
                if _belongs(entry.path, target):
                    raise InvalidSubmission(f"{shown(entry.path)} cannot be scored: {error}") from None
                place.unlink(missing_ok=True)
                left_out.append(f"{shown(entry.path)} ({error})")
        return contents

    def _copy_file(self, entry: _Entry, place: Path) -> str:
        """Copy one file, opened without following links and checked again once open; its sha256."""
        digest = hashlib.sha256()
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(self._workspace / entry.path, flags)
        except OSError as error:
            raise _UnreadableError(f"it cannot be read: {error.strerror}") from None
        with os.fdopen(fd, "rb", buffering=0) as source, place.open("xb", buffering=0) as sink:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or (info.st_dev, info.st_ino) != entry.inode:
                raise _UnreadableError("it changed while it was being copied")
            left = entry.size
            while left and (data := source.read(min(CHUNK, left))):
                digest.update(data)
                _write_all(sink, data)
                left -= len(data)
            os.fchmod(sink.fileno(), 0o444)
        return digest.hexdigest()


def load_snapshot(folder: Path) -> Snapshot:
    """A kept snapshot, checked against its recorded hash.

    Raises:
        InvalidSubmission: It is not whole any more.
    """
    try:
        meta = json.loads((folder / "snapshot.json").read_text(encoding="utf-8"))
        target, sha256 = str(meta["target"]), str(meta["sha256"])
        files = folder / "files"
        contents = {}
        for path in files.rglob("*"):
            if path.is_file():
                with path.open("rb") as stream:
                    contents[path.relative_to(files).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidSubmission(f"the kept artefact {folder} cannot be read: {error}") from error
    if _digest(contents, target) != sha256:
        raise InvalidSubmission(f"the kept artefact {folder} was changed since it was scored")
    return Snapshot(folder, target, sha256)


def shown(path: str) -> str:
    """A name that an agent chose, fit for a message: control characters and endless names do not get through."""
    plain = path if path.isprintable() else repr(path)
    return plain if len(plain) <= 200 else f"{plain[:150]}...{plain[-47:]}"


def _awkward(path: str) -> str | None:
    """Why a name cannot be copied, whatever it names."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if size > MAX_PATH_BYTES or path.count("/") > MAX_DEPTH:
        return "it lies too deep"
    return None


def _digest(contents: dict[str, str], target: str) -> str:
    """Hash over every path and content (themselves hashes), and the name of the target."""
    digest = hashlib.sha256()
    for path in sorted(contents):
        digest.update(f"{len(path.encode())}:{path}:{contents[path]}\n".encode())
    digest.update(f"target:{target}\n".encode())
    return digest.hexdigest()


def _write_all(sink: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:  # an unbuffered write may take a part, on a nearly full disk for one
        view = view[sink.write(view) or 0 :]


def _belongs(path: str, target: str) -> bool:
    return path == target or path.startswith(f"{target}/")


def inodes_under(*folders: Path) -> frozenset[tuple[int, int]]:
    """(device, inode) of every file under the folders."""
    found = set()
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                info = os.lstat(os.path.join(root, name))
                found.add((info.st_dev, info.st_ino))
    return frozenset(found)
