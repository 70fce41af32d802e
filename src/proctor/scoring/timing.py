"""One timed scoring at a time on a machine: two at once would measure each other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proctor.gpu import lock_folder


@contextmanager
def timing_lock() -> Iterator[None]:
    """Hold the machine-wide lock of timed scorings. The kernel frees it when its holder dies."""
    path = Path(lock_folder()) / "timing.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
