"""One timed scoring at a time on a machine: two at once would measure each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from proctor.machine_locks import try_lock

POLL_S = 0.02


@contextmanager
def timing_lock(run_id: str, waited: Callable[[float], None] = lambda _: None) -> Iterator[None]:
    """Hold the machine-wide lock of timed scorings; it falls free when its holder dies.

    Args:
        run_id: Told to others who wait.
        waited: Called with every bit of waiting as it passes, in seconds.
    """
    before = time.monotonic()
    while (lock := try_lock("timing", run_id)) is None:
        time.sleep(POLL_S)
        now = time.monotonic()
        waited(now - before)
        before = now
    try:
        yield
    finally:
        lock.release()
