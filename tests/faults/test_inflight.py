"""Scorings that are under way when something else happens: the deadline, a submit, a snapshot, the agent's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from proctor.jsonio import read_lines
from proctor.spec import Ended
from tests.box.support import needs_box
from tests.support.runs import answers, entries, events, ran

pytestmark = [needs_box, pytest.mark.usefixtures("no_leftovers")]
SLOW = """cat > solve.py <<'END'
import time
import numpy as np
def predict(x):
    time.sleep(1.0)
    return np.float32(2.5) * x
END
"""
BRISK = SLOW.replace("1.0", "0.4")


@pytest.mark.parametrize("task", ["toy", "toy_timed"])
def test_the_deadline_falls_into_a_scoring(tmp_path: Path, task: str) -> None:
    run, result = ran(tmp_path, SLOW + "sleep 0.4; score; sleep 60", task=task, budget_s=1.0)
    assert (result.ended, result.limit, result.valid) == (Ended.DEADLINE, "time: 1 s", True)
    first = entries(run)[0]
    assert (first.origin, first.status) == ("agent", "scored")
    assert 0.4 <= first.elapsed_s < 1.0 < first.elapsed_s + first.scoring_s
    assert [e.origin for e in entries(run)] == ["agent", "seal"], "the same state is not scored twice"
    used, scoring = result.used_s or 0, result.scoring_s or 0
    assert 0 < scoring <= used - 0.4 + 0.05, "only what lay on the agent's clock is booked"
    if task == "toy_timed":
        assert result.frozen_s == pytest.approx(scoring, abs=0.1)


def test_a_submit_while_a_scoring_runs_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    run, result = ran(tmp_path, SLOW + "score --note slow & sleep 0.3; submit; sleep 60")
    assert result.ended is Ended.SUBMITTED and result.valid
    first = entries(run)[0]
    assert (first.origin, first.note, first.status) == ("agent", "slow", "scored")
    assert (result.used_s or 0) < 1.0 and (result.scoring_s or 0) <= (result.used_s or 0)


def test_scorings_that_still_wait_at_the_end_are_not_served(tmp_path: Path) -> None:
    waiting = "for i in 1 2 3; do score --note $i & sleep 0.05; done; submit; sleep 60"
    run, result = ran(tmp_path, BRISK + waiting)
    assert result.valid and result.score_calls == 1
    assert [(e.origin, e.note) for e in entries(run)] == [("agent", "1"), ("seal", "")]


def test_more_scorings_than_may_wait_are_refused_at_once(tmp_path: Path) -> None:
    crowd = "for i in 1 2 3 4 5 6; do (score --note $i > answer$i) & done; wait; cat answer*; submit"
    run, result = ran(tmp_path, BRISK + crowd)
    assert result.score_calls == 4 and len([e for e in entries(run) if e.origin == "agent"]) == 4
    refused = [a["message"] for a in answers(run) if a["status"] == "error"]
    assert refused == ["4 scorings are waiting already; try later"] * 2


def test_an_agent_that_exits_during_its_scoring_keeps_it(tmp_path: Path) -> None:
    run, result = ran(tmp_path, BRISK + "score > /dev/null & sleep 0.3; exit 5")
    assert (result.ended, result.exit_code, result.valid) == (Ended.EXITED, 5, True)
    assert entries(run)[0].origin == "agent" and entries(run)[0].status == "scored"


def test_silent_snapshots_during_a_scoring_are_taken_and_given_back(tmp_path: Path) -> None:
    run, result = ran(tmp_path, SLOW + "score; sleep 0.2; submit", budget_s=4.0, silent_snapshots=16)
    silent = [e for e in entries(run) if e.origin == "silent"]
    assert len(silent) >= 3 and {e.split for e in silent} == {"hidden"} and {e.status for e in silent} == {"scored"}
    assert [e.elapsed_s for e in silent] == sorted(e.elapsed_s for e in silent)
    assert [line["sha256"] for line in read_lines(run.silent)] == [e.sha256 for e in silent]
    agent = entries(run)[0]
    during = [e for e in silent if agent.elapsed_s < e.elapsed_s < agent.elapsed_s + agent.scoring_s]
    assert during, "the scoring did not hold them up"
    assert (result.frozen_s or 0) == pytest.approx(agent.frozen_s, abs=0.01), "theirs is credited, not booked"
    assert "silent_snapshot_failed" not in events(run)
