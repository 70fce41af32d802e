"""The injectable clock and the budget clock of a run.

Nothing in Proctor that counts reads time directly: it asks a `Clock`, so that tests can move time by hand.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never goes back."""
        ...

    def now(self) -> datetime:
        """The present wall-clock time, in UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)


class ManualClock:
    """A clock that moves when told to; for tests."""

    def __init__(self, start: float = 0.0) -> None:
        self._seconds = start

    def monotonic(self) -> float:
        return self._seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._seconds, UTC)

    def advance(self, seconds: float) -> None:
        self._seconds += seconds


class BudgetClock:
    """The wall budget of one run: starts with the agent's process, stops when its process tree is dead.

    Time that the harness takes for itself (a silent snapshot, say) is *credited*: it moves the deadline.
    Time that is on the agent's clock but not its work (scoring, freezes) is *booked*: it is only reported apart.

    All methods may be called from any thread. Units are seconds.
    """

    def __init__(self, budget_s: float, clock: Clock | None = None) -> None:
        if not budget_s > 0:
            raise ValueError(f"a budget must be positive, not {budget_s}")
        self.budget_s = float(budget_s)
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._started: float | None = None
        self._stopped: float | None = None
        self._credit_s = 0.0
        self._booked: defaultdict[str, float] = defaultdict(float)

    def start(self) -> None:
        """Start the clock; a second call is an error, since it would hide used time."""
        with self._lock:
            if self._started is not None:
                raise RuntimeError("the budget clock was started twice")
            self._started = self._clock.monotonic()

    def stop(self) -> None:
        """Stop the clock; later calls keep the first stop."""
        with self._lock:
            if self._stopped is None:
                self._stopped = self._clock.monotonic()

    @property
    def running(self) -> bool:
        return self._started is not None and self._stopped is None

    def elapsed(self) -> float:
        """Seconds on the agent's clock so far, credits taken off; 0 before the start."""
        with self._lock:
            if self._started is None:
                return 0.0
            end = self._clock.monotonic() if self._stopped is None else self._stopped
            return max(0.0, end - self._started - self._credit_s)

    def remaining(self) -> float:
        """Seconds left; 0 once the deadline has passed."""
        return max(0.0, self.budget_s - self.elapsed())

    def expired(self) -> bool:
        return self.elapsed() >= self.budget_s

    def credit(self, seconds: float) -> None:
        """Give back time that the harness took from the agent."""
        with self._lock:
            self._credit_s += max(0.0, seconds)

    def book(self, kind: str, seconds: float) -> None:
        """Note that `seconds` of the budget went into `kind` (`scoring`, `frozen`, ...)."""
        with self._lock:
            self._booked[kind] += max(0.0, seconds)

    def booked(self, kind: str) -> float:
        with self._lock:
            return self._booked[kind]
