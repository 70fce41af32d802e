"""Score over time: the best score so far at each moment of the budget, for one run and as a mean over runs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from proctor.spec import Direction, ScoreEntry

Point = tuple[float, float | None]
"""Seconds on the agent's clock, and the raw score or None."""
Step = tuple[float, float]


@dataclass(frozen=True)
class BudgetCurve:
    """Score over time on a common grid.

    Attributes:
        times: The grid, seconds.
        mean: Mean best-so-far over the runs that have a score by then; None before any has.
        n: Over how many runs that mean goes. Where it changes along the curve, the mean goes over different runs,
            and a step may be due to that alone.
        runs: Best-so-far of each run on the grid; None before its first score.
    """

    times: tuple[float, ...]
    mean: tuple[float | None, ...]
    n: tuple[int, ...]
    runs: tuple[tuple[float | None, ...], ...]


def score_points(
    entries: Iterable[ScoreEntry],
    split: Literal["visible", "hidden"] = "visible",
    origins: Sequence[str] | None = None,
) -> list[Point]:
    """The scorings of one split, in order of time: when the artefact was frozen, and its score or None.

    Args:
        entries: A score log.
        split: Which split's scores.
        origins: Only entries of these origins (`agent`, `final`, `silent`, `seal`); all if None.
    """
    chosen = [e for e in entries if e.split == split and (origins is None or e.origin in origins)]
    return sorted(
        ((e.elapsed_s, e.score if e.status == "scored" else None) for e in chosen), key=lambda point: point[0]
    )


def best_so_far(points: Iterable[Point], direction: Direction | str, initial: float | None = None) -> list[Step]:
    """The moments at which the best score improved, with the new best; scores of None or NaN never count.

    Args:
        points: Scorings in any order.
        direction: Which is better.
        initial: A score that is held from time 0 on (the starting solution's), or None.
    """
    which = Direction(direction)
    steps: list[Step] = []
    if initial is not None and math.isfinite(initial):
        steps.append((0.0, initial))
    for seconds, score in sorted(points, key=lambda point: point[0]):
        if score is not None and which.better(score, steps[-1][1] if steps else None):
            steps.append((seconds, score))
    return steps


def budget_curve(
    runs: Sequence[Iterable[Point]],
    times: Sequence[float],
    direction: Direction | str,
    *,
    initial: float | None = None,
) -> BudgetCurve:
    """Best score so far as a function of time, for each run and as the mean over runs on a common grid.

    A step function: between two scorings nothing is known to have changed, so nothing is interpolated.

    Args:
        runs: For each run its scorings (see `score_points`).
        times: The grid, seconds, in any order.
        direction: Which is better.
        initial: A score that every run holds from time 0 on. Given the starting solution's score, the mean goes over
            all runs at all times.

    Raises:
        ValueError: No runs, or an empty grid.
    """
    if not runs or not times:
        raise ValueError("a budget curve needs at least one run and one time")
    grid = tuple(sorted(float(t) for t in times))
    rows = []
    for points in runs:
        steps = best_so_far(points, direction, initial)
        moments = [seconds for seconds, _ in steps]
        indices = (bisect_right(moments, t) for t in grid)
        rows.append(tuple(steps[i - 1][1] if i else None for i in indices))
    columns = [[value for value in column if value is not None] for column in zip(*rows, strict=True)]
    mean = tuple(math.fsum(column) / len(column) if column else None for column in columns)
    return BudgetCurve(grid, mean, tuple(len(column) for column in columns), tuple(rows))
