"""score@k and bootstrap intervals."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.stats import bootstrap_interval, score_at_k

scores = st.lists(st.floats(0, 2), min_size=1, max_size=9)


@st.composite
def scores_and_k(draw: st.DrawFn) -> tuple[list[float], int]:
    values = draw(scores)
    return values, draw(st.integers(1, len(values)))


@given(scores_and_k())
def test_score_at_k_is_the_mean_of_the_best_of_every_subset(case: tuple[list[float], int]) -> None:
    values, k = case
    assert score_at_k(values, k) == pytest.approx(fmean(max(subset) for subset in combinations(values, k)))


@given(scores)
def test_score_at_one_is_the_mean_and_at_n_the_best(values: list[float]) -> None:
    assert score_at_k(values, 1) == pytest.approx(fmean(values))
    assert score_at_k(values, len(values)) == pytest.approx(max(values))


@given(scores)
def test_more_attempts_are_never_worse(values: list[float]) -> None:
    curve = [score_at_k(values, k) for k in range(1, len(values) + 1)]
    assert all(b >= a - 1e-12 for a, b in pairwise(curve))


@given(scores_and_k(), st.randoms())
def test_order_does_not_matter(case: tuple[list[float], int], random: object) -> None:
    values, k = case
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert score_at_k(shuffled, k) == pytest.approx(score_at_k(values, k))


def test_many_runs_do_not_overflow() -> None:
    values = np.linspace(0, 1, 2000).tolist()
    assert score_at_k(values, 1000) == pytest.approx(1, abs=1e-2)


def test_k_beyond_the_runs_is_an_error_unless_clipped() -> None:
    with pytest.raises(ValueError, match="best of 3"):
        score_at_k([0.1, 0.4], 3)
    assert score_at_k([0.1, 0.4], 3, clip=True) == 0.4


@pytest.mark.parametrize(("values", "k"), [([], 1), ([0.1, math.nan], 1), ([math.inf], 1), ([0.1], 0)])
def test_what_cannot_be_scored_is_refused(values: list[float], k: int) -> None:
    with pytest.raises(ValueError, match=r"at least|finite"):
        score_at_k(values, k)


def test_interval_is_reproducible_and_holds_the_mean() -> None:
    runs = {"a": [0.1, 0.3, 0.2, 0.6], "b": [1.0, 0.9, 1.2]}
    interval = bootstrap_interval(runs)
    assert interval == bootstrap_interval(runs)
    assert interval is not None
    assert interval.low < fmean([fmean(values) for values in runs.values()]) < interval.high
    assert interval.level == 0.95
    assert bootstrap_interval(runs, seed=1) != interval


def test_interval_of_a_mean_agrees_with_its_standard_error() -> None:
    """For many runs the percentile bootstrap of a mean is the normal interval."""
    values = np.random.default_rng(3).normal(size=400)
    interval = bootstrap_interval({"a": values.tolist()})
    assert interval is not None
    half = 1.96 * values.std() / 20
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_interval_matches_resampling_by_hand() -> None:
    values, k = [0.0, 0.2, 0.9], 2
    interval = bootstrap_interval({"a": values}, k=k, draws=20_000)
    rng = np.random.default_rng(9)
    by_hand = [score_at_k(rng.choice(values, 3).tolist(), k) for _ in range(4_000)]
    assert interval is not None
    assert interval.low == pytest.approx(np.quantile(by_hand, 0.025), abs=0.07)
    assert interval.high == pytest.approx(np.quantile(by_hand, 0.975), abs=0.07)


def test_tasks_are_resampled_apart_and_may_have_their_own_k() -> None:
    runs = {"seen": [0.0, 1.0], "unseen": [0.5, 0.5]}
    assert bootstrap_interval(runs, k={"seen": 2, "unseen": 1}) == bootstrap_interval(runs, k=2)
    narrow, wide = bootstrap_interval(runs, level=0.5), bootstrap_interval(runs)
    assert narrow is not None
    assert wide is not None
    assert wide.low == 0.25
    assert wide.high == 0.75
    assert narrow.high - narrow.low <= wide.high - wide.low


def test_a_single_run_has_no_interval() -> None:
    assert bootstrap_interval({"a": [0.1, 0.2], "b": [0.3]}) is None


def test_bad_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="no tasks"):
        bootstrap_interval({})
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval({"a": [0.1, 0.2]}, level=95)
    with pytest.raises(ValueError, match="draw"):
        bootstrap_interval({"a": [0.1, 0.2]}, draws=0)
    with pytest.raises(ValueError, match="finite"):
        bootstrap_interval({"a": [0.1, math.nan]})
