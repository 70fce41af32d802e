"""One timed scoring at a time on a machine: two at once would measure each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from proctor.machine_locks import try_lock

POLL_S = 0.02


@contextmanager
def timing_lock(run_id: str) -> Iterator[None]:
    """Hold the machine-wide lock of timed scorings; it falls free when its holder dies."""
    while (lock := try_lock("timing", run_id)) is None:
        time.sleep(POLL_S)
    try:
        yield
    finally:
        lock.release()
