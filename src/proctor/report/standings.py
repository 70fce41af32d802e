"""How each agent did over a suite: Agg (1GC-7RC) and normalised score@k (RE-Bench), with intervals and their basis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proctor.report.tables import Cell, Exam, run_gain, run_normalised
from proctor.report.words import Maybe, listing
from proctor.stats import Interval, aggregate, bootstrap_interval, score_at_k


@dataclass(frozen=True)
class Standing:
    """One agent over the tasks of a suite, at one tier and protocol.

    Attributes:
        suite, tier, protocol, agent: Whose standing it is, under which conditions.
        n_tasks: Tasks of the suite in this report (any agent's).
        agg: 1GC-7RC's Agg, `agg_tasks` the number of tasks it goes over, `agg_interval` its 95 % interval.
        normalised: RE-Bench's score@1, invalid runs counting 0, over `normalised_tasks` tasks.
        k, at_k: The largest k that every task's number of attempts allows, and score@k.
        success_rate: Valid scores over attempts, all tasks together.
        n_valid, n_attempts, n_runs: Its basis. Runs that are no attempts were lost to the machine, stopped by hand,
            or have no result.
        left_out: Tasks that Agg or the normalised score leave out, with the reason.
    """

    suite: str
    tier: str
    protocol: str
    agent: str
    n_tasks: int
    agg: Maybe
    agg_tasks: int
    agg_interval: Interval | None
    normalised: Maybe
    normalised_tasks: int
    normalised_interval: Interval | None
    k: int | None
    at_k: Maybe
    at_k_interval: Interval | None
    success_rate: Maybe
    n_valid: int
    n_attempts: int
    n_runs: int
    left_out: tuple[str, ...]
    per_task: Mapping[str, tuple[float, ...]]
    """Normalised scores of the attempts of each task that counts, invalid ones as 0."""


def standings(all_exams: Sequence[Exam]) -> list[Standing]:
    """The standing of every agent in every suite, best first within a suite (by Agg in `onecard`)."""
    groups: dict[tuple[str, str, str], list[Exam]] = {}
    for exam in all_exams:
        groups.setdefault((exam.key.suite, exam.key.tier, exam.key.protocol), []).append(exam)
    rows = []
    for group in groups.values():
        agents = sorted({cell.agent for exam in group for cell in exam.cells})
        rows += sorted((_standing(agent, group) for agent in agents), key=_rank)
    return rows


def headline(suite: str) -> str:
    """Which number a suite is known by: `agg` or `normalised`."""
    return "agg" if suite == "onecard" else "normalised"


def _rank(row: Standing) -> tuple[bool, float, str]:
    value = (row.agg if headline(row.suite) == "agg" else row.normalised).value
    return value is None, -(value or 0.0), row.agent


def _standing(agent: str, group: Sequence[Exam]) -> Standing:
    pairs = [(exam, cell) for exam in group for cell in exam.cells if cell.agent == agent]
    tasks = [exam.key.task for exam, _ in pairs]
    n_valid = sum(cell.summary.n_valid for _, cell in pairs)
    n_attempts = sum(cell.summary.n_attempts for _, cell in pairs)
    key = group[0].key
    twice = sorted({task for task in tasks if tasks.count(task) > 1})
    gain, gain_tasks, gain_interval, left_out = _agg(pairs, twice)
    per_task, unscored = ({}, []) if twice else _normalised(pairs)
    mean, interval = _over_tasks(per_task, 1)
    k = min((len(scores) for scores in per_task.values()), default=None)
    best, best_interval = _over_tasks(per_task, k or 1)
    why = f"{listing(twice)} ran with two budgets" if twice else "no task counts"
    return Standing(
        suite=key.suite,
        tier=key.tier,
        protocol=key.protocol,
        agent=agent,
        n_tasks=len({exam.key.task for exam in group}),
        agg=gain,
        agg_tasks=gain_tasks,
        agg_interval=gain_interval,
        normalised=Maybe.of(mean, why),
        normalised_tasks=len(per_task),
        normalised_interval=interval,
        k=k,
        at_k=Maybe.of(best, why),
        at_k_interval=best_interval,
        success_rate=Maybe.of(n_valid / n_attempts if n_attempts else None, "no attempt by the agent"),
        n_valid=n_valid,
        n_attempts=n_attempts,
        n_runs=sum(cell.summary.n_runs for _, cell in pairs),
        left_out=tuple(left_out + unscored),
        per_task=per_task,
    )


def _agg(pairs: Sequence[tuple[Exam, Cell]], twice: Sequence[str]) -> tuple[Maybe, int, Interval | None, list[str]]:
    """Agg with its interval; tasks that it leaves out, in words."""
    if twice:
        return Maybe(None, f"{listing(twice)} ran with two budgets"), 0, None, []
    known = [(exam, cell) for exam, cell in pairs if exam.direction is not None]
    left_out = [f"{exam.key.task}: no result yet" for exam, _ in pairs if exam.direction is None]
    if not known:
        return Maybe(None, "no result yet"), 0, None, left_out
    result = aggregate(
        {exam.key.task: _attempted(cell) for exam, cell in known},
        {exam.key.task: exam.start.value for exam, _ in known},
        {exam.key.task: exam.direction for exam, _ in known if exam.direction is not None},
    )
    left_out += [f"{task}: {why} (Agg)" for task, why in result.left_out.items()]
    gains = {exam.key.task: _gains(cell) for exam, cell in known if exam.key.task in result.gains}
    interval = bootstrap_interval(gains) if gains else None
    return Maybe.of(result.value, "no task counts"), result.n_tasks, interval, left_out


def _attempted(cell: Cell) -> list[float | None]:
    return [record.score for record in cell.records if record.outcome.counts_for_agent]


def _gains(cell: Cell) -> list[float]:
    return [gain for record in cell.records if (gain := run_gain(record)) is not None]


def _normalised(pairs: Sequence[tuple[Exam, Cell]]) -> tuple[dict[str, tuple[float, ...]], list[str]]:
    """Normalised scores of each task's attempts, invalid ones as 0; tasks that cannot be normalised, in words."""
    per_task, left_out = {}, []
    for exam, cell in pairs:
        attempts = [record for record in cell.records if record.outcome.counts_for_agent]
        scores = [run_normalised(record) if record.score is not None else 0.0 for record in attempts]
        numbers = tuple(score for score in scores if score is not None)
        if not attempts:
            left_out.append(f"{exam.key.task}: no attempts (normalised score)")
        elif len(numbers) < len(attempts) or exam.start.value is None or exam.reference.value is None:
            left_out.append(f"{exam.key.task}: start or reference score unknown (normalised score)")
        else:
            per_task[exam.key.task] = numbers
    return per_task, left_out


def _over_tasks(per_task: Mapping[str, Sequence[float]], k: int) -> tuple[float | None, Interval | None]:
    if not per_task:
        return None, None
    values = [score_at_k(scores, k) for scores in per_task.values()]
    return math.fsum(values) / len(values), bootstrap_interval(per_task, k=k)
