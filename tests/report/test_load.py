"""Reading experiment folders: nothing is dropped, and what cannot be read is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import ProctorError
from proctor.report import load
from proctor.stats import Outcome
from tests.support.results import BEGAN, EXAMS, a_result, a_spec, an_experiment, score_log, write_experiment


def edit(place: Path, **changes: Any) -> None:
    place.write_text(json.dumps(json.loads(place.read_text()) | changes))


def test_every_planned_run_comes_back_once_in_the_order_of_the_plan(tmp_path: Path) -> None:
    folder = an_experiment(tmp_path)
    planned = json.loads((folder / "experiment.json").read_text())["runs"]
    records = load([folder])
    assert [record.spec.run_id for record in records] == planned
    assert len(planned) == 12
    assert {record.outcome for record in records} == set(Outcome) - {Outcome.STOPPED}


def test_a_run_without_a_result_is_unfinished_and_keeps_its_scores(tmp_path: Path) -> None:
    (record,) = (r for r in load([an_experiment(tmp_path)]) if r.result is None)
    assert record.outcome is Outcome.UNFINISHED
    assert len(record.scores) == 5
    assert record.score is None


def test_several_experiments_and_single_runs_can_be_read_together(tmp_path: Path) -> None:
    autumn, winter = an_experiment(tmp_path, "autumn"), an_experiment(tmp_path, "winter")
    assert len(load([autumn, winter / "runs" / "prefix_sum-tuner-0"])) == 13


def test_a_torn_last_line_of_the_log_is_left_out(tmp_path: Path) -> None:
    folder = an_experiment(tmp_path)
    with (folder / "runs" / "prefix_sum-tuner-0" / "scores.jsonl").open("a") as stream:
        stream.write('{"n": 99, "orig')
    assert [r for r in load([folder]) if r.problems] == []


Damage = Callable[[Path], object]
RUN = Path("runs") / "prefix_sum-tuner-0"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "unreadable result": (lambda f: (f / RUN / "result.json").write_text("{"), "result.json cannot be read"),
    "not text": (lambda f: (f / RUN / "result.json").write_bytes(b"\xff\xfe"), "result.json cannot be read"),
    "not an object": (lambda f: (f / RUN / "result.json").write_text("[]"), "result.json does not hold"),
    "higher schema of a result": (lambda f: edit(f / RUN / "result.json", schema=2), "result.json has schema 2"),
    "higher schema of a run": (lambda f: edit(f / RUN / "run.json", schema=7), "run.json has schema 7"),
    "unknown field": (lambda f: edit(f / RUN / "result.json", guess=1), "guess"),
    "another run's result": (lambda f: edit(f / RUN / "result.json", run_id="x"), "run_id 'x'"),
    "another task's result": (lambda f: edit(f / RUN / "result.json", task="x"), "task 'x'"),
    "not a number": (lambda f: edit(f / RUN / "result.json", raw_score=float("nan")), "raw_score is nan"),
    "valid without a score": (lambda f: edit(f / RUN / "result.json", raw_score=None), "holds no raw_score"),
    "bad line in the log": (
        lambda f: (f / RUN / "scores.jsonl").write_text('{"n": 0}\n'),
        r"scores\.jsonl, line 1 is not a valid ScoreEntry",
    ),
    "missing run": (lambda f: shutil.rmtree(f / RUN), "plans the run 'prefix_sum-tuner-0'"),
    "unplanned run": (
        lambda f: shutil.copytree(f / RUN, f / "runs" / "extra"),
        r"runs/extra is a run that .* does not plan",
    ),
    "plan without runs": (lambda f: (f / "experiment.json").write_text("{}"), "no list of run names"),
    "empty plan": (
        lambda f: (shutil.rmtree(f / "runs"), edit(f / "experiment.json", runs=[])),
        "no runs to report on",
    ),
    "higher schema of a plan": (lambda f: edit(f / "experiment.json", schema=2), "experiment.json has schema 2"),
    "no experiment": (lambda f: (f / "experiment.json").unlink(), "neither an experiment folder nor a run folder"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_and_never_skipped(tmp_path: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    folder = an_experiment(tmp_path)
    load([folder])
    damage(folder)
    with pytest.raises(ProctorError, match=message):
        load([folder])


def test_a_run_does_not_count_twice(tmp_path: Path) -> None:
    folder = an_experiment(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for second in (folder, copy, folder / RUN):
        with pytest.raises(ProctorError, match=r"is in .* and in"):
            load([folder, second])


def problems_of(tmp_path: Path, **changes: Any) -> tuple[str, ...]:
    spec = a_spec()
    scores = score_log(EXAMS[0], "seed", BEGAN)
    sealed = scores[-1].score
    result = a_result(**({"raw_score": sealed, "sealed_score": sealed} | changes))
    (record,) = load([write_experiment(tmp_path, "unit", [(spec, result, scores)])])
    return record.problems


def test_a_run_that_agrees_with_itself_has_no_problems(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw_score": 1.234, "sealed_score": 1.234}, "is in no line of the score log"),
        ({"sealed_score": 1.0}, "is not the sealed score"),
        ({"artefact_sha256": "0" * 64}, "for another artefact"),
        ({"relative_gain": 0.9}, "The recorded relative gain 0.9 does not follow"),
        ({"normalised_score": 7.0}, "The recorded normalised score 7 does not follow"),
        ({"agent": "someone else"}, "names the agent 'someone else'"),
    ],
)
def test_made_up_numbers_are_told(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (problem,) = problems_of(tmp_path, **changes)
    assert message in problem


def test_a_log_with_a_gap_is_told(tmp_path: Path) -> None:
    folder = an_experiment(tmp_path)
    log = folder / RUN / "scores.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2] + lines[3:]))
    (record,) = (r for r in load([folder]) if r.problems)
    assert "score log is not whole" in record.problems[0]
