"""The local executor: workers as child processes of this one, a number of them at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

from proctor.errors import ProctorError
from proctor.run.folder import RunFolder
from proctor.run.recover import close_dead
from proctor.spec import Result

POLL_S = 0.1


class LocalPool:
    """Runs workers until all are done or it is told to stop.

    Each worker has a session of its own, so that a Ctrl-C reaches only this process, which decides what it means.
    """

    def __init__(self, runs: Sequence[RunFolder], jobs: int, tick: Callable[[], None]) -> None:
        self._todo = deque(runs)
        self._jobs = max(1, jobs)
        self._tick = tick
        self._running: dict[RunFolder, subprocess.Popen[bytes]] = {}
        self.results: dict[str, Result] = {}
        self.failures: dict[str, str] = {}
        self.stopping = False
        self.killing = False

    def run(self) -> None:
        """Start workers and wait for them; returns when none is left."""
        try:
            while self._running or (self._todo and not self.stopping):
                while self._todo and len(self._running) < self._jobs and not self.stopping:
                    self._start(self._todo.popleft())
                self._reap()
                self._tick()
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Start nothing more; ask the running workers to end cleanly. May be called from a signal handler."""
        self.stopping = True
        for process in list(self._running.values()):
            process.terminate()

    def kill(self) -> None:
        """End the running workers at once. Their boxes go with them; what was logged stays."""
        self.stopping = self.killing = True
        for process in list(self._running.values()):
            process.kill()

    def _start(self, folder: RunFolder) -> None:
        command = [sys.executable, "-m", "proctor", "worker", str(folder.root), "--parent", str(os.getpid())]
        try:
            with folder.worker_log.open("ab") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            self.failures[folder.root.name] = f"no worker could be started: {error}"
            return
        self._running[folder] = process
        # An order to stop may have come between the start and the line above.
        if self.killing:
            process.kill()
        elif self.stopping:
            process.terminate()

    def _reap(self) -> None:
        for folder, process in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[folder]
            name = folder.root.name
            said = last_line(folder)
            why = f"the worker ended with status {code}" + (f" ({said})" if said else "")
            try:
                result = folder.result() or close_dead(folder, why)
            except (ProctorError, OSError) as error:
                self.failures[name] = str(error)
                continue
            if result is not None:
                self.results[name] = result
            elif not self.stopping:
                self.failures[name] = why


def last_line(folder: RunFolder) -> str:
    """The last thing that a worker said, usually why it ended."""
    try:
        with folder.worker_log.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4096))
            lines = [line for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    hint = lines[-1].strip() if lines else ""
    # A message of ours ends in a hint ("  -> ..."); what is wrong stands before it.
    return lines[-2].strip() if hint.startswith("->") and len(lines) > 1 else hint
