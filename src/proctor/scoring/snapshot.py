"""Freezing a submission: what of the workspace is scored, copied while nothing in the box can change it.

The agent chooses every name and every byte here. So nothing is followed (links), nothing special is opened (devices,
FIFOs, sockets), files that are the same inode as an input are refused, and sizes are bounded before they are copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from proctor.errors import InfrastructureError, InvalidSubmission
from proctor.jsonio import write_json
from proctor.spec import MIB
from proctor.tasks.base import ArtefactRule

MAX_FILES = 20_000
CHUNK = 1 << 22
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
    links: int


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

    def take(self, target: str | None = None, *, now: float | None = None) -> Snapshot:
        """Copy the submission. The caller has frozen the agent.

        Args:
            target: What to score, relative to /workspace; the newest match of the rule's targets by default.
            now: For silent snapshots: the present time (`time.time`); files that have just been written are passed
                over if an older one matches.

        Raises:
            InvalidSubmission: There is nothing to score, or it may not be copied.
        """
        left_out: list[str] = []
        entries = {entry.path: entry for entry in self._scan(left_out)}
        chosen = self._choose(entries, target, now)
        wanted = [
            e
            for e in entries.values()
            if _belongs(e.path, chosen)
            or (matches(e.path, self._rule.include) and not matches(e.path, self._rule.exclude))
        ]
        kept = []
        for entry in wanted:
            if entry.size > self._rule.max_file_bytes and not _belongs(entry.path, chosen):
                left_out.append(f"{entry.path} ({entry.size // MIB} MiB, over {self._rule.max_file_bytes // MIB} MiB)")
            else:
                kept.append(entry)
        total = sum(entry.size for entry in kept)
        if total > self._rule.max_total_bytes:
            raise InvalidSubmission(
                f"the submission is {total // MIB} MiB; at most {self._rule.max_total_bytes // MIB} MiB are accepted"
            )
        return self._copy(kept, chosen, tuple(left_out[:20]))

    def drop_all_but(self, names: set[str]) -> int:
        """Delete every kept snapshot whose name is not listed; how many went."""
        gone = [folder for folder in self._store.iterdir() if folder.name not in names]
        for folder in gone:
            shutil.rmtree(folder, ignore_errors=True)
        return len(gone)

    def _choose(self, entries: dict[str, _Entry], target: str | None, now: float | None) -> str:
        if target is not None:
            return self._named(entries, target)
        found = [e for e in entries.values() if matches(e.path, self._rule.targets)]
        if not found:
            raise InvalidSubmission(
                self._rule.missing or f"there is nothing to score yet: no {' or '.join(self._rule.targets)}"
            )
        settled = [e for e in found if now is None or now - e.mtime >= SETTLED_S]
        return max(settled or found, key=lambda e: (e.mtime, e.path)).path

    def _named(self, entries: dict[str, _Entry], target: str) -> str:
        plain = PurePosixPath(target)
        if plain.is_absolute():
            try:
                plain = plain.relative_to("/workspace")
            except ValueError:
                raise InvalidSubmission(f"{target} is not inside /workspace") from None
        if ".." in plain.parts:
            raise InvalidSubmission(f"{target}: a path with .. is not accepted")
        path = plain.as_posix()
        if path not in entries:
            raise InvalidSubmission(f"there is no regular file {path} in /workspace")
        if not matches(path, self._rule.targets):
            raise InvalidSubmission(f"{path} is not something to score; expected {' or '.join(self._rule.targets)}")
        return path

    def _scan(self, left_out: list[str]) -> Iterator[_Entry]:
        """Every regular file of the workspace that could matter; what is refused goes to `left_out`."""
        count = 0
        todo = [""]
        while todo:
            folder = todo.pop()
            try:
                listing = sorted(os.scandir(self._workspace / folder), key=lambda e: e.name)
            except OSError:
                continue
            for item in listing:
                path = f"{folder}{item.name}"
                try:
                    path.encode()
                except UnicodeEncodeError:
                    left_out.append(f"{path!r} (its name is not UTF-8)")
                    continue
                info = item.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    if not matches(f"{path}/x", self._rule.exclude) or self._may_hold_target(path):
                        todo.append(f"{path}/")
                    continue
                if matches(path, self._rule.exclude) and not matches(path, self._rule.targets):
                    continue
                refused = self._refusal(path, info)
                if refused:
                    left_out.append(f"{path} ({refused})")
                    continue
                count += 1
                if count > MAX_FILES:
                    raise InvalidSubmission(f"the workspace holds more than {MAX_FILES} files; remove some")
                yield _Entry(path, info.st_size, info.st_mtime, (info.st_dev, info.st_ino), info.st_nlink)

    def _may_hold_target(self, folder: str) -> bool:
        return any(glob.startswith((f"{folder}/", "**")) for glob in self._rule.targets)

    def _refusal(self, path: str, info: os.stat_result) -> str | None:
        """Why a file is not copied; for something that would be the target this ends the scoring."""
        reason = None
        if stat.S_ISLNK(info.st_mode):
            reason = "a symbolic link; copy the file itself"
        elif not stat.S_ISREG(info.st_mode):
            reason = "a device, FIFO or socket"
        elif (info.st_dev, info.st_ino) in self._inputs:
            reason = "a hard link to an input"
        if reason and matches(path, self._rule.targets):
            raise InvalidSubmission(f"{path} cannot be scored: it is {reason}")
        return reason

    def _copy(self, entries: list[_Entry], target: str, left_out: tuple[str, ...]) -> Snapshot:
        fresh = self._store / f".new-{os.getpid()}-{os.urandom(4).hex()}"
        files = fresh / "files"
        digest = hashlib.sha256()
        try:
            files.mkdir(parents=True)
            for entry in sorted(entries, key=lambda e: e.path):
                place = files / entry.path
                place.parent.mkdir(parents=True, exist_ok=True)
                content = self._copy_file(entry, place)
                digest.update(f"{len(entry.path.encode())}:{entry.path}:{content}\n".encode())
            digest.update(f"target:{target}\n".encode())
            sha256 = digest.hexdigest()
            about = {"target": target, "sha256": sha256, "files": len(entries), "left_out": left_out}
            write_json(fresh / "snapshot.json", about)
            final = self._store / sha256[:16]
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
        return Snapshot(final, target, sha256, left_out)

    def _copy_file(self, entry: _Entry, place: Path) -> str:
        """Copy one file, opened without following links and checked again once open; its sha256."""
        digest = hashlib.sha256()
        fd = os.open(self._workspace / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", buffering=0) as source, place.open("xb", buffering=0) as sink:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or (info.st_dev, info.st_ino) != entry.inode:
                raise InvalidSubmission(f"{entry.path} changed while it was being copied")
            left = entry.size
            while left and (data := source.read(min(CHUNK, left))):
                digest.update(data)
                sink.write(data)
                left -= len(data)
            os.fchmod(sink.fileno(), 0o444)
        return digest.hexdigest()


def load_snapshot(folder: Path) -> Snapshot:
    """A kept snapshot, checked against its recorded hash.

    Raises:
        InvalidSubmission: It is not whole any more.
    """
    try:
        meta = json.loads((folder / "snapshot.json").read_text())
        digest = hashlib.sha256()
        files = folder / "files"
        paths = sorted(p.relative_to(files).as_posix() for p in files.rglob("*") if p.is_file())
        for path in paths:
            with (files / path).open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{len(path.encode())}:{path}:{content}\n".encode())
        digest.update(f"target:{meta['target']}\n".encode())
    except (OSError, ValueError, KeyError) as error:
        raise InvalidSubmission(f"the kept artefact {folder} cannot be read: {error}") from error
    if digest.hexdigest() != meta["sha256"]:
        raise InvalidSubmission(f"the kept artefact {folder} was changed since it was scored")
    return Snapshot(folder, str(meta["target"]), str(meta["sha256"]))


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
