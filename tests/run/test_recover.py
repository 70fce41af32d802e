"""Closing runs whose worker died: what was sealed counts, nothing else is made up."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from proctor.errors import ProctorError
from proctor.jsonio import read_lines
from proctor.run.folder import RunFolder
from proctor.run.recover import close_dead
from proctor.spec import Ended, Protocol, Result
from tests.box.support import needs_box
from tests.support.runs import planned, ran
from tests.support.users import somebody_else

pytestmark = needs_box
AGENT = "echo '{\"slope\": 2.5}' > answer.json; score --note first; echo '{\"slope\": 9}' > answer.json; score; submit"


@pytest.fixture(scope="module", params=[Protocol.SEALED, Protocol.PUBLISHED])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Result]:
    return ran(tmp_path_factory.mktemp("done"), AGENT, protocol=request.param)


def died(root: Path, done: RunFolder, after: str | None) -> RunFolder:
    """The folder as it would be had the worker been killed right after an event."""
    shutil.copytree(done.root, root / "run")
    run = RunFolder(root / "run")
    run.result_file.unlink()
    lines = done.events.read_text().splitlines(keepends=True)
    last = next((i for i, line in enumerate(lines) if json.loads(line)["event"] == after), -1)
    run.events.write_text("".join(lines[: last + 1]))
    if after in (None, "worker_started", "agent_started", "agent_ended"):
        kept = [line for line in done.scores.read_text().splitlines(keepends=True) if '"origin":"agent"' in line]
        run.scores.write_text("".join(kept if after == "agent_ended" else kept[:1]))
    return run


def test_a_run_that_was_sealed_is_told_in_full(tmp_path: Path, done: tuple[RunFolder, Result]) -> None:
    folder, result = done
    run = died(tmp_path, folder, "sealed")
    (run.root / ".scratch").mkdir()
    run.live.write_text("{}")
    closed = close_dead(run)
    assert closed is not None and run.result() == closed
    assert closed.reason.startswith("the worker died without a result")
    assert closed.model_copy(update={"reason": ""}) == result
    assert not run.live.exists() and not run.scratch.exists()


@pytest.mark.parametrize("after", ["agent_started", "agent_ended"])
def test_before_that_no_score_is_made_up(tmp_path: Path, done: tuple[RunFolder, Result], after: str) -> None:
    run = died(tmp_path, done[0], after)
    closed = close_dead(run, "the worker ended with status -9")
    assert closed is not None
    assert (closed.ended, closed.valid, closed.raw_score) == (Ended.INFRASTRUCTURE, False, None)
    assert closed.visible_best == done[1].visible_best, "what was logged is kept"
    assert closed.started_at == done[1].started_at and closed.enforced == done[1].enforced
    assert closed.used_s == (done[1].used_s if after == "agent_ended" else None)
    assert closed.reason.startswith("the worker ended with status -9; last seen: " + after)


def test_with_no_log_at_all_everything_is_unknown(tmp_path: Path, done: tuple[RunFolder, Result]) -> None:
    run = died(tmp_path, done[0], None)
    run.events.unlink()
    run.scores.unlink()
    closed = close_dead(run)
    assert closed is not None and "nothing was written" in closed.reason
    unknown = (closed.started_at, closed.used_s, closed.visible_best, closed.artefact, closed.enforced.network)
    assert unknown == (None,) * 5 and closed.score_calls == 0


@pytest.mark.parametrize(
    "damage",
    [
        b'{"event": "agent_started"}\n{"event": "enforced", "network": 5}\n{"event": "machine"}\n',
        b'{"event": "agent_started", "started_at": "yesterday"}\n{"event": "machine", "hardware": {}, "data": {}}\n',
        b'{"event": "agent_ended", "used_s": "x"}\n{"event": "sealed"}\n',
        b'{"event": "agent_ended"}\n{"event": "sealed", "ours": null, "reason": null}\n{"event": ["x"]}\n',
        b'{"event": "machine", "hardware": [1], "versions": {"a": 1}, "data": 5}\n',
        b'{"event": "agent_ended", "used_s": 1, "scoring_s": 1, "frozen_s": 1, "exit_code": "x", "limit": 5}\n',
        b"\xff\xff\n[]\n" + b"[" * 50_000,
    ],
)
def test_a_damaged_log_still_closes(tmp_path: Path, done: tuple[RunFolder, Result], damage: bytes) -> None:
    run = died(tmp_path, done[0], "agent_started")
    run.events.write_bytes(damage)
    closed = close_dead(run)
    assert closed is not None and closed.ended is Ended.INFRASTRUCTURE and closed.raw_score is None


def test_a_run_in_work_or_never_begun_or_done_is_left_alone(tmp_path: Path, done: tuple[RunFolder, Result]) -> None:
    fresh = planned(tmp_path / "planned", "exit 0")
    assert close_dead(fresh) is None and fresh.result() is None
    run = died(tmp_path, done[0], "agent_started")
    with run.lock():
        assert close_dead(run) is None
    assert run.result() is None
    assert close_dead(done[0]) is None, "it has its result"


def test_another_closer_at_work_is_waited_for_by_nobody(tmp_path: Path, done: tuple[RunFolder, Result]) -> None:
    run = died(tmp_path, done[0], "agent_started")
    first = close_dead(run)
    assert first is not None
    assert close_dead(run) is None and run.result() == first


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_results_of_somebody_else_are_read_and_not_touched(open_path: Path, done: tuple[RunFolder, Result]) -> None:
    run = died(open_path, done[0], "agent_started")
    with somebody_else(run.root):
        assert close_dead(run) is None
    assert run.result() is None


def test_a_specification_that_cannot_be_read_is_named(tmp_path: Path, done: tuple[RunFolder, Result]) -> None:
    run = died(tmp_path, done[0], "agent_started")
    run.spec_file.write_text("{}")
    with pytest.raises(ProctorError, match=r"run\.json is not a run specification"):
        close_dead(run)


def test_the_events_of_a_whole_run_carry_what_recovery_needs(done: tuple[RunFolder, Result]) -> None:
    told = {str(line["event"]): line for line in read_lines(done[0].events)}
    assert told["agent_ended"]["used_s"] == done[1].used_s
    assert told["machine"]["data"] == done[1].data
