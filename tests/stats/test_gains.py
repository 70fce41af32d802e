"""Relative gain, Agg, normalised score and optimism."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.spec import Direction
from proctor.stats import aggregate, normalise, optimism, relative_gain

finite = st.floats(-1e6, 1e6)
nonzero = finite.filter(lambda x: abs(x) > 1e-6)
unknown = st.sampled_from([None, math.nan, math.inf, -math.inf])


def test_gain_is_a_share_of_the_baseline() -> None:
    assert relative_gain(0.6, 0.5, "higher") == pytest.approx(0.2)
    assert relative_gain(0.4, 0.5, "lower") == pytest.approx(0.2)
    assert relative_gain(0.6, 0.5, Direction.LOWER) == pytest.approx(-0.2)


def test_gain_over_a_negative_baseline_is_positive_when_better() -> None:
    """ln(ms) of a kernel faster than a millisecond."""
    assert relative_gain(-0.9, -0.4, "lower") == pytest.approx(1.25)
    assert relative_gain(-0.1, -0.4, "lower") == pytest.approx(-0.75)


def test_there_is_no_gain_over_zero() -> None:
    assert relative_gain(0.13, 0.0, "higher") is None


@given(finite, nonzero)
def test_directions_are_mirror_images(score: float, baseline: float) -> None:
    higher, lower = relative_gain(score, baseline, "higher"), relative_gain(score, baseline, "lower")
    assert higher is not None
    assert lower is not None
    assert higher == -lower
    assert relative_gain(-score, -baseline, "lower") == higher


@given(finite, nonzero, st.sampled_from(list(Direction)))
def test_gain_has_the_sign_of_better(score: float, baseline: float, direction: Direction) -> None:
    gain = relative_gain(score, baseline, direction)
    assert gain is not None
    assert not (gain > 0) or direction.better(score, baseline)
    assert not (gain < 0) or direction.better(baseline, score)


@given(unknown, finite, finite)
def test_unknown_stays_unknown(missing: float | None, a: float, b: float) -> None:
    assert relative_gain(missing, a, "lower") is None
    assert relative_gain(a, missing, "lower") is None
    assert normalise(missing, a, b) is None
    assert normalise(a, missing, b) is None
    assert normalise(a, b, missing) is None
    assert optimism(missing, a, "higher") is None
    assert optimism(a, missing, "higher") is None


def test_an_unknown_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="upwards"):
        relative_gain(1.0, 1.0, "upwards")


def test_normalised_score_of_both_directions() -> None:
    """The kernel's published start and reference in ln(ms), and its best human run."""
    assert normalise(1.56, 1.56, 0.47) == 0
    assert normalise(0.47, 1.56, 0.47) == pytest.approx(1)
    assert normalise(-0.405, 1.56, 0.47) == pytest.approx(1.803, abs=1e-3)
    assert normalise(0.0637, 0.0, 0.1273) == pytest.approx(0.5, abs=1e-3)


def test_below_the_start_is_zero_and_equal_ends_are_unknown() -> None:
    assert normalise(2.0, 1.56, 0.47) == 0
    assert normalise(1.0, 0.5, 0.5) is None


def test_optimism_is_positive_when_the_visible_score_promised_too_much() -> None:
    assert optimism(0.90, 0.88, "higher") == pytest.approx(0.02)
    assert optimism(2.10, 2.15, "lower") == pytest.approx(0.05)


TASKS = {
    "T1": (3.438, "lower", 2.2325),
    "T2": (0.343, "higher", 0.6813),
    "T3": (0.660, "higher", 0.8322),
    "T4": (0.706, "higher", 0.7663),
    "T5": (0.806, "higher", 0.9632),
    "T6": (0.384, "lower", 0.3809),
    "T7": (0.793, "higher", 0.9211),
}
"""Baseline, direction and mean score of Sonnet 4.6 as printed in arXiv 2605.17046 (tables 2 and 4)."""


def test_the_published_agg_is_found_again() -> None:
    result = aggregate(
        {task: [mean] for task, (_, _, mean) in TASKS.items()},
        {task: baseline for task, (baseline, _, _) in TASKS.items()},
        {task: direction for task, (_, direction, _) in TASKS.items()},
    )
    assert result.value is not None
    assert round(result.value, 3) == 0.293
    assert [round(result.gains[task], 3) for task in TASKS] == [0.351, 0.986, 0.261, 0.085, 0.195, 0.008, 0.162]
    assert result.n_tasks == 7


def test_failed_runs_leave_the_mean_and_lower_the_success_rate() -> None:
    whole = aggregate({"a": [2.0, 1.0]}, {"a": 2.0}, {"a": "lower"})
    failed = aggregate({"a": [2.0, None, 1.0, math.nan]}, {"a": 2.0}, {"a": "lower"})
    assert failed.value == whole.value == 0.25
    assert whole.success_rate == 1
    assert failed.success_rate == 0.5


def test_a_task_that_does_not_count_says_why() -> None:
    result = aggregate(
        {"good": [0.6], "failed": [None], "empty": [], "zero": [0.1], "uncalibrated": [0.1]},
        {"good": 0.5, "failed": 0.5, "empty": 0.5, "zero": 0.0, "uncalibrated": None},
        dict.fromkeys(["good", "failed", "empty", "zero", "uncalibrated"], "higher"),
    )
    assert result.value == pytest.approx(0.2)
    assert result.n_tasks == 1
    assert dict(result.left_out) == {
        "failed": "no valid run",
        "empty": "no runs",
        "zero": "the starting score is 0",
        "uncalibrated": "the starting score is not known",
    }


def test_nothing_to_aggregate_is_an_error_or_unknown_never_zero() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        aggregate({}, {}, {})
    assert aggregate({"a": [None]}, {"a": 1.0}, {"a": "lower"}).value is None
