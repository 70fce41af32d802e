"""Candidate boxes kept warm: handed out once, replaced when they die, none left when the run ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from proctor.errors import InfrastructureError
from tests.box.support import needs_box
from tests.support.stand import Stand, stand

pytestmark = [needs_box, pytest.mark.usefixtures("no_leftovers")]


def boxes(made: Stand) -> list[str]:
    return sorted(p.name for p in (made.root / "candidates").glob("*"))


def test_a_warm_box_is_used_and_replaced(tmp_path: Path) -> None:
    with stand(tmp_path, warm=1) as made:
        made.pool.fill(wait=True)
        (first,) = boxes(made)
        assert made.answer(2.0).status == "scored"
        made.pool.fill(wait=True)
        (second,) = boxes(made)
        assert first != second
    assert boxes(made) == []


def test_a_box_that_died_while_it_waited_is_nobodys_fault(tmp_path: Path) -> None:
    with stand(tmp_path, warm=1) as made:
        made.pool.fill(wait=True)
        made.pool._waiting[0].box.kill()
        entry = made.answer(2.0)
        assert entry.status == "scored", entry.message


def test_an_unused_box_knows_nothing_of_any_submission(tmp_path: Path) -> None:
    with stand(tmp_path, warm=2) as made:
        made.pool.fill(wait=True)
        made.answer(2.0)
        waiting = [warm.slot for warm in made.pool._waiting]
        assert waiting and all(list(slot.iterdir()) == [] for slot in waiting)


def test_closing_ends_a_scoring_and_whatever_is_being_started(tmp_path: Path) -> None:
    with stand(tmp_path, warm=3) as made:
        made.submit({"solve.py": "import time\ntime.sleep(600)"})
        scoring = threading.Thread(target=lambda: made.service.score("agent"))
        filling = threading.Thread(target=made.pool.fill)
        scoring.start()
        filling.start()
        while not made.pool._in_use:
            assert scoring.is_alive()
        made.pool.close()
        assert not made.pool._waiting
        filling.join(10)
        scoring.join(20)
        assert not scoring.is_alive() and not filling.is_alive()
        copy = made.service.freeze_and_copy()
        with pytest.raises(InfrastructureError, match="no more candidates"), made.pool.open(copy.snapshot):
            pass
    assert boxes(made) == []


def test_the_candidate_sees_the_snapshot_and_not_the_workspace(tmp_path: Path) -> None:
    with stand(tmp_path) as made:
        made.submit({"answer.json": '{"slope": 2}', "notes.txt": "mine", "__pycache__/x.pyc": "left out"})
        copy = made.service.freeze_and_copy()
        (made.workspace / "answer.json").write_text('{"slope": 3}')
        made.submit({"late.txt": "after the freeze"})
        with made.pool.open(copy.snapshot):
            (slot,) = boxes(made)
            seen = {p.name for p in (tmp_path / "candidates" / slot / "workspace").iterdir()}
    assert seen == {"answer.json", "notes.txt"}
