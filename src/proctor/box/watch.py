"""Limits that the kernel does not hold on this host are watched: memory and process count, by polling."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

from proctor.box.cgroup import Cgroup
from proctor.box.tree import ProcessTree
from proctor.spec import MIB, Limits

INTERVAL_S = 0.25
PAGE = os.sysconf("SC_PAGE_SIZE")


class LimitWatch:
    """Watches one box. With kernel limits it only reads their counters when asked."""

    def __init__(self, tree: ProcessTree, limits: Limits, group: Cgroup | None) -> None:
        self._tree = tree
        self._limits = limits
        self._group = group
        self._hits: list[str] = []
        self._stop = threading.Event()
        self._memory = bool(limits.memory_bytes) and not (group and group.can("memory.max"))
        self._pids = not (group and group.can("pids.max"))
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
            self._thread.join(2.0)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            pids = self._tree.pids()
            if self._pids and len(pids) > self._limits.pids:
                self._hits.append(f"processes: {len(pids)} ran, {self._limits.pids} are allowed; the box was ended")
                self._tree.kill()
                return
            if self._memory:
                self._check_memory(pids)

    def _check_memory(self, pids: list[int]) -> None:
        """Kill the largest process when all together are over the limit, as the kernel would."""
        limit = self._limits.memory_bytes or 0
        sizes = {pid: _resident(pid) for pid in pids}
        if sum(sizes.values()) <= limit:
            return
        # Resident sizes count shared pages once for each process; proportional sizes cost more and count them once.
        sizes = {pid: _proportional(pid) for pid in pids}
        total = sum(sizes.values())
        if total <= limit:
            return
        largest = max(sizes, key=lambda pid: sizes[pid])
        with suppress(ProcessLookupError, PermissionError):
            os.kill(largest, signal.SIGKILL)
        self._hits.append(f"memory: {total // MIB} MiB were used, {limit // MIB} are allowed; the largest was killed")


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, IndexError):
        return _resident(pid)
    return 0
