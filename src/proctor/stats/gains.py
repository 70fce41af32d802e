"""Scores against a baseline: relative gain and Agg (1GC-7RC), normalised score (RE-Bench), optimism.

Unknown goes in as None and comes out as None. Nothing here ever turns a missing score into a number: for a metric
where lower is better, 0 would be a perfect score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proctor.spec import Direction


def known(value: float | None) -> float | None:
    """`value` if it is a finite number, otherwise None."""
    return value if value is not None and math.isfinite(value) else None


def relative_gain(score: float | None, baseline: float | None, direction: Direction | str) -> float | None:
    """How much better than the baseline a score is, as a share of the baseline's size; positive is better.

    (s - b) / |b| where higher is better, (b - s) / |b| where lower is. For a positive baseline this is 1GC-7RC's
    definition to the letter. Scores on a logarithmic scale (ln of milliseconds, say) may have a baseline at or below
    0, which that definition does not foresee: dividing by |b| keeps "positive is better" true for a negative
    baseline, and for a baseline of exactly 0 there is no relative gain. The size of the gain depends on the unit
    for such scores; the normalised score does not.

    Args:
        score: Raw score, in the metric's unit.
        baseline: Raw score of the starting solution, in the same unit.
        direction: `lower` or `higher`: which is better.

    Returns:
        A share (0.1 is ten per cent better), or None if a number is unknown, not finite, or the baseline is 0.

    Source: arXiv 2605.17046, definition of Agg.
    """
    s, b = known(score), known(baseline)
    if s is None or b is None or b == 0:
        return None
    gain = (s - b) / abs(b)
    return -gain if Direction(direction) is Direction.LOWER else gain


def normalise(score: float | None, start: float | None, reference: float | None) -> float | None:
    """RE-Bench's normalised score: 0 at the starting solution, 1 at the reference solution.

    (y - y_s) / (y_r - y_s); below the start 0, no upper cap. It needs no direction, since the sign cancels.

    Args:
        score: Raw score y.
        start: Raw score y_s of the starting solution.
        reference: Raw score y_r of the reference solution.

    Returns:
        The normalised score, or None if a number is unknown or not finite, or if start and reference are equal.
        RE-Bench counts a run without any valid score as 0; where that is wanted, the caller says so (see
        `score_at_k`), because a run that this machine failed must not become one.

    Source: arXiv 2411.15114, section 2.1.
    """
    y, y_s, y_r = known(score), known(start), known(reference)
    if y is None or y_s is None or y_r is None or y_r == y_s:
        return None
    return max(0.0, (y - y_s) / (y_r - y_s))


def optimism(visible: float | None, sealed: float | None, direction: Direction | str) -> float | None:
    """By how much the score that the agent saw was better than the hidden score of the same artefact.

    In the metric's unit; positive means that the visible score promised too much. None if either is unknown.
    """
    v, s = known(visible), known(sealed)
    if v is None or s is None:
        return None
    return s - v if Direction(direction) is Direction.LOWER else v - s


@dataclass(frozen=True)
class Aggregate:
    """1GC-7RC's Agg of one agent, with what it rests on.

    Attributes:
        value: Mean over tasks of the relative gain of the agent's mean score; None if no task counts.
        gains: Relative gain of each task that counts.
        left_out: Tasks that do not count, with the reason.
        n_runs: Runs in all, failed ones included.
        n_valid: Runs with a valid score.
    """

    value: float | None
    gains: Mapping[str, float]
    left_out: Mapping[str, str]
    n_runs: int
    n_valid: int

    @property
    def n_tasks(self) -> int:
        """Tasks that count. Two values of Agg compare only over the same tasks."""
        return len(self.gains)

    @property
    def success_rate(self) -> float | None:
        """Share of the runs with a valid score; None if there are no runs."""
        return self.n_valid / self.n_runs if self.n_runs else None


def aggregate(
    scores: Mapping[str, Sequence[float | None]],
    baselines: Mapping[str, float | None],
    directions: Mapping[str, Direction | str],
) -> Aggregate:
    """1GC-7RC's Agg: the mean over tasks of the relative gain of the agent's mean score.

    A failed run (None) leaves the mean of its task; it is neither 0 nor the baseline, and only lowers the success
    rate. Runs that this machine failed are not the agent's and do not belong in `scores` at all.

    Args:
        scores: Raw scores of the runs of each task; None for a failed run.
        baselines: Raw score of each task's starting solution.
        directions: Which way each task's metric is better.

    Raises:
        ValueError: There are no tasks (the mean of nothing is an error, not 0).
        KeyError: A task has no entry in `baselines` or `directions`.

    Source: arXiv 2605.17046, definition of Agg and of the success rate.
    """
    if not scores:
        raise ValueError("no tasks to aggregate over")
    gains: dict[str, float] = {}
    left_out: dict[str, str] = {}
    n_valid = 0
    for task, raw in scores.items():
        valid = [score for score in raw if score is not None and math.isfinite(score)]
        n_valid += len(valid)
        if not valid:
            left_out[task] = "no valid run" if raw else "no runs"
            continue
        gain = relative_gain(math.fsum(valid) / len(valid), baselines[task], directions[task])
        if gain is None:
            left_out[task] = "the starting score is 0" if baselines[task] == 0 else "the starting score is not known"
            continue
        gains[task] = gain
    value = math.fsum(gains.values()) / len(gains) if gains else None
    return Aggregate(value, gains, left_out, sum(len(raw) for raw in scores.values()), n_valid)
