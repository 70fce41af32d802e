"""Every test of boxes leaves the host as it was: no process, no control group, no descriptor more than before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.box.support import Room, descriptors, living_below, own_groups, until


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    processes, groups, opened = living_below(), own_groups(), descriptors()
    yield
    assert until(lambda: living_below() <= processes, 5.0), f"processes left: {living_below() - processes}"
    assert until(lambda: own_groups() <= groups, 5.0), f"groups left: {own_groups() - groups}"
    left = {fd: to for fd, to in descriptors().items() if fd not in opened}
    assert not left, f"descriptors left: {left}"
