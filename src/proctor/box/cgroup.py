"""cgroup v2 groups for boxes: freeze, kill, and where the host delegates them, memory and process limits.

Groups are named `proctor-<pid of the worker>-<n>` and lie under one base: the worker's own group, or the root of the
hierarchy. Only groups with such a name are ever touched; those of dead workers are swept at the next start.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from proctor.spec import Limits

PREFIX = "proctor-"
REMOVE_TIMEOUT_S = 2.0
_numbers = itertools.count()


@dataclass(frozen=True)
class CgroupBase:
    """A place where groups can be made, and which files its groups have."""

    path: Path
    files: frozenset[str]

    def can(self, file: str) -> bool:
        return file in self.files

    def create(self, limits: Limits) -> Cgroup:
        """Make a group with the limits that this host can hold."""
        path = self.path / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        path.mkdir()
        if limits.memory_bytes and self.can("memory.max"):
            (path / "memory.max").write_text(str(limits.memory_bytes))
            if self.can("memory.swap.max"):
                with suppress(OSError):
                    (path / "memory.swap.max").write_text("0")
        if self.can("pids.max"):
            (path / "pids.max").write_text(str(limits.pids))
        return Cgroup(path, self.files)


class Cgroup:
    """One group."""

    def __init__(self, path: Path, files: frozenset[str]) -> None:
        self.path = path
        self._files = files

    def pids(self) -> list[int]:
        try:
            return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def _events(self) -> dict[str, str]:
        try:
            return dict(line.split() for line in (self.path / "cgroup.events").read_text().splitlines())
        except OSError:
            return {}

    def populated(self) -> bool:
        return self._events().get("populated") == "1"

    def can(self, file: str) -> bool:
        return file in self._files

    def freeze(self, timeout_s: float = 5.0) -> bool:
        """Freeze every process of the group; whether the kernel reported it done within the limit."""
        return self._set_frozen(True, timeout_s)

    def thaw(self, timeout_s: float = 5.0) -> bool:
        return self._set_frozen(False, timeout_s)

    def _set_frozen(self, frozen: bool, timeout_s: float) -> bool:
        wanted = "1" if frozen else "0"
        try:
            (self.path / "cgroup.freeze").write_text(wanted)
        except OSError:
            return False
        until = time.monotonic() + timeout_s
        while self._events().get("frozen", wanted) != wanted:
            if time.monotonic() > until:
                return False
            time.sleep(0.0003)
        return True

    def kill(self) -> None:
        with suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")

    def oom_kills(self) -> int:
        try:
            events = dict(line.split() for line in (self.path / "memory.events").read_text().splitlines())
            return int(events.get("oom_kill", 0))
        except OSError:
            return 0

    def pids_refused(self) -> int:
        try:
            events = dict(line.split() for line in (self.path / "pids.events").read_text().splitlines())
            return int(events.get("max", 0))
        except OSError:
            return 0

    def remove(self) -> bool:
        """Remove the emptied group; False if something still lives in it."""
        until = time.monotonic() + REMOVE_TIMEOUT_S
        while True:
            try:
                self.path.rmdir()
                return True
            except FileNotFoundError:
                return True
            except OSError:
                if time.monotonic() > until:
                    return False
                self.kill()
                time.sleep(0.002)


@cache
def find_base() -> CgroupBase | None:
    """Where groups can be made on this host, or None.

    A place whose groups hold memory and process limits beats one that can only freeze and kill; of equals the own
    group wins, so that what contains this process contains its boxes too.
    """
    bases = [base for base in map(_probe, _candidates()) if base is not None]
    if not bases:
        return None
    best = max(bases, key=lambda base: len(base.files))
    for base in bases:
        sweep(base)
    return best


def _candidates() -> Iterator[Path]:
    mounts = [Path(line.split()[4]) for line in _lines("/proc/self/mountinfo") if " - cgroup2 " in line]
    own = next((line[3:].rstrip("\n") for line in _lines("/proc/self/cgroup") if line.startswith("0::")), "/")
    found = [(mount / own.lstrip("/"), mount) for mount in mounts]
    for path in dict.fromkeys(path for pair in found for path in pair):
        if path.is_dir() and os.access(path, os.W_OK):
            yield path


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines(keepends=True)
    except OSError:
        return []


def _probe(base: Path) -> CgroupBase | None:
    """Make and remove a group; which of its control files exist and can be written."""
    for controller in ("memory", "pids"):  # one at a time: one that cannot be had must not cost the other
        with suppress(OSError):
            if controller in (base / "cgroup.controllers").read_text().split():
                (base / "cgroup.subtree_control").write_text(f"+{controller}")
    trial = base / f"{PREFIX}{os.getpid()}-probe{next(_numbers)}"
    try:
        trial.mkdir()
    except OSError:
        return None
    try:
        names = ("cgroup.procs", "cgroup.freeze", "cgroup.kill", "memory.max", "memory.swap.max", "pids.max")
        files = frozenset(name for name in names if os.access(trial / name, os.W_OK))
    finally:
        with suppress(OSError):
            trial.rmdir()
    return CgroupBase(base, files) if {"cgroup.procs", "cgroup.freeze"} <= files else None


def sweep(base: CgroupBase) -> list[str]:
    """Remove the groups of workers that are gone (and end what they left); names of those removed."""
    removed = []
    for path in base.path.glob(f"{PREFIX}*-*"):
        pid = path.name[len(PREFIX) :].split("-")[0]
        if not pid.isdigit() or not path.is_dir() or Path("/proc", pid).exists():
            continue
        if Cgroup(path, base.files).remove():
            removed.append(path.name)
    return removed
