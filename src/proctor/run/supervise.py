"""Watching an agent: its end, its deadline, its disk, its silent snapshots. The hard clock is here."""

from __future__ import annotations

import os
import queue
import signal
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proctor.box.base import Box
from proctor.clock import BudgetClock
from proctor.errors import InfrastructureError, InvalidSubmission
from proctor.events import EventLog
from proctor.jsonio import append_line
from proctor.scoring.service import Frozen, ScoringService
from proctor.spec import MIB, Ended

TICK_S = 1.0
DISK_INTERVAL_S = 2.0
DISK_WARNING = 0.9
MAX_FILES = 1_000_000
MAX_DEPTH = 256


@dataclass(frozen=True)
class Ending:
    """How the agent's time ended, as separate facts."""

    ended: Ended
    exit_code: int | None
    limit: str | None
    tree_empty: bool
    kill_s: float
    """Seconds from the first signal (or the exit) to the empty process tree."""


class Supervisor:
    """Waits for the first of: exit, submit, deadline, a limit, an order to stop; then ends the whole tree."""

    def __init__(
        self, box: Box, budget: BudgetClock, events: EventLog, grace_s: float, tick: Callable[[], None]
    ) -> None:
        self._box = box
        self._budget = budget
        self._events = events
        self._grace_s = grace_s
        self._tick = tick
        self._news: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        threading.Thread(target=self._await_exit, name="exit", daemon=True).start()

    def submit(self, note: str) -> None:
        self._news.put(("submitted", note))

    def stop(self, reason: str) -> None:
        """Order to end the run (an interrupt, the operator); the agent gets its grace."""
        self._news.put(("killed", reason))

    def limit(self, what: str) -> None:
        """A limit fired that ends the run."""
        self._news.put(("limit", what))

    def _await_exit(self) -> None:
        code = self._box.wait(None)
        self._news.put(("exited", str(code)))

    def _next(self, seconds: float) -> tuple[str, str] | None:
        try:
            return self._news.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def watch(self) -> Ending:
        """Supervise to the end; when this returns, no process of the agent is left (or the ending says so)."""
        while True:
            news = self._next(min(TICK_S, self._budget.remaining()))
            if news is not None:
                break
            if self._budget.expired():
                # What came in while the time ran out was in time: a submit was answered as accepted.
                news = self._next(0.0) or ("deadline", f"{self._budget.budget_s:g} s")
                break
            self._tick()
        what, detail = news
        began = time.monotonic()
        self._events.write(what, detail=detail)
        if what in ("deadline", "killed", "limit"):
            self._terminate()
        empty = self._box.kill()
        self._budget.stop()
        seconds = time.monotonic() - began
        self._events.write("tree_dead" if empty else "tree_not_dead", seconds=round(seconds, 4))
        ended = {"submitted": Ended.SUBMITTED, "exited": Ended.EXITED, "deadline": Ended.DEADLINE}.get(
            what, Ended.KILLED
        )
        hit = self._box.limit_hit()
        limit = {"deadline": f"time: {detail}", "limit": detail}.get(what, hit)
        code = self._box.wait(0.0) if what == "exited" else None
        return Ending(ended, code, limit, empty, seconds)

    def _terminate(self) -> None:
        """Ask the tree to end, and wait for it up to the grace; an agent that is done says so, or exits."""
        self._box.signal(signal.SIGTERM)
        until = time.monotonic() + self._grace_s
        while (left := until - time.monotonic()) > 0:
            news = self._next(left)
            if news is None or news[0] in ("exited", "submitted"):
                return


