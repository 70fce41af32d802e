"""What attacks cost the host: nothing that stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversarial.test_candidate import FORGER, FORGERIES, HONEST
from tests.box.support import needs_box
from tests.support.stand import stand

CHILDREN = """
import os, signal
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        signal.pause()
"""


@needs_box
@pytest.mark.usefixtures("no_leftovers")
def test_attacks_cost_no_descriptors_processes_or_threads(tmp_path: Path) -> None:
    with stand(tmp_path, warm=1) as made:
        for name in ("descriptors", "garbage", "a short frame"):
            assert made.solve(FORGER.replace("{body}", FORGERIES[name])).status == "invalid"
        assert made.solve(CHILDREN + HONEST).status == "scored"
    assert list((tmp_path / "candidates").iterdir()) == []
