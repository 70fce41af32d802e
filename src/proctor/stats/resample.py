"""What k attempts would have brought (score@k), and how sure we are of a mean (bootstrap intervals)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

DRAWS = 5000
"""Bootstrap resamples, as in RE-Bench's analysis."""


@dataclass(frozen=True)
class Interval:
    """An interval that covers the true value in about `level` of repetitions of the whole experiment."""

    low: float
    high: float
    level: float


def score_at_k(scores: Sequence[float], k: int, *, clip: bool = False) -> float:
    """Expected best of k runs: the mean of the maximum over all subsets of k of the runs.

    Exact and deterministic; no sampling. Higher is better, so that it is meant for normalised scores. Map invalid
    runs to 0 beforehand (RE-Bench's rule), and leave out runs that this machine failed. For a task whose score the
    agent cannot see, choosing the best of k is not open to it: use k = 1, the mean.

    Args:
        scores: One finite score for each run, in any order.
        k: Size of the subsets, at least 1.
        clip: Whether a k above the number of runs counts as that number; otherwise it is an error.

    Raises:
        ValueError: No scores, a score that is not finite, or a k that is out of range.

    Source: the estimator that RE-Bench's authors use for score@k (arXiv 2411.15114; weights as in arXiv 2406.06647).
    """
    values = _finite_array(scores)
    return float(np.sort(values)[::-1] @ _weights(len(values), _checked_k(k, len(values), clip)))


def bootstrap_interval(
    runs: Mapping[str, Sequence[float]],
    *,
    k: int | Mapping[str, int] = 1,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap interval of the mean over tasks of score@k.

    Every draw resamples each task's runs with replacement, as many as there are, applies `score_at_k` and averages
    over the tasks. With k = 1 score@k is the mean: given relative gains, this is then the interval of Agg (which is
    linear in the scores); given one task, of that task's mean. Where the runs have a long upper tail, such
    intervals lie too low; with few runs they are too narrow.

    Args:
        runs: Finite scores of each task's runs, higher being better.
        k: Size of the subsets, for all tasks or for each (1 for tasks whose score the agent cannot see). More than
            a task's number of runs counts as that number.
        level: Coverage, between 0 and 1.
        draws: Number of resamples.
        seed: Seed of the resampling; the same seed gives the same interval.

    Returns:
        The interval, or None if a task has fewer than two runs: resampling one run shows no spread, and an interval
        that leaves out a task's spread claims too much.

    Raises:
        ValueError: No tasks, a score that is not finite, or a parameter that is out of range.

    Source: arXiv 2411.15114 (resampling within tasks, 5000 draws, percentiles).
    """
    if not runs:
        raise ValueError("no tasks to resample")
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, not {level}")
    if draws < 1:
        raise ValueError(f"at least one draw is needed, not {draws}")
    if any(len(scores) < 2 for scores in runs.values()):
        return None
    rng = np.random.default_rng(seed)
    total: FloatArray = np.zeros(draws)
    for task, scores in runs.items():
        values = _finite_array(scores)
        n = len(values)
        size = _checked_k(k if isinstance(k, int) else k[task], n, clip=True)
        samples = values[rng.integers(0, n, size=(draws, n))]
        total += np.sort(samples, axis=1)[:, ::-1] @ _weights(n, size)
    low, high = np.quantile(total / len(runs), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)


def _finite_array(scores: Sequence[float]) -> FloatArray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError("at least one score is needed, in one list")
    if not np.isfinite(values).all():
        raise ValueError("a score is not finite; map invalid runs to 0, and leave out failed ones, beforehand")
    return values


def _checked_k(k: int, n: int, clip: bool) -> int:
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    if k > n and not clip:
        raise ValueError(f"the best of {k} cannot be told from {n} runs")
    return min(k, n)


def _weights(n: int, k: int) -> FloatArray:
    """Chance that the i-th largest of n values is the largest of a random subset of k: C(n-i, k-1) / C(n, k)."""
    subsets = math.comb(n, k)
    return np.array([math.comb(n - i, k - 1) / subsets for i in range(1, n + 1)])
