"""Whole runs in real boxes: how they end, what counts, what is left in the folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from proctor.box import registry as boxes
from proctor.errors import ProctorError, UsageError
from proctor.run.folder import BusyError
from proctor.run.seal import Sealer
from proctor.run.worker import work
from proctor.spec import Ended, Protocol
from tests.box.support import needs_box
from tests.support.runs import answers, entries, events, planned, ran, script, worker
from tests.support.toy.task import ToyFaulty

pytestmark = [needs_box, pytest.mark.usefixtures("no_leftovers")]
ANSWER = """answer() { echo "{\\"slope\\": $1}" > answer.json; }\n"""


def test_the_starting_solution_from_plan_to_result(tmp_path: Path) -> None:
    run, result = ran(tmp_path, "starter")
    assert (result.ended, result.valid, result.limit, result.reason) == (Ended.SUBMITTED, True, None, "")
    visible, sealed = entries(run)
    assert (visible.origin, visible.split, sealed.origin, sealed.split) == ("agent", "visible", "seal", "hidden")
    assert result.raw_score == result.sealed_score == sealed.score != visible.score
    assert result.visible_best == visible.score and result.score_calls == 1
    assert result.artefact_sha256 == visible.sha256 == sealed.sha256
    assert result.normalised_score == 0.0, "the starting solution's error on the hidden split is above y_s"
    assert result.relative_gain == pytest.approx(1.0 - (sealed.score or 0))
    assert 0 < (result.used_s or 0) < 20 and (result.scoring_s or 0) <= (result.used_s or 0)
    assert run.result() == result
    assert sorted(p.name for p in run.root.iterdir()) == [
        "agent.stderr",
        "agent.stdout",
        "events.jsonl",
        "result.json",
        "run.json",
        "scores.jsonl",
        "snapshots",
        "worker.lock",
        "workspace",
    ]
    order = [
        e for e in events(run) if e in ("worker_started", "agent_started", "submitted", "tree_dead", "sealed", "result")
    ]
    assert order == ["worker_started", "agent_started", "submitted", "tree_dead", "sealed", "result"]


def test_work_that_was_never_scored_is_scored_at_the_end(tmp_path: Path) -> None:
    run, result = ran(tmp_path, ANSWER + "answer 2.5; exit 7")
    assert (result.ended, result.exit_code, result.valid, result.score_calls) == (Ended.EXITED, 7, True, 0)
    assert [e.origin for e in entries(run)] == ["final", "seal"]
    assert result.visible_best == entries(run)[0].score


def test_an_agent_that_leaves_nothing_has_no_score_and_no_zero(tmp_path: Path) -> None:
    run, result = ran(tmp_path, "exit 0")
    assert (result.ended, result.valid, result.raw_score, result.normalised_score) == (Ended.EXITED, False, None, None)
    assert "nothing to score yet" in result.reason
    assert entries(run) == []


def test_an_invalid_submission_says_why(tmp_path: Path) -> None:
    _, result = ran(tmp_path, "echo '{}' > answer.json; score; submit")
    assert (result.ended, result.valid, result.raw_score) == (Ended.SUBMITTED, False, None)
    assert "KeyError: 'slope'" in result.reason


SEVERAL = ANSWER + "for s in 9 2.6 5; do answer $s; score --note $s; done; submit"


def test_the_best_visible_artefact_counts_though_it_is_not_the_last(tmp_path: Path) -> None:
    run, result = ran(tmp_path, SEVERAL)
    scores = {e.note: e for e in entries(run) if e.origin == "agent"}
    assert result.visible_best == scores["2.6"].score == min(e.score for e in scores.values() if e.score is not None)
    assert result.artefact_sha256 == scores["2.6"].sha256
    kept = run.snapshots / str(result.artefact) / "files/answer.json"
    assert json.loads(kept.read_text()) == {"slope": 2.6}


def test_where_the_last_counts_the_last_counts_and_no_score_is_shown(tmp_path: Path) -> None:
    run, result = ran(tmp_path, SEVERAL, task="toy_blind")
    assert result.artefact_sha256 == [e for e in entries(run) if e.origin == "agent"][-1].sha256
    shown = [a for a in answers(run) if "scored_at_s" in a]
    assert [a["status"] for a in shown] == ["hidden"] * 3 and {a["score"] for a in shown} == {None}


def test_under_the_published_protocol_the_best_of_the_log_is_the_result(tmp_path: Path) -> None:
    run, result = ran(tmp_path, SEVERAL, protocol=Protocol.PUBLISHED)
    assert result.raw_score == result.visible_best == next(e for e in entries(run) if e.note == "2.6").score
    assert (result.sealed_score, result.optimism) == (None, None)
    assert {e.split for e in entries(run)} == {"visible"}


def test_the_deadline_ends_everything_and_the_last_state_counts(tmp_path: Path) -> None:
    background = "(trap '' TERM; while :; do sleep 1; done) & setsid sh -c 'trap \"\" TERM; sleep 100' &\n"
    run, result = ran(tmp_path, ANSWER + background + "answer 2.5; sleep 100", budget_s=1.0)
    assert (result.ended, result.limit, result.valid) == (Ended.DEADLINE, "time: 1 s", True)
    assert 1.0 <= (result.used_s or 0) <= 1.0 + run.spec().grace_s + 2.0
    assert entries(run)[0].origin == "final"


def test_a_torn_checkpoint_gives_way_to_a_whole_one(tmp_path: Path) -> None:
    writing = "mkdir checkpoints; echo '{\"slope\": 2.4}' > checkpoints/whole.json; sleep 0.05\n"
    run, result = ran(tmp_path, writing + "printf '{\"slope\": 2.' > checkpoints/torn.json; kill -9 $$")
    assert [(e.origin, e.status) for e in entries(run)] == [
        ("final", "invalid"),
        ("final", "scored"),
        ("seal", "scored"),
    ]
    assert result.valid and result.ended is Ended.EXITED


def test_an_invalid_last_state_does_not_replace_what_was_scored(tmp_path: Path) -> None:
    run, result = ran(tmp_path, ANSWER + "answer 2.4; score; answer x; exit")
    assert result.valid and [e.origin for e in entries(run)] == ["agent", "final", "seal"]


def test_the_prompt_is_on_stdin_and_in_the_workspace(tmp_path: Path) -> None:
    run, result = ran(tmp_path, "cat > stdin.txt; cmp stdin.txt PROMPT.md && echo same; ls program.md; exit 3")
    assert result.exit_code == 3 and run.stdout.read_text() == "same\nprogram.md\n"
    prompt = (run.workspace / "PROMPT.md").read_text()
    assert "/workspace" in prompt and "20 seconds" in prompt and str(tmp_path) not in prompt


def test_the_environment_is_what_the_design_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "host-secret")
    run, _ = ran(tmp_path, "env", seed=41)
    told = dict(line.split("=", 1) for line in run.stdout.read_text().splitlines() if "=" in line)
    assert "host-secret" not in told.values()
    expected = {"PROCTOR_TASK": "tests/toy", "PROCTOR_TIER": "mini", "PROCTOR_DEADLINE_S": "20", "PROCTOR_SEED": "41"}
    assert expected.items() <= told.items()


def test_submitting_in_the_first_instant_is_not_lost(tmp_path: Path) -> None:
    _, result = ran(tmp_path, ANSWER + "answer 2; exec submit --note \"$(printf 'odd \\377 note')\"")
    assert (result.ended, result.valid) == (Ended.SUBMITTED, True)


def test_shadowed_tools_and_planted_results_change_nothing(tmp_path: Path) -> None:
    planting = """