class SilentSnapshots:
    """Copies the submission at fixed fractions of the budget, gives the agent the time back, and says nothing.

    The copies are scored on the hidden split after the end: a score-over-time curve also of agents that never score.
    """

    def __init__(self, service: ScoringService, budget: BudgetClock, count: int, log: Path, events: EventLog) -> None:
        self._service = service
        self._budget = budget
        self._log = log
        self._events = events
        self._times = [budget.budget_s * i / count for i in range(1, count)] if count > 0 else []
        self._stop = threading.Event()
        self.taken: list[Frozen] = []
        self._thread = threading.Thread(target=self._run, name="silent", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        for moment in self._times:
            # A credit moves the moment too, so look again after each wait.
            while (left := moment - self._budget.elapsed()) > 0:
                if self._stop.wait(left):
                    return
            if self._stop.is_set():
                return
            self._take()

    def _take(self) -> None:
        began = time.monotonic()
        try:
            copy = self._service.freeze_and_copy(silent=True)
        except InvalidSubmission:
            # Nothing to score at this time: the curve starts later. The stop was a look at names, of milliseconds, and
            # is not given back: what was measured here would hold the wait for a scoring too, which is the agent's.
            return
        except InfrastructureError as error:
            self._budget.credit(time.monotonic() - began)
            self._events.write("silent_snapshot_failed", error=error.message)
            return
        self._budget.credit(copy.frozen_s)
        if not self._stop.is_set():
            self.taken.append(copy)
            where = {"artefact": copy.snapshot.name, "sha256": copy.snapshot.sha256}
            append_line(self._log, {"elapsed_s": round(copy.elapsed_s, 3), **where})


class DiskWatch:
    """Watches the size of the workspace: a warning near the quota, the end of the run over it. A context manager.

    Args:
        folder: Host path of the workspace.
        quota_bytes: What it may hold; the number of files is bounded too, since each costs the file system an inode.
        events: The run's event log.
        over: Told, once, what limit fired.
        warnings: Texts for the agent are put here.
        pids: The agent's processes, whose deleted but open files count as well.
    """

    def __init__(
        self,
        folder: Path,
        quota_bytes: int,
        events: EventLog,
        over: Callable[[str], None],
        warnings: list[str],
        pids: Callable[[], list[int]] = list,
    ) -> None:
        self._folder = folder
        self._quota = quota_bytes
        self._events = events
        self._over = over
        self._pids = pids
        self._stop = threading.Event()
        self._warnings = warnings
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)

    def __enter__(self) -> DiskWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        interval = DISK_INTERVAL_S
        while not self._stop.wait(interval):
            began = time.monotonic()
            limit = self._look()
            # A huge tree must not cost the agent a processor: look at it for at most a twentieth of the time.
            interval = max(DISK_INTERVAL_S, 20 * (time.monotonic() - began))
            if limit is not None:
                self._over(limit)
                return

    def _look(self) -> str | None:
        """The limit that is passed, in words, if one is; a warning near the quota."""
        try:
            usage = disk_usage(self._folder)
            used = usage.size + deleted_open_files(self._folder, self._pids())
        except TooDeep:
            return f"disk: the workspace has folders more than {MAX_DEPTH} deep"
        except OSError:
            return None  # a fault of the disk: the next look may do better
        if used > self._quota:
            return f"disk: the workspace holds {used // MIB} MiB, {self._quota // MIB} MiB are allowed"
        if usage.files > MAX_FILES:
            return f"disk: the workspace holds {usage.files} files, {MAX_FILES} are allowed"
        if used > DISK_WARNING * self._quota and not self._warnings:
            text = f"the workspace holds {used // MIB} MiB of {self._quota // MIB} MiB; over that the run ends"
            self._warnings.append(text)
            self._events.write("disk_warning", used_bytes=used)
        return None


@dataclass(frozen=True)
class Usage:
    """What a folder holds: bytes on disk, and files and folders."""

    size: int
    files: int


class TooDeep(Exception):
    """A tree has more levels than are looked at."""


def disk_usage(folder: Path) -> Usage:
    """What is under a folder; a file linked twice counts once.

    The tree may be changed by its owner meanwhile, so each folder is opened from its parent and no link is followed:
    a folder that is swapped for a link leads nowhere, and a path longer than the system takes hides nothing.

    Raises:
        TooDeep: It cannot be measured.
    """
    size = files = 0
    seen: set[int] = set()
    open_folders: list[tuple[int, list[str]]] = []

    def enter(name: str, parent: int | None) -> None:
        nonlocal size, files
        try:
            here = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError:
            return  # gone, or not a folder any more
        below: list[str] = []
        open_folders.append((here, below))
        with os.scandir(here) as listing:
            for item in listing:
                try:
                    info = item.stat(follow_symlinks=False)
                except OSError:
                    continue
                files += 1
                if stat.S_ISDIR(info.st_mode):
                    below.append(item.name)
                elif info.st_nlink > 1:
                    if info.st_ino in seen:
                        continue
                    seen.add(info.st_ino)
                size += info.st_blocks * 512

    try:
        enter(str(folder), None)
        while open_folders:
            here, below = open_folders[-1]
            if below:
                if len(open_folders) >= MAX_DEPTH:
                    raise TooDeep
                enter(below.pop(), here)
            else:
                os.close(here)
                open_folders.pop()
    finally:
        for here, _ in open_folders:
            os.close(here)
    return Usage(size, files)


def deleted_open_files(folder: Path, pids: list[int]) -> int:
    """Bytes of files without a name that processes hold open on a folder's file system: a quota by names misses them.

    Files in memory are on file systems of their own and do not count.
    """
    device = os.stat(folder).st_dev
    sizes: dict[int, int] = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                info = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if info.st_nlink == 0 and info.st_dev == device and stat.S_ISREG(info.st_mode):
                sizes[info.st_ino] = info.st_blocks * 512
    return sum(sizes.values())
