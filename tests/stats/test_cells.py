"""Outcomes, cell summaries and behaviour."""

from __future__ import annotations

from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.spec import Ended, Finding, Result
from proctor.stats import Outcome, behaviour, outcome_of, summarise
from tests.stats.test_curves import entry
from tests.support.results import a_result

VOID = (Finding(rule="causality", severity="void", evidence="position 3 changes position 2"),)


def failed(**changes: object) -> Result:
    return a_result(valid=False, raw_score=None, **changes)


ONE_OF_EACH: dict[Outcome, Result | None] = {
    Outcome.SCORED: a_result(raw_score=2.0),
    Outcome.INVALID: failed(),
    Outcome.VOIDED: failed(integrity=VOID),
    Outcome.INFRASTRUCTURE: failed(ended=Ended.INFRASTRUCTURE),
    Outcome.STOPPED: failed(ended=Ended.KILLED),
    Outcome.UNFINISHED: None,
}


def test_every_outcome_is_told_apart() -> None:
    assert set(ONE_OF_EACH) == set(Outcome)
    for outcome, result in ONE_OF_EACH.items():
        assert outcome_of(result) is outcome


def test_a_deadline_or_a_kill_does_not_take_a_valid_score_away() -> None:
    for ended in (Ended.DEADLINE, Ended.KILLED, Ended.EXITED):
        assert outcome_of(a_result(ended=ended, exit_code=-9)) is Outcome.SCORED


def test_a_score_from_a_machine_that_failed_does_not_count() -> None:
    assert outcome_of(a_result(ended=Ended.INFRASTRUCTURE)) is Outcome.INFRASTRUCTURE


def test_a_kill_by_a_limit_is_the_agents() -> None:
    assert outcome_of(failed(ended=Ended.KILLED, limit="memory")) is Outcome.INVALID


def test_a_voided_scoring_does_not_void_a_later_valid_one() -> None:
    assert outcome_of(a_result(integrity=VOID)) is Outcome.SCORED


def test_only_the_agents_own_failures_lower_the_success_rate() -> None:
    summary = summarise(list(ONE_OF_EACH.values()))
    assert summary.n_runs == len(Outcome)
    assert all(n == 1 for n in summary.outcomes.values())
    assert summary.n_attempts == 3
    assert summary.success_rate == pytest.approx(1 / 3)


def test_mean_and_sample_standard_deviation() -> None:
    values = [2.0, 3.0, 7.0]
    summary = summarise([a_result(raw_score=v) for v in values])
    assert summary.mean == 4.0
    assert summary.std == pytest.approx(stdev(values))
    assert summary.best == 2.0
    assert summary.success_rate == 1


def test_what_cannot_be_known_is_none() -> None:
    one = summarise([a_result(raw_score=2.0)])
    assert (one.mean, one.std) == (2.0, None)
    none = summarise([None, failed(ended=Ended.INFRASTRUCTURE)])
    assert (none.mean, none.std, none.best, none.success_rate) == (None, None, None, None)


@given(st.lists(st.sampled_from(list(Outcome)), min_size=1, max_size=30))
def test_outcomes_add_up(chosen: list[Outcome]) -> None:
    summary = summarise([ONE_OF_EACH[outcome] for outcome in chosen])
    assert sum(summary.outcomes.values()) == summary.n_runs == len(chosen)
    assert {o: n for o, n in summary.outcomes.items() if n} == {o: chosen.count(o) for o in set(chosen)}


def test_cells_do_not_mix_tasks() -> None:
    with pytest.raises(ValueError, match="one task"):
        summarise([a_result(), a_result(task="forecasting")])
    with pytest.raises(ValueError, match="without runs"):
        summarise([])


def test_behaviour_counts_the_agents_own_calls() -> None:
    log = [
        entry(60, None),
        entry(120, 3.0),
        entry(180, 2.0),
        entry(240, 2.5),
        entry(300, None, status="error"),
        entry(400, 1.0, origin="final"),
        entry(50, 1.0, origin="silent", split="hidden"),
    ]
    seen = behaviour(log, "lower", used_s=1800)
    assert (seen.calls, seen.valid, seen.invalid, seen.errors) == (5, 3, 1, 1)
    assert seen.calls_per_hour == 10
    assert (seen.first_valid_s, seen.last_gain_s) == (120, 180)


def test_behaviour_of_an_agent_that_never_scored() -> None:
    seen = behaviour([], "lower", used_s=None)
    assert (seen.calls, seen.calls_per_hour, seen.first_valid_s, seen.last_gain_s) == (0, None, None, None)