mkdir -p bin
for tool in score python python3 submit; do printf '#!/bin/sh\\necho planted' > bin/$tool; chmod +x bin/$tool; done
export PATH=/workspace/bin:$PATH PYTHONPATH=/workspace
planted='{"score": 0.0, "raw_score": 0.0, "valid": true, "status": "scored", "split": "visible", "origin": "agent"}'
for file in result.json scores.jsonl events.jsonl reward.txt reward.json run.json; do echo "$planted" > $file; done
echo 'raise SystemExit' > sitecustomize.py; echo 'raise SystemExit' > json.py
score; submit
PATH=${PATH#/workspace/bin:} /opt/proctor/bin/score --note real; echo evil > locked.txt; exit 0
"""
    run, result = ran(tmp_path, ANSWER + "answer 3.9" + planting)
    assert result.ended is Ended.EXITED and result.valid and result.raw_score not in (None, 0.0)
    assert run.stdout.read_text().startswith("planted\nplanted\n")
    assert [e.origin for e in entries(run)] == ["agent", "seal"]
    assert (run.workspace / "locked.txt").read_text() == "hands off\n"


def test_nothing_hidden_reaches_the_agent(tmp_path: Path) -> None:
    looking = "cp -r . /tmp/copy; score; score-log; clock; score --note again; score-log; env; cat /proc/self/mountinfo"
    run, result = ran(tmp_path, ANSWER + f"answer 2.5; {looking}; exit", silent_snapshots=3)
    assert result.sealed_score is not None
    told = run.stdout.read_bytes() + run.stderr.read_bytes()
    told += b"".join(p.read_bytes() for p in run.workspace.rglob("*") if p.is_file())
    visible, hidden = str(result.visible_best)[:8].encode(), str(result.sealed_score)[:8].encode()
    assert visible in told, "the search would find a score"
    assert hidden not in told and b"CANARY" not in told


# Faults of ours


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(ToyFaulty, "faults", 0)
    return monkeypatch


def test_a_scoring_that_failed_on_our_side_is_made_good_at_the_end(tmp_path: Path, faults: pytest.MonkeyPatch) -> None:
    faults.setenv("TOY_FAULTS", "1")
    run, result = ran(tmp_path, ANSWER + "answer 2.4; score; answer 9; score; exit", task="toy_faulty")
    assert [(e.origin, e.status) for e in entries(run)] == [
        ("agent", "error"),
        ("agent", "scored"),
        ("final", "scored"),
        ("seal", "scored"),
    ]
    assert result.valid and result.artefact_sha256 == entries(run)[0].sha256, "the better one is the one that failed"
    assert answers(run)[0]["status"] == "error" and "CANARY" not in run.stdout.read_text()


def test_the_sealing_is_tried_again_after_a_fault(tmp_path: Path, faults: pytest.MonkeyPatch) -> None:
    faults.setenv("TOY_FAULTS", "2")  # the final scoring and its repetition fail, then all is well
    run, result = ran(tmp_path, ANSWER + "answer 2.4; exit", task="toy_faulty")
    assert [(e.origin, e.status) for e in entries(run)][:2] == [("final", "error"), ("final", "error")]
    assert (result.ended, result.valid) == (Ended.INFRASTRUCTURE, False)
    faults.setattr(ToyFaulty, "faults", 1)
    run, result = ran(tmp_path / "again", ANSWER + "answer 2.4; exit", task="toy_faulty")
    assert [(e.origin, e.status) for e in entries(run)] == [("final", "error"), ("final", "scored"), ("seal", "scored")]
    assert (result.ended, result.valid) == (Ended.EXITED, True)


def test_a_task_that_always_fails_is_no_failure_of_the_agent(tmp_path: Path, faults: pytest.MonkeyPatch) -> None:
    faults.setenv("TOY_FAULTS", "99")
    _, result = ran(tmp_path, ANSWER + "answer 2.4; score; exit", task="toy_faulty")
    assert (result.ended, result.valid, result.raw_score) == (Ended.INFRASTRUCTURE, False, None)
    assert "BadZipFile" in result.reason


def test_a_fault_of_ours_does_not_use_up_a_call(tmp_path: Path) -> None:
    run, result = ran(tmp_path, ANSWER + "answer 2.4; for i in 1 2 3; do score; done; exit", task="toy_capped")
    assert [a["status"] for a in answers(run)] == ["scored", "scored", "error"]
    assert answers(run)[2]["message"] == "all 2 scorings are used up" and result.score_calls == 2


@pytest.mark.parametrize("step", ["final", "seal", "curve"])
def test_a_fault_after_the_agents_end_keeps_what_was_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the harness is broken")

    monkeypatch.setattr(Sealer, step, broken)
    run, result = ran(tmp_path, ANSWER + "answer 2.4; score; exit")
    assert result.visible_best == entries(run)[0].score and result.used_s is not None
    if step == "curve":
        assert (result.ended, result.valid) == (Ended.EXITED, True), "all that counts had been scored"
    else:
        assert (result.ended, result.valid, result.raw_score) == (Ended.INFRASTRUCTURE, False, None)
        assert result.reason == "RuntimeError: the harness is broken"


def test_an_agent_that_vanished_is_infrastructure_with_a_reason(tmp_path: Path) -> None:
    run = planned(tmp_path, "exit 0")
    (tmp_path / "agents/agent.sh").unlink()
    result = work(run)
    assert result.ended is Ended.INFRASTRUCTURE and "agent.sh" in result.reason
    assert run.result() == result


def test_a_box_that_cannot_be_used_is_infrastructure_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned(tmp_path, "exit 0")
    kind = boxes.get_kind("bwrap")
    broken = kind.capabilities().__class__(False, False, kind.capabilities().enforced, ("no user namespaces",))
    monkeypatch.setattr(type(kind), "capabilities", lambda _: broken)
    result = work(run)
    assert result.ended is Ended.INFRASTRUCTURE and "no user namespaces" in result.reason and "doctor" in result.reason


def test_a_run_is_done_once(tmp_path: Path) -> None:
    run, _ = ran(tmp_path, "exit 0")
    with pytest.raises(UsageError, match="has its result already"):
        work(run)
    run.result_file.unlink()
    with pytest.raises(UsageError, match="begun by a worker that is gone"):
        work(run)
    with run.lock(), pytest.raises(BusyError):
        run.lock(0.05).__enter__()


def test_the_bare_host_is_labelled_in_the_result(tmp_path: Path) -> None:
    run = planned(tmp_path, ANSWER + "answer 2.5; score; submit", box="none")
    assert worker(run).wait(60) == 0
    result = run.result()
    assert result is not None
    assert (result.box, result.valid, result.ended) == ("none", True, Ended.SUBMITTED)
    assert [f.rule for f in result.integrity] == ["no_box"] and result.enforced.network is None


def test_a_deep_folder_with_an_odd_name(tmp_path: Path) -> None:
    """A socket address holds 107 bytes, a run folder may be deeper."""
    root = tmp_path / "Prüfungen 2026 🦊" / ("x" * 100)
    run, result = ran(root, ANSWER + "answer 2.5; score; submit")
    assert len(os.fsencode(run.socket)) > 200
    assert (result.ended, result.valid, result.score_calls) == (Ended.SUBMITTED, True, 1)


def test_files_are_scored_as_they_are(tmp_path: Path) -> None:
    given = tmp_path / "given files"
    (given / "sub dir").mkdir(parents=True)
    (given / "answer.json").write_text('{"slope": 2.2}')
    (given / "sub dir/ü.txt").write_text("x")
    (given / "locked.txt").write_text("mine")
    (given / "PROMPT.md").write_text("do something else")
    run, result = ran(tmp_path, f"files:{given}")
    assert result.valid and result.ended is Ended.SUBMITTED
    kept = run.snapshots / str(result.artefact) / "files"
    assert (kept / "sub dir/ü.txt").read_text() == "x"
    assert (kept / "locked.txt").read_text() == "hands off\n"
    assert "research exam" in (kept / "PROMPT.md").read_text()


def test_command_arguments_reach_the_program(tmp_path: Path) -> None:
    agent = script(tmp_path / "a, b", 'printf "<%s>" "$@"', name="my agent.sh").removeprefix("command:")
    run, _ = ran(tmp_path, f"command:'{agent}' one 'two three' \"\" --x=$y")
    assert run.stdout.read_text() == "<one><two three><><--x=$y>"


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    from proctor.run.folder import RunFolder

    with pytest.raises(ProctorError, match=r"is not a run folder: run\.json cannot be read"):
        work(RunFolder(tmp_path))
