"""The tables behind every format: exams, cells, standings, findings, enforcement. Numbers only, no mark-up.

An exam is a task under given conditions (tier, protocol, budget). A cell is one agent's runs of one exam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from proctor.errors import ProctorError
from proctor.report.load import RunRecord
from proctor.report.words import Maybe, facts, listing, number
from proctor.spec import Direction, Finding, Protocol, Result
from proctor.stats import CellSummary, Outcome, known, normalise, optimism, relative_gain, summarise


class ExamKey(NamedTuple):
    """What runs must share for their scores to be compared."""

    suite: str
    task: str
    tier: str
    protocol: str
    budget_s: float


@dataclass(frozen=True)
class Cell:
    """One agent's runs of one exam, in numbers. Every number is one, or says why it is not.

    `mixed` lists conditions that were not the same for all its runs ("agent version", "hardware", ...).
    """

    exam: ExamKey
    agent: str
    records: tuple[RunRecord, ...]
    summary: CellSummary
    mean: Maybe
    std: Maybe
    success_rate: Maybe
    relative_gain: Maybe
    normalised: Maybe
    visible_best: Maybe
    sealed: Maybe
    optimism: Maybe
    used_s: Maybe
    mixed: tuple[str, ...]

    @property
    def unboxed(self) -> int:
        """Runs without a box: nothing was enforced for them."""
        return sum(record.box == "none" for record in self.records)


@dataclass(frozen=True)
class Exam:
    """A task under given conditions, with the cells of its agents.

    `metric` and `direction` are None as long as no run has a result; `start` and `reference` say why they are
    unknown, if they are.
    """

    key: ExamKey
    metric: str | None
    direction: Direction | None
    start: Maybe
    reference: Maybe
    calibrations: tuple[str, ...]
    records: tuple[RunRecord, ...]
    cells: tuple[Cell, ...]


def exams(records: Sequence[RunRecord]) -> list[Exam]:
    """All exams, sorted by name; every record is in exactly one cell of one exam.

    Raises:
        ProctorError: Results of one exam disagree on the metric or its direction.
    """
    groups: dict[ExamKey, list[RunRecord]] = {}
    for record in records:
        spec = record.spec
        key = ExamKey(spec.suite, spec.task, spec.tier, spec.protocol.value, spec.budget_s)
        groups.setdefault(key, []).append(record)
    found = [_exam(key, groups[key]) for key in sorted(groups)]
    placed = sum(len(cell.records) for exam in found for cell in exam.cells)
    if placed != len(records):
        raise AssertionError(f"{len(records)} runs were planned, {placed} are in the tables")
    return found


def outcome_counts(records: Sequence[RunRecord]) -> dict[Outcome, int]:
    """Number of runs of each outcome; they add up to the number of planned runs."""
    counts = dict.fromkeys(Outcome, 0)
    for record in records:
        counts[record.outcome] += 1
    if sum(counts.values()) != len(records):
        raise AssertionError(f"{len(records)} runs were planned, outcomes are {counts}")
    return counts


def _exam(key: ExamKey, records: Sequence[RunRecord]) -> Exam:
    results = [record.result for record in records if record.result is not None]
    metrics = {(result.metric, result.direction) for result in results}
    if len(metrics) > 1:
        raise ProctorError(
            f"results of {key.suite}/{key.task} disagree on the metric: "
            + listing(sorted(f"{metric} ({direction} is better)" for metric, direction in metrics)),
            "report on them apart; they come from different versions of the task",
        )
    metric, direction = next(iter(metrics), (None, None))
    agents = sorted({record.agent for record in records})
    cells = [_cell(key, agent, [r for r in records if r.agent == agent]) for agent in agents]
    return Exam(
        key=key,
        metric=metric,
        direction=direction,
        start=_agreed([result.start_score for result in results], "start"),
        reference=_agreed([result.reference_score for result in results], "reference"),
        calibrations=tuple(sorted({result.calibration or "not stated" for result in results})),
        records=tuple(records),
        cells=tuple(sorted(cells, key=lambda cell: _rank(cell, direction))),
    )


def _rank(cell: Cell, direction: Direction | None) -> tuple[bool, float, str]:
    """Best mean first, cells without a mean last."""
    if cell.mean.value is None:
        return True, 0.0, cell.agent
    return False, -cell.mean.value if direction is Direction.HIGHER else cell.mean.value, cell.agent


def _agreed(values: Sequence[float | None], name: str) -> Maybe:
    distinct = sorted({value for value in values if known(value) is not None and value is not None})
    if not values:
        return Maybe(None, "no result yet")
    if not distinct or None in values:
        return Maybe(None, "not known")
    if len(distinct) > 1:
        return Maybe(None, f"{name} scores differ: {listing([number(value) for value in distinct])}")
    return Maybe(distinct[0])


def _cell(key: ExamKey, agent: str, records: Sequence[RunRecord]) -> Cell:
    summary = summarise([record.result for record in records])
    none = f"no valid score in {len(records)} runs" if len(records) > 1 else "no valid score"
    no_attempt = "no attempt by the agent"
    unsealed = "published protocol: nothing is sealed" if key.protocol == Protocol.PUBLISHED else "no sealed score"
    return Cell(
        exam=key,
        agent=agent,
        records=tuple(records),
        summary=summary,
        mean=Maybe.of(summary.mean, none),
        std=Maybe.of(summary.std, "one valid run" if summary.n_valid else none),
        success_rate=Maybe.of(summary.success_rate, no_attempt),
        relative_gain=_mean(records, run_gain, none, "no start score, or it is 0"),
        normalised=_mean(records, run_normalised, none, "start or reference score unknown"),
        visible_best=_mean(records, _recorded("visible_best"), none, "no visible score"),
        sealed=_mean(records, _recorded("sealed_score"), none, unsealed),
        optimism=_mean(records, run_optimism, none, unsealed),
        used_s=_mean(records, _recorded("used_s"), none, "not recorded"),
        mixed=_mixed(records),
    )


def _mean(records: Sequence[RunRecord], value: Callable[[RunRecord], float | None], none: str, why: str) -> Maybe:
    """Mean over the scored runs; unknown if it is unknown for one of them, so that all means go over the same runs."""
    scored = [record for record in records if record.outcome is Outcome.SCORED]
    if not scored:
        return Maybe(None, none)
    values = [value(record) for record in scored]
    given = [v for v in values if v is not None]
    if len(given) < len(values):
        return Maybe(None, why)
    return Maybe(math.fsum(given) / len(given))


def _recorded(field: str) -> Callable[[RunRecord], float | None]:
    """Reads a number of the result as it stands."""

    def read(record: RunRecord) -> float | None:
        return None if record.result is None else getattr(record.result, field)

    return read


def run_gain(record: RunRecord) -> float | None:
    """Relative gain of a run whose score counts, computed here from its scores."""
    result = record.result
    return relative_gain(record.score, result.start_score, result.direction) if result is not None else None


def run_normalised(record: RunRecord) -> float | None:
    """Normalised score of a run whose score counts, computed here from its scores."""
    result = record.result
    return normalise(record.score, result.start_score, result.reference_score) if result is not None else None


def run_optimism(record: RunRecord) -> float | None:
    """Visible best against sealed score of a run, in the metric's unit; positive: the visible one was better."""
    result = record.result
    return optimism(result.visible_best, result.sealed_score, result.direction) if result is not None else None


