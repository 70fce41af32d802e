"""The report's opening in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence

from proctor.report.load import RunRecord
from proctor.report.standings import Standing, headline
from proctor.report.tables import Exam, findings, outcome_counts
from proctor.report.words import clean, count, listing, share
from proctor.stats import Interval, Outcome

SAID = {
    Outcome.SCORED: ("has a valid score", "have a valid score"),
    Outcome.INVALID: ("left nothing valid", "left nothing valid"),
    Outcome.VOIDED: ("lost its score to an integrity finding", "lost their score to an integrity finding"),
    Outcome.INFRASTRUCTURE: (
        "was lost to a fault of the machine or of Proctor",
        "were lost to faults of the machine or of Proctor",
    ),
    Outcome.STOPPED: ("was stopped by hand", "were stopped by hand"),
    Outcome.UNFINISHED: ("has no result yet", "have no result yet"),
}


MOST_AGENTS = 4
"""Agents of a suite that the summary names; the rest are in the standings."""


def summary(records: Sequence[RunRecord], rows: Sequence[Standing]) -> list[str]:
    """The summary, one string a paragraph; agents' names in it are cleaned but not escaped."""
    counts = outcome_counts(records)
    agents = {record.agent for record in records}
    tasks = {(record.spec.suite, record.spec.task) for record in records}
    said = [f"{n} {SAID[outcome][n != 1]}" for outcome, n in counts.items() if n]
    planned = f"{count(len(records), 'run')} {'was' if len(records) == 1 else 'were'} planned"
    first = f"{planned}, on {count(len(tasks), 'task')} with {count(len(agents), 'agent')}: {listing(said)}."
    return [first, *_standing_sentences(rows), _integrity(records)]


def _standing_sentences(rows: Sequence[Standing]) -> list[str]:
    """One paragraph per suite: the headline number of each agent with its interval and basis."""
    groups: dict[tuple[str, str, str], list[Standing]] = {}
    for row in rows:
        groups.setdefault((row.suite, row.tier, row.protocol), []).append(row)
    return [
        f"On {suite} ({tier} tier, {protocol} protocol), {_headline_clause(suite, group)}."
        for (suite, tier, protocol), group in groups.items()
    ]


def _headline_clause(suite: str, group: Sequence[Standing]) -> str:
    agg = headline(suite) == "agg"
    name = "Agg, the mean relative gain over the starting solutions," if agg else "the mean normalised score"
    known = [row for row in group if (row.agg if agg else row.normalised).value is not None]
    if not known:
        return f"{name} is not known for any agent: no task counts (see the standings)"
    parts = []
    for row in known[:MOST_AGENTS]:
        value = row.agg if agg else row.normalised
        interval = row.agg_interval if agg else row.normalised_interval
        basis = f"{row.agg_tasks if agg else row.normalised_tasks} of {count(row.n_tasks, 'task')}"
        shown = share(value.value, sign=agg)
        parts.append(f"{shown} for {clean(row.agent, 60)} ({span(interval, sign=agg)}{basis})")
    if len(known) > MOST_AGENTS:
        parts.append(f"lower for {count(len(known) - MOST_AGENTS, 'more agent')} (see the standings)")
    if len(known) < len(group):
        parts.append(f"not known for {count(len(group) - len(known), 'agent')}")
    return f"{name} is {listing(parts)}"


def span(interval: Interval | None, *, sign: bool = False) -> str:
    """`95 % interval +0.21 to +0.34, `, or nothing."""
    if interval is None:
        return ""
    low, high = share(interval.low, sign=sign), share(interval.high, sign=sign)
    return f"{100 * interval.level:.0f} % interval {low} to {high}, "


def _integrity(records: Sequence[RunRecord]) -> str:
    found = findings(records)
    if not found:
        return "No integrity rule fired."
    kinds = [
        f"{n} {severity}"
        for severity in ("void", "warning", "note")
        if (n := sum(r.finding.severity == severity for r in found))
    ]
    runs = len({(row.record.spec.experiment, row.record.spec.run_id) for row in found})
    return f"{count(len(found), 'integrity finding')} ({listing(kinds)}) in {count(runs, 'run')}."


def warn(records: Sequence[RunRecord], all_exams: Sequence[Exam]) -> list[str]:
    """What a reader must know before comparing anything; empty if there is nothing."""
    warnings = []
    if unboxed := sum(record.box == "none" for record in records):
        warnings.append(
            f"NO BOX: {count(unboxed, 'run')} had no sandbox, and nothing was enforced for {_them(unboxed)}."
        )
    if mixed := sum(bool(cell.mixed) for exam in all_exams for cell in exam.cells):
        warnings.append(
            f"In {count(mixed, 'cell')} the runs were not held under the same conditions (see the results)."
        )
    if odd := sum(bool(record.problems) for record in records):
        warnings.append(f"In {count(odd, 'run')} the recorded numbers do not agree with one another (see the runs).")
    return warnings


def _them(n: int) -> str:
    return "it" if n == 1 else "them"
