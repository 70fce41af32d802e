"""Being somebody else for a moment: root may read and write everything, so rights are tested from another account."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def somebody_else(folder: Path, *, owner: bool = False) -> Iterator[None]:
    """Run the block as another user; as ourselves where we are not root.

    Args:
        folder: What the block is about; a folder to which the way is open for everyone (the fixture `open_path`).
        owner: Whether `folder` and everything in it is that user's.
    """
    if os.geteuid() != 0:
        yield
        return
    if owner:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
