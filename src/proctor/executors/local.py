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

    def run(self) -> None:
        """Start workers and wait for them; returns when none is left."""
        while self._running or (self._todo and not self.stopping):
            while self._todo and len(self._running) < self._jobs and not self.stopping:
                folder = self._todo.popleft()
                self._running[folder] = self._start(folder)
            self._reap()
            self._tick()
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Start nothing more; ask the running workers to end cleanly."""
        self.stopping = True
        for process in self._running.values():
            process.terminate()

    def kill(self) -> None:
        """End the running workers at once. Their boxes go with them; what was logged stays."""
        self.stopping = True
        for process in self._running.values():
            process.kill()

    def _start(self, folder: RunFolder) -> subprocess.Popen[bytes]:
        with folder.worker_log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "proctor", "worker", str(folder.root), "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _reap(self) -> None:
        for folder, process in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[folder]
            name = folder.root.name
            try:
                result = folder.result() or close_dead(folder, f"the worker ended with status {code}")
            except ProctorError as error:
                self.failures[name] = str(error)
                continue
            if result is None:
                said = folder.worker_log.read_text(errors="replace").strip().splitlines()
                self.failures[name] = said[-1] if said else f"the worker ended with status {code}"
            else:
                self.results[name] = result
