"""Every process of a box, found and stopped from the host, whatever they do with sessions, groups and parents."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from proctor.box.cgroup import Cgroup
from proctor.errors import InfrastructureError

PENDING_S = 0.02
"""How long a process has waited in the kernel, told to stop, until it counts as stopped."""


def children(pid: int) -> list[int]:
    """Direct children of a process (all of its threads')."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.scandir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(task.path, "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Every descendant of a process. Inside a pid namespace orphans stay descendants of its first process."""
    found: list[int] = []
    todo = [pid]
    while todo:
        for child in children(todo.pop()):
            found.append(child)
            todo.append(child)
    return found


def state(pid: int) -> str:
    """The state letter of a process (`T` stopped, `Z` dead and unreaped), or "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def process_name(pid: int) -> str:
    """A process by pid and start time, since a pid may be given anew; "" if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{pid}:{stat.rpartition(')')[2].split()[19]}"


class ProcessTree:
    """The processes of one box: those of its cgroup if it has one, else the descendants of its first process.

    Args:
        init: Host pid of the first process (of the pid namespace, or the command itself).
        group: The box's cgroup, or None.
        own: Host pids of the box's helper processes, which are not the code inside.
    """

    def __init__(self, init: int, group: Cgroup | None, own: Iterable[int]) -> None:
        self._init = init
        self._group = group
        self._own = frozenset(own)
        self._stopped: set[int] = set()

    def pids(self) -> list[int]:
        """Live processes inside; zombies left out, since nothing can be done to them and they do nothing."""
        found = self._group.pids() if self._group else descendants(self._init)
        return [pid for pid in found if pid not in self._own and state(pid) not in ("", "Z")]

    def signal(self, number: int) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def freeze(self, timeout_s: float = 5.0) -> None:
        """Stop everything; returns when the kernel, or a look at every process, says that it is stopped.

        Raises:
            InfrastructureError: It could not be stopped within the limit; it runs on.
        """
        if self._group and self._group.freeze(timeout_s):
            return
        # One process may wake another until it is stopped itself, so go round until none runs. The first process
        # too: it may be about to start the command.
        until = time.monotonic() + timeout_s
        waits: dict[int, float] = {}
        while True:
            now = time.monotonic()
            states = {pid: state(pid) for pid in {self._init, *self.pids()}}
            running = [pid for pid, letter in states.items() if letter not in ("T", "t", "", "Z")]
            # One that waits in the kernel, for a child that it shares its memory with (vfork), say, cannot stop before
            # the wait is over, but runs no code of its own either: the stop is pending.
            waits = {pid: waits.get(pid, now) for pid in running if states[pid] == "D" and pid in self._stopped}
            running = [pid for pid in running if now - waits.get(pid, now) < PENDING_S]
            if not running:
                return
            for pid in running:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGSTOP)
                    self._stopped.add(pid)
            if now > until:
                self.thaw()
                raise InfrastructureError(f"{len(running)} processes could not be stopped within {timeout_s:g} s")
            time.sleep(0.0003)

    def thaw(self) -> None:
        """Let everything that `freeze` stopped run on, and nothing that had stopped itself."""
        if self._group:
            self._group.thaw()
        for pid in self._stopped & {self._init, *self.pids()} if self._stopped else ():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()

    def kill(self) -> None:
        """Kill everything at once: the group if there is one, and the first process with its whole namespace."""
        if self._group:
            self._group.kill()
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self._init, signal.SIGKILL)

    def wait_empty(self, timeout_s: float) -> bool:
        """Whether no process is left within the limit.

        The first process counts: the kernel lets that of a namespace go only when all others are gone, to the last of
        what a dying process does, whereas a group loses them a little earlier.
        """
        until = time.monotonic() + timeout_s
        while self.pids() or state(self._init) not in ("", "Z"):
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True