def _mixed(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Conditions that differ within a cell, with their values."""
    results = [record.result for record in records if record.result is not None]
    conditions: dict[str, set[str]] = {
        "agent version": {result.agent_version or "unknown" for result in results},
        "model": {result.model or "none" for result in results},
        "box": {record.box for record in records},
        "data seed": {record.spec.data_seed for record in records},
        "device": {record.spec.device for record in records},
        "hardware": {facts(result.hardware, brief=True) for result in results},
        "calibration": {result.calibration for result in results},
        "Proctor version": {result.versions.get("proctor", "unknown") for result in results},
    }
    return tuple(
        f"{name} differs between runs: {listing(sorted(values))}"
        for name, values in conditions.items()
        if len(values) > 1
    )


@dataclass(frozen=True)
class FoundRow:
    """An integrity finding with the run, and where in the run it was made ("scoring 7" or "result")."""

    record: RunRecord
    where: str
    finding: Finding


def findings(records: Sequence[RunRecord]) -> list[FoundRow]:
    """All integrity findings, void ones first; a finding of a scoring that the result repeats is listed once."""
    rows = []
    for record in records:
        own = [(f"scoring {entry.n}", finding) for entry in record.scores for finding in entry.findings]
        seen = {finding for _, finding in own}
        later = record.result.integrity if record.result is not None else ()
        own += [("result", finding) for finding in later if finding not in seen]
        rows += [FoundRow(record, where, finding) for where, finding in own]
    order = ("void", "warning", "note")
    return sorted(rows, key=lambda row: (order.index(row.finding.severity), row.finding.rule))


LIMITS = {
    "network": "Network",
    "filesystem": "Files",
    "process_tree": "Processes",
    "memory": "Memory",
    "pids": "Number of processes",
    "gpu": "GPU",
}
"""The limits of `Enforced`, as headings."""


@dataclass(frozen=True)
class EnforcementRow:
    """How limits were held for the runs of one box on one machine.

    `held` has an entry for each of `LIMITS`: how it was held, or None if it was not. `no_gpu` tells that these runs
    were given no GPU, so that there was nothing to hold.
    """

    box: str
    hardware: dict[str, Any]
    held: dict[str, str | None]
    no_gpu: bool
    n_runs: int


def enforcement(records: Sequence[RunRecord]) -> list[EnforcementRow]:
    """What was enforced, per box and hardware; runs without a result are not in it, since nothing is recorded."""
    groups: dict[tuple[str, str, str, bool], list[Result]] = {}
    for record in records:
        if record.result is not None:
            result = record.result
            key = (result.box, facts(result.hardware), repr(result.enforced), record.spec.gpus == 0)
            groups.setdefault(key, []).append(result)
    rows = []
    for key in sorted(groups, key=lambda key: (key[0] != "none", key)):
        first = groups[key][0]
        held = {name: getattr(first.enforced, name) for name in LIMITS}
        rows.append(EnforcementRow(first.box, first.hardware, held, key[3], len(groups[key])))
    return rows
