"""What the runs of one cell came to: outcomes that add up, mean, spread, success rate, behaviour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from proctor.spec import Direction, Ended, Result, ScoreEntry
from proctor.stats.curves import best_so_far, score_points


class Outcome(StrEnum):
    """What a run came to. Every planned run has exactly one outcome; it is not how the run ended (`Ended`).

    A valid score (`SCORED`), an agent that left nothing valid (`INVALID`, or `VOIDED` where an integrity finding took
    the score away), a fault of this machine or of Proctor (`INFRASTRUCTURE`), a run stopped by hand before anything
    valid was there (`STOPPED`) and a run without a result (`UNFINISHED`) are different things.
    """

    SCORED = "scored"
    INVALID = "invalid"
    VOIDED = "voided"
    INFRASTRUCTURE = "infrastructure"
    STOPPED = "stopped"
    UNFINISHED = "unfinished"

    @property
    def counts_for_agent(self) -> bool:
        """Whether the run is an attempt of the agent's: in the success rate, and 0 in score@k if it is not scored."""
        return self in (Outcome.SCORED, Outcome.INVALID, Outcome.VOIDED)


def outcome_of(result: Result | None) -> Outcome:
    """The one outcome of a run; None stands for a run without a result.

    Infrastructure comes first: what such a run scored before it broke is kept in its result and counts nowhere.
    """
    if result is None:
        return Outcome.UNFINISHED
    if result.ended is Ended.INFRASTRUCTURE:
        return Outcome.INFRASTRUCTURE
    if result.valid and result.raw_score is not None:
        return Outcome.SCORED
    if any(finding.severity == "void" for finding in result.integrity):
        return Outcome.VOIDED
    # A kill for which no limit is named was a person's: the agent cannot be blamed for it.
    if result.ended is Ended.KILLED and result.limit is None:
        return Outcome.STOPPED
    return Outcome.INVALID


@dataclass(frozen=True)
class CellSummary:
    """The runs of one cell in numbers.

    Attributes:
        outcomes: Number of runs of each outcome, all outcomes listed; they add up to `n_runs`.
        scores: Raw scores of the scored runs, in the order given.
        mean: Their mean, or None if there are none.
        std: Their sample standard deviation (n - 1 in the denominator), or None for fewer than two.
        best: The best of them, or None.
        success_rate: Scored runs over the agent's attempts (scored, invalid and voided); None without an attempt.
            Infrastructure failures, stopped and unfinished runs are no attempts.
    """

    outcomes: Mapping[Outcome, int]
    scores: tuple[float, ...]
    mean: float | None
    std: float | None
    best: float | None
    success_rate: float | None

    @property
    def n_runs(self) -> int:
        return sum(self.outcomes.values())

    @property
    def n_valid(self) -> int:
        return len(self.scores)

    @property
    def n_attempts(self) -> int:
        """Runs that count for or against the agent."""
        return sum(n for outcome, n in self.outcomes.items() if outcome.counts_for_agent)


def summarise(cell: Sequence[Result | None]) -> CellSummary:
    """Mean, spread, success rate and outcomes of the runs of one cell.

    Args:
        cell: Results of runs of one task; None for a run that has no result yet.

    Raises:
        ValueError: The cell is empty, or its results are not of one task, metric and direction.
    """
    if not cell:
        raise ValueError("a cell without runs has no summary")
    if len({(r.suite, r.task, r.metric, r.direction) for r in cell if r is not None}) > 1:
        raise ValueError("the runs of a cell must be of one task and one metric")
    outcomes = dict.fromkeys(Outcome, 0)
    scores: list[float] = []
    direction = Direction.HIGHER
    for result in cell:
        outcome = outcome_of(result)
        outcomes[outcome] += 1
        if outcome is Outcome.SCORED:
            assert result is not None and result.raw_score is not None
            scores.append(result.raw_score)
            direction = result.direction
    mean = math.fsum(scores) / len(scores) if scores else None
    std = None
    if mean is not None and len(scores) > 1:
        std = math.sqrt(math.fsum((s - mean) ** 2 for s in scores) / (len(scores) - 1))
    best = None if not scores else min(scores) if direction is Direction.LOWER else max(scores)
    attempts = sum(n for outcome, n in outcomes.items() if outcome.counts_for_agent)
    return CellSummary(outcomes, tuple(scores), mean, std, best, len(scores) / attempts if attempts else None)


@dataclass(frozen=True)
class Behaviour:
    """How an agent used its score tool in one run. Times are seconds on the agent's clock.

    Attributes:
        calls: Scorings that the agent asked for.
        valid: Those that gave a score.
        invalid: Those that the submission failed.
        errors: Those that Proctor failed.
        calls_per_hour: Calls per hour of used time; None if that is not known or 0.
        first_valid_s: When the first scored artefact was frozen; None if none was.
        last_gain_s: When the best visible score last improved; None if it never did.
    """

    calls: int
    valid: int
    invalid: int
    errors: int
    calls_per_hour: float | None
    first_valid_s: float | None
    last_gain_s: float | None


def behaviour(entries: Iterable[ScoreEntry], direction: Direction | str, used_s: float | None) -> Behaviour:
    """How the agent used its score tool, from its score log.

    Args:
        entries: The score log of one run.
        direction: Which way the metric is better.
        used_s: Seconds on the agent's clock at the end, if known.
    """
    own = [entry for entry in entries if entry.origin == "agent"]
    by_status = {status: sum(e.status == status for e in own) for status in ("scored", "invalid", "error")}
    steps = best_so_far(score_points(own), direction)
    return Behaviour(
        calls=len(own),
        valid=by_status["scored"],
        invalid=by_status["invalid"],
        errors=by_status["error"],
        calls_per_hour=len(own) / used_s * 3600 if used_s else None,
        first_valid_s=steps[0][0] if steps else None,
        last_gain_s=steps[-1][0] if steps else None,
    )
