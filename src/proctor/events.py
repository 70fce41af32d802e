"""`events.jsonl`: what happened in a run and when, one JSON line each."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from proctor.clock import BudgetClock, Clock
from proctor.jsonio import append_line


class EventLog:
    """Appends events with wall time and the agent's clock."""

    def __init__(self, path: Path, clock: Clock, budget: BudgetClock | None = None) -> None:
        self._path = path
        self._clock = clock
        self._budget = budget
        self._lock = threading.Lock()

    def write(self, event: str, **fields: Any) -> None:
        """Append one event; `fields` must be plain JSON data. A full disk costs the event, not the run."""
        elapsed = self._budget.elapsed() if self._budget else 0.0
        line = {"at": self._clock.now().isoformat(), "elapsed_s": round(elapsed, 3), "event": event, **fields}
        with self._lock, suppress(OSError):
            append_line(self._path, line, sync=False)
