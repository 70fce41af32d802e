"""Being somebody else for a moment: root may read and write everything, so rights are tested from another account."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def somebody_else(folder: Path, *, owner: bool = False) -> Iterator[None]:
    """Run the block as another user, to whom the way to `folder` is open; as ourselves where we are not root.

    Args:
        folder: The folder that the block is about.
        owner: Whether `folder` and everything in it is that user's.
    """
    if os.geteuid() != 0:
        yield
        return
    if owner:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    before = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.parents) if path.stat().st_uid == 0}
    closed = {path: mode for path, mode in before.items() if mode & 0o011 != 0o011}
    for path, mode in closed.items():
        path.chmod(mode | 0o055)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        for path, mode in closed.items():
            path.chmod(mode)
