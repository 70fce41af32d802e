"""Limits that the kernel does not hold on this host are watched: memory and process count, by polling."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from proctor.box.cgroup import Cgroup
from proctor.box.tree import ProcessTree
from proctor.spec import MIB, Limits

INTERVAL_S = 0.25
PAGE = os.sysconf("SC_PAGE_SIZE")
INODE_BYTES = 1024
"""What an empty file in memory costs the kernel, about."""
MAX_DESCRIPTORS = 20_000
"""Descriptors looked at in one round; more would cost the agent a processor."""


class LimitWatch:
    """Watches one box. With kernel limits it only reads their counters when asked.

    Polled memory is what the processes have for themselves, plus what they share: mapped, or in files in memory
    (`memory_folders` and memfds), whichever is more. Buffers in the kernel and detached System V segments are not seen.

    Args:
        tree: The box's processes.
        limits: What it may use.
        group: Its cgroup, if it has one.
        memory_folders: Folders in memory, by paths that the host can look at.
        poll_pids: Whether processes are counted here where the group cannot limit them; False where RLIMIT_NPROC does.
    """

    def __init__(
        self,
        tree: ProcessTree,
        limits: Limits,
        group: Cgroup | None,
        memory_folders: Iterable[str] = (),
        *,
        poll_pids: bool = True,
    ) -> None:
        self._tree = tree
        self._limits = limits
        self._group = group
        self._folders = tuple(memory_folders)
        self._hits: list[str] = []
        self._stop = threading.Event()
        self._memory = bool(limits.memory_bytes) and not (group and group.can("memory.max"))
        self._pids = poll_pids and not (group and group.can("pids.max"))
        self._thread: threading.Thread | None = None
        if self._memory or self._pids:
            self._thread = threading.Thread(target=self._run, name="limits", daemon=True)
            self._thread.start()

    def hit(self) -> str | None:
        """The first limit that fired, in words."""
        if self._group and not self._hits:
            if self._group.oom_kills():
                size = (self._limits.memory_bytes or 0) // MIB
                self._hits.append(f"memory: more than {size} MiB were used; the kernel killed a process")
            elif self._group.pids_refused():
                self._hits.append(f"processes: more than {self._limits.pids} were wanted; the kernel refused")
        return self._hits[0] if self._hits else None

    def stop(self) -> None:
        self.hit()
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        interval = INTERVAL_S
        while not self._stop.wait(interval):
            began = time.monotonic()
            pids = self._tree.pids()
            if self._pids:
                count = sum(map(_threads, pids))
                if count > self._limits.pids:
                    self._hits.append(f"processes: {count} ran, {self._limits.pids} are allowed; the box was ended")
                    self._tree.kill()
                    return
            if self._memory:
                self._check_memory(pids)
            # Thousands of processes take a while to look at: that must not become a processor's whole work.
            interval = max(INTERVAL_S, 5 * (time.monotonic() - began))

    def _check_memory(self, pids: list[int]) -> None:
        """Over the limit, kill the largest process, as the kernel would; if that is not where it lies, the box."""
        limit = self._limits.memory_bytes or 0
        in_files = sum(map(_held_by_folder, self._folders)) + _held_by_memfds(pids)
        # The quick look counts pages shared by several processes several times; only if that is too much, look well.
        if sum(map(_resident, pids)) + in_files <= limit:
            return
        sizes = {pid: _proportional(pid) for pid in pids}
        private = sum(size.private for size in sizes.values())
        shared = max(in_files, sum(size.shared for size in sizes.values()))
        if private + shared <= limit:
            return
        used = f"memory: {(private + shared) // MIB} MiB were used, {limit // MIB} are allowed"
        if in_files > limit // 2 or not sizes:
            self._hits.append(f"{used}, most of it in files in memory; the box was ended")
            self._tree.kill()
            return
        largest = max(sizes, key=lambda pid: sizes[pid].private + sizes[pid].shared)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(largest, signal.SIGKILL)
        self._hits.append(f"{used}; the largest process was killed")


@dataclass(frozen=True)
class _Size:
    """Bytes of memory of one process: its own, and its part of what it shares. Cached files are not counted."""

    private: int
    shared: int


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> _Size:
    sizes = {"Pss_Anon": 0, "Pss_Shmem": 0}
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name = line.partition(":")[0]
            if name in sizes:
                sizes[name] = int(line.split()[1]) * 1024
    except (OSError, IndexError):
        return _Size(_resident(pid), 0)
    return _Size(sizes["Pss_Anon"], sizes["Pss_Shmem"])


def _threads(pid: int) -> int:
    """Threads of a process: each counts as one, as it does to the kernel."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[17])
    except (OSError, IndexError):
        return 0


def _held_by_folder(path: str) -> int:
    """Memory behind a folder in memory, its empty files included."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize + (found.f_files - found.f_ffree) * INODE_BYTES


def _held_by_memfds(pids: Iterable[int]) -> int:
    """Memory of anonymous files that processes hold open, mapped or not."""
    sizes: dict[int, int] = {}
    for path in islice(_descriptors(pids), MAX_DESCRIPTORS):
        with suppress(OSError):
            if os.readlink(path).startswith("/memfd:"):
                info = os.stat(path)
                sizes[info.st_ino] = info.st_blocks * 512
    return sum(sizes.values())


def _descriptors(pids: Iterable[int]) -> Iterator[str]:
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                yield f"/proc/{pid}/fd/{name}"
