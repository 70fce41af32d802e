"""Score over time."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.spec import Direction, ScoreEntry
from proctor.stats import best_so_far, budget_curve, score_points

points = st.lists(st.tuples(st.floats(0, 100), st.one_of(st.none(), st.floats(-5, 5))), max_size=12)


def entry(elapsed_s: float, score: float | None, **changes: Any) -> ScoreEntry:
    facts: dict[str, Any] = {
        "n": 0,
        "origin": "agent",
        "split": "visible",
        "elapsed_s": elapsed_s,
        "at": datetime(2026, 11, 30, tzinfo=UTC),
        "status": "scored" if score is not None else "invalid",
        "score": score,
        "message": "",
    }
    return ScoreEntry(**(facts | changes))


def test_points_are_of_one_split_and_in_order_of_time() -> None:
    log = [
        entry(30, 2.0),
        entry(10, 3.0),
        entry(20, None),
        entry(15, 1.0, split="hidden", origin="silent"),
        entry(40, 0.1, status="error"),
    ]
    assert score_points(log) == [(10, 3.0), (20, None), (30, 2.0), (40, None)]
    assert score_points(log, "hidden") == [(15, 1.0)]
    assert score_points(log, "hidden", origins=["seal"]) == []


def test_best_so_far_keeps_improvements_only() -> None:
    log = [(1.0, 3.0), (2.0, None), (3.0, 3.5), (4.0, 2.0), (5.0, 2.0), (6.0, math.nan)]
    assert best_so_far(log, "lower") == [(1.0, 3.0), (4.0, 2.0)]
    assert best_so_far(log, "higher") == [(1.0, 3.0), (3.0, 3.5)]
    assert best_so_far(log, "lower", initial=2.5) == [(0.0, 2.5), (4.0, 2.0)]


@given(points, st.sampled_from(list(Direction)))
def test_best_so_far_only_gets_better_and_ends_at_the_best(
    log: list[tuple[float, float | None]], direction: Direction
) -> None:
    steps = best_so_far(log, direction)
    assert all(direction.better(b, a) for (_, a), (_, b) in pairwise(steps))
    valid = [score for _, score in log if score is not None]
    if valid:
        assert steps[-1][1] == (min(valid) if direction is Direction.LOWER else max(valid))
    else:
        assert steps == []


def test_curve_is_the_mean_of_step_functions_and_says_over_how_many() -> None:
    runs = [[(10.0, 3.0), (30.0, 1.0)], [(20.0, 2.0)], [(5.0, None)]]
    curve = budget_curve(runs, [0, 10, 20, 30], "lower")
    assert curve.mean == (None, 3.0, 2.5, 1.5)
    assert curve.n == (0, 1, 2, 2)
    assert curve.runs == ((None, 3.0, 3.0, 1.0), (None, None, 2.0, 2.0), (None, None, None, None))


def test_with_the_starting_score_every_run_counts_at_all_times() -> None:
    curve = budget_curve([[(10.0, 3.0)], [(20.0, 5.0)]], [20, 0], "lower", initial=4.0)
    assert curve.times == (0, 20)
    assert curve.mean == (4.0, 3.5)
    assert curve.n == (2, 2)


def test_a_curve_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        budget_curve([], [1], "lower")
    with pytest.raises(ValueError, match="at least one run"):
        budget_curve([[]], [], "lower")
