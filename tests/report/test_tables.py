"""Tables: outcomes add up, numbers come with their reasons, unlike runs are not silently pooled."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest

from proctor.errors import ProctorError
from proctor.report import load, render
from proctor.report.standings import standings
from proctor.report.tables import Cell, enforcement, exams, findings, outcome_counts
from proctor.spec import Direction, Ended, Enforced, Finding, Protocol, Result, RunSpec
from proctor.stats import Outcome, aggregate, score_at_k
from tests.support.results import EXAMS, RIVAL, TUNER, a_result, a_spec, an_experiment, write_experiment


def one_cell(tmp_path: Path, *results: Result | None, **spec: object) -> Cell:
    """The one cell of an experiment with these results (None for an unfinished run)."""
    runs = []
    for i, result in enumerate(results):
        told = a_spec(run_id=f"r{i}", repeat=i, **spec)
        runs.append((told, result and result.model_copy(update={"run_id": f"r{i}"}), ()))
    ((cell,),) = (exam.cells for exam in exams(load([write_experiment(tmp_path, "unit", runs)])))
    return cell


def test_every_run_is_in_one_cell_and_has_one_outcome(tmp_path: Path) -> None:
    records = load([an_experiment(tmp_path)])
    counts = outcome_counts(records)
    assert sum(counts.values()) == 12
    assert [n for outcome, n in counts.items() if outcome is not Outcome.SCORED] == [1, 1, 1, 0, 1]
    cells = [cell for exam in exams(records) for cell in exam.cells]
    assert sorted(r.spec.run_id for cell in cells for r in cell.records) == sorted(r.spec.run_id for r in records)
    assert sum(cell.summary.n_runs for cell in cells) == 12


def test_numbers_of_a_cell(tmp_path: Path) -> None:
    scores = [2.5, 2.2, 3.0]
    results = [a_result(raw_score=s, sealed_score=s, visible_best=s - 0.1, used_s=1000.0 + s) for s in scores]
    cell = one_cell(tmp_path, *results, None)
    assert cell.mean.value == pytest.approx(fmean(scores))
    assert cell.std.value == pytest.approx(stdev(scores))
    assert cell.success_rate.value == 1
    assert cell.relative_gain.value == pytest.approx((3.438 - fmean(scores)) / 3.438)
    assert cell.normalised.value == pytest.approx((3.438 - fmean(scores)) / (3.438 - 2.05))
    assert cell.optimism.value == pytest.approx(0.1)
    assert cell.used_s.value == pytest.approx(1000 + fmean(scores))
    assert cell.summary.outcomes[Outcome.UNFINISHED] == 1


def test_normalised_scores_are_clipped_run_by_run(tmp_path: Path) -> None:
    cell = one_cell(tmp_path, a_result(raw_score=5.0), a_result(raw_score=2.05))
    assert cell.normalised.value == pytest.approx(0.5)


def test_missing_numbers_say_why(tmp_path: Path) -> None:
    bare = a_result(start_score=None, reference_score=None, used_s=None)
    cell = one_cell(tmp_path, bare)
    reasons = {
        "std": "one valid run",
        "relative_gain": "no start score, or it is 0",
        "normalised": "start or reference score unknown",
        "visible_best": "no visible score",
        "sealed": "no sealed score",
        "optimism": "no sealed score",
        "used_s": "not recorded",
    }
    assert {name: getattr(cell, name).why for name in reasons} == reasons
    assert all(getattr(cell, name).value is None for name in reasons)


def test_a_failed_cell_shows_no_number_at_all(tmp_path: Path) -> None:
    cell = one_cell(tmp_path, a_result(valid=False, raw_score=None, visible_best=2.0, used_s=3.0), None)
    numbers = (cell.mean, cell.std, cell.relative_gain, cell.normalised, cell.visible_best, cell.used_s)
    assert {(n.value, n.why) for n in numbers} == {(None, "no valid score in 2 runs")}
    assert cell.success_rate.value == 0


def test_published_runs_have_nothing_sealed(tmp_path: Path) -> None:
    cell = one_cell(tmp_path, a_result(protocol=Protocol.PUBLISHED), protocol=Protocol.PUBLISHED)
    assert cell.sealed.why == "published protocol: nothing is sealed"


def test_unlike_conditions_in_a_cell_are_told(tmp_path: Path) -> None:
    cell = one_cell(tmp_path, a_result(box="none", agent_version="2"), a_result())
    assert cell.unboxed == 1
    assert cell.mixed == (
        "agent version differs between runs: 0.1.0 and 2",
        "box differs between runs: bwrap and none",
    )


def test_different_budgets_are_different_exams(tmp_path: Path) -> None:
    runs = []
    for i, budget_s in enumerate((60.0, 120.0)):
        spec = a_spec(run_id=f"r{i}", budget_s=budget_s)
        runs.append((spec, a_result(run_id=f"r{i}", budget_s=budget_s), ()))
    records = load([write_experiment(tmp_path, "unit", runs)])
    assert [exam.key.budget_s for exam in exams(records)] == [60, 120]
    (row,) = standings(exams(records))
    assert row.agg.value is None
    assert row.agg.why == row.normalised.why == "language_modeling ran with two budgets"


def test_results_that_disagree_on_the_direction_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProctorError, match="disagree on the metric"):
        one_cell(tmp_path, a_result(), a_result(direction=Direction.HIGHER))


def test_start_scores_that_differ_are_not_averaged(tmp_path: Path) -> None:
    runs = [
        (a_spec(run_id=f"r{i}"), a_result(run_id=f"r{i}", start_score=start), ()) for i, start in enumerate((3.0, 4.0))
    ]
    (exam,) = exams(load([write_experiment(tmp_path, "unit", runs)]))
    assert exam.start.value is None
    assert exam.start.why == "start scores differ: 3.000 and 4.000"
    (row,) = standings([exam])
    assert row.agg.value is None
    assert any("starting score" in reason for reason in row.left_out)


def test_an_exam_without_results_is_still_there(tmp_path: Path) -> None:
    (exam,) = exams(load([write_experiment(tmp_path, "unit", [(a_spec(), None, ())])]))
    assert (exam.metric, exam.direction, exam.start.why) == (None, None, "no result yet")
    (row,) = standings([exam])
    assert (row.agg.why, row.n_runs, row.n_attempts, row.success_rate.value) == ("no result yet", 1, 0, None)


def test_agents_are_ranked_by_their_mean_whichever_way_is_better(tmp_path: Path) -> None:
    for exam in exams(load([an_experiment(tmp_path)])):
        means = [cell.mean.value for cell in exam.cells if cell.mean.value is not None]
        assert exam.direction is not None
        assert all(exam.direction.better(a, b) for a, b in pairwise(means))


def test_standings_follow_from_the_statistics(tmp_path: Path) -> None:
    records = load([an_experiment(tmp_path)])
    rows = {(row.suite, row.agent): row for row in standings(exams(records))}
    assert len(rows) == 4
    onecard = [exam for exam in EXAMS if exam.suite == "onecard"]
    rival = [r for r in records if r.agent == RIVAL.label and r.outcome.counts_for_agent]
    expected = aggregate(
        {exam.task: [r.score for r in rival if r.spec.task == exam.task] for exam in onecard},
        {exam.task: exam.start for exam in onecard},
        {exam.task: exam.direction for exam in onecard},
    )
    row = rows["onecard", RIVAL.label]
    assert row.agg.value == pytest.approx(expected.value)
    assert (row.agg_tasks, row.n_tasks) == (2, 2)
    assert (row.n_valid, row.n_attempts, row.n_runs) == (2, 3, 4)
    voided = rows["rebench", RIVAL.label]
    assert sorted(voided.per_task["prefix_sum"])[0] == 0.0, "a voided attempt counts 0 in score@k"
    assert voided.normalised.value == pytest.approx(max(voided.per_task["prefix_sum"]) / 2)
    assert (voided.k, voided.at_k.value) == (2, score_at_k(voided.per_task["prefix_sum"], 2))
    assert rows["rebench", TUNER.label].agg_interval is not None
    assert rows["onecard", TUNER.label].agg_interval is None, "one task has a single run"


def test_infrastructure_failures_count_nowhere_in_standings(tmp_path: Path) -> None:
    specs: list[RunSpec] = [a_spec(run_id=f"r{i}") for i in range(3)]
    broken = a_result(run_id="r2", ended=Ended.INFRASTRUCTURE, raw_score=0.001)
    runs = [(specs[0], a_result(run_id="r0"), ()), (specs[1], a_result(run_id="r1"), ()), (specs[2], broken, ())]
    (row,) = standings(exams(load([write_experiment(tmp_path, "unit", runs)])))
    assert row.per_task["language_modeling"] == pytest.approx([(3.438 - 2.5) / (3.438 - 2.05)] * 2)
    assert (row.n_valid, row.n_attempts, row.n_runs) == (2, 2, 3)


def test_findings_are_listed_once_with_void_ones_first(tmp_path: Path) -> None:
    rows = findings(load([an_experiment(tmp_path)]))
    assert [(row.finding.severity, row.where.split()[0]) for row in rows] == [
        ("void", "scoring"),
        ("warning", "result"),
    ]


def test_enforcement_is_per_box_with_the_unboxed_first(tmp_path: Path) -> None:
    rows = enforcement(load([an_experiment(tmp_path)]))
    assert [(row.box, row.n_runs) for row in rows] == [("none", 1), ("bwrap", 10)]
    assert set(rows[0].held.values()) == {None}
    assert set(rows[0].held) == set(Enforced.model_fields)
    assert not rows[0].no_gpu


def test_a_run_without_a_gpu_is_not_said_to_lack_a_lease(tmp_path: Path) -> None:
    result = a_result(enforced=Enforced(network="own network namespace"))
    records = load([write_experiment(tmp_path, "unit", [(a_spec(gpus=0, device="cpu"), result, ())])])
    assert render(records, "html").count("no GPU in use") == 1
    assert render(records, "html").count('class="not"') == 4
    assert render(records, "md").count("not enforced") == 4


def test_notes_do_not_void_anything(tmp_path: Path) -> None:
    note = Finding(rule="slow_import", severity="note", evidence="4 s")
    assert one_cell(tmp_path, a_result(integrity=(note,))).summary.n_valid == 1
