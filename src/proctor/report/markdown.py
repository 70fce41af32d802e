"""The report as Markdown (GitHub's kind), for pull requests, notes and terminals without a browser."""

from __future__ import annotations

import re
from collections.abc import Sequence

from proctor import __version__
from proctor.report.html import heading
from proctor.report.load import RunRecord
from proctor.report.notes import NOTES
from proctor.report.prose import span, summary, warn
from proctor.report.standings import Standing, standings
from proctor.report.tables import LIMITS, Cell, Exam, enforcement, exams, findings
from proctor.report.words import DASH, Maybe, clean, count, difference, duration, facts, number, percent, share, spread
from proctor.stats import Interval

NO_BOX = "**NO BOX**"


def to_markdown(records: Sequence[RunRecord]) -> str:
    """The whole report, figures left out."""
    all_exams = exams(records)
    rows = standings(all_exams)
    head = heading(records)
    parts = [
        f"# {escape(head['title'])}: Proctor report",
        f"Runs of {head['date']}; {head['tiers']} tier, {head['protocols']} protocol; {escape(head['hardware'])}; "
        f"Proctor {escape(head['proctor'])}.",
        *(f"> **{escape(warning)}**" for warning in warn(records, all_exams)),
        *(escape(paragraph) for paragraph in summary(records, rows)),
        "## Standings",
        _standings(rows),
        *(
            f"{escape(row.agent)} on {row.suite} leaves out {escape('; '.join(row.left_out))}."
            for row in rows
            if row.left_out
        ),
        "## Results",
        *(part for exam in all_exams for part in _exam(exam)),
        "## Integrity findings",
        _findings(records),
        "## What was enforced",
        _enforced(records),
        "## Runs",
        _runs(records),
        "## How the numbers are made",
        "\n".join(f"- **{term}.** {escape(text)}" for term, text in NOTES),
        f"Made with Proctor {__version__}.",
    ]
    return "\n\n".join(parts) + "\n"


def escape(text: str, limit: int | None = None) -> str:
    """Foreign text as literal Markdown on one line: no mark-up, HTML, links or table borders come out of it."""
    line = re.sub(r"([\\`*_{}\[\]()#+!|~$@:])", r"\\\1", clean(text, limit))
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> str:
    """A table; `right` has an `r` for each column that is aligned to the right."""
    marks = [f"---{':' if mark == 'r' else ''}" for mark in right.ljust(len(header), "l")]
    lines = [header, marks, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def maybe(value: Maybe, text: str) -> str:
    return text if value.value is not None else f"{DASH} ({escape(value.why)})"


def _interval(value: Interval | None, sign: bool) -> str:
    return f" ({span(value, sign=sign).rstrip(', ')})" if value is not None else ""


def _standings(rows: Sequence[Standing]) -> str:
    lines = [
        [
            f"{row.suite}, {row.tier}, {row.protocol}",
            escape(row.agent),
            maybe(row.agg, share(row.agg.value, sign=True)) + _interval(row.agg_interval, True),
            f"{row.agg_tasks} of {row.n_tasks}",
            maybe(row.normalised, share(row.normalised.value)) + _interval(row.normalised_interval, False),
            f"{row.normalised_tasks} of {row.n_tasks}",
            f"{share(row.at_k.value)} (k = {row.k})" if row.k and row.k > 1 else DASH,
            f"{percent(row.success_rate.value)} ({row.n_valid} of {row.n_attempts})",
        ]
        for row in rows
    ]
    header = ["Suite", "Agent", "Agg", "tasks", "Normalised score", "tasks", "Best of k", "Success rate"]
    return table(header, lines, "llrrrrrr")


def _exam(exam: Exam) -> list[str]:
    key = exam.key
    metric = f"{escape(exam.metric)}, {exam.direction} is better" if exam.metric and exam.direction else "no result yet"
    calibrations = f"; calibration: {escape('; '.join(exam.calibrations))}" if exam.calibrations else ""
    start, reference = maybe(exam.start, number(exam.start.value)), maybe(exam.reference, number(exam.reference.value))
    conditions = f"{key.suite}, {key.tier} tier, {key.protocol} protocol, {duration(key.budget_s)}"
    header = ["Agent", "Mean ± deviation", "n", "Success rate", "Relative gain", "Normalised", "Visible best", "Sealed"]
    notes = [f"- {escape(cell.agent)}: {escape(reason)}" for cell in exam.cells for reason in cell.mixed]
    return [
        f"### {escape(key.task)}",
        f"{conditions}; {metric}; start {start}, reference {reference}{calibrations}.",
        table([*header, "Optimism", "Time used", "Outcomes"], [_cell(cell) for cell in exam.cells], "lrrrrrrrrr"),
        *(["\n".join(notes)] if notes else []),
    ]


def _cell(cell: Cell) -> list[str]:
    outcomes = ", ".join(f"{n} {outcome.value}" for outcome, n in cell.summary.outcomes.items() if n)
    return [
        escape(cell.agent) + (f" {NO_BOX}" if cell.unboxed else ""),
        maybe(cell.mean, spread(cell.mean.value, cell.std.value)),
        f"{cell.summary.n_valid} of {cell.summary.n_runs}",
        maybe(cell.success_rate, percent(cell.success_rate.value)),
        maybe(cell.relative_gain, share(cell.relative_gain.value, sign=True)),
        maybe(cell.normalised, share(cell.normalised.value)),
        maybe(cell.visible_best, number(cell.visible_best.value)),
        maybe(cell.sealed, number(cell.sealed.value)),
        maybe(cell.optimism, difference(cell.optimism.value)),
        maybe(cell.used_s, duration(cell.used_s.value)),
        outcomes,
    ]


def _findings(records: Sequence[RunRecord]) -> str:
    rows = [
        [
            escape(row.finding.rule),
            row.finding.severity,
            escape(row.finding.evidence, 600),
            escape(row.record.spec.run_id),
            row.where,
        ]
        for row in findings(records)
    ]
    if not rows:
        return "None. This says that no rule fired, not that nothing happened."
    return table(["Rule", "Severity", "Evidence", "Run", "Where"], rows)


def _enforced(records: Sequence[RunRecord]) -> str:
    rows = [
        [
            (NO_BOX if row.box == "none" else escape(row.box))
            + f" ({count(row.n_runs, 'run')}; {escape(facts(row.hardware))})",
            *(
                escape(how) if how else "no GPU in use" if name == "gpu" and row.no_gpu else "not enforced"
                for name, how in row.held.items()
            ),
        ]
        for row in enforcement(records)
    ]
    if not rows:
        return f"{DASH} (no run has a result yet)"
    return table(["Box", *LIMITS.values()], rows)


def _runs(records: Sequence[RunRecord]) -> str:
    rows = []
    for record in records:
        result = record.result
        rows.append(
            [
                escape(record.spec.run_id) + (f" {NO_BOX}" if record.box == "none" else ""),
                record.outcome.value,
                result.ended.value if result is not None else DASH,
                escape((result.limit if result is not None else None) or DASH),
                number(record.score),
                duration(result.used_s) if result is not None else DASH,
                str(result.score_calls) if result is not None else DASH,
                escape(
                    " ".join([result.reason if result is not None else "no result yet", *record.problems]).strip(), 300
                ),
            ]
        )
    header = ["Run", "Outcome", "Ended", "Limit", "Score", "Time used", "Score calls", "Remarks"]
    return table(header, rows, "llllrrr")
