"""The results as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from proctor.report.load import RunRecord
from proctor.report.prose import summary, warn
from proctor.report.standings import standings
from proctor.report.tables import Cell, Exam, exams
from proctor.report.words import DASH, Maybe, clean, difference, duration, number, percent, share, spread


def terminal_table(records: Sequence[RunRecord]) -> RenderableType:
    """Summary and results for `rich.console.Console.print`; fits 80 columns, so that it has fewer columns than a page.

    Agents' names are cleaned of control characters and never read as mark-up.
    """
    all_exams = exams(records)
    parts: list[RenderableType] = [Text(warning, style="bold white on red") for warning in warn(records, all_exams)]
    parts += [Text(paragraph) for paragraph in summary(records, standings(all_exams))]
    parts += [_table(exam) for exam in all_exams]
    return Group(*parts)


def _table(exam: Exam) -> Table:
    key = exam.key
    metric = f", {clean(exam.metric, 30)} ({exam.direction} is better)" if exam.metric and exam.direction else ""
    title = Text(f"{key.suite}/{key.task}{metric}; {key.tier}, {key.protocol}, {duration(key.budget_s)}", style="bold")
    ends = [f"{name} {number(m.value)}" for name, m in (("start", exam.start), ("reference", exam.reference))]
    table = Table(title=title, title_justify="left", caption=Text(", ".join(ends)), caption_justify="left", box=None)
    table.padding = (0, 1, 0, 0)
    table.add_column("agent", overflow="fold", max_width=36, min_width=12)
    for name in ("mean ± dev.", "n", "succ.", "gain", "norm.", "optim.", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in exam.cells:
        table.add_row(*_row(cell))
    return table


def _row(cell: Cell) -> list[Text]:
    others = [f"{n} {outcome.value}" for outcome, n in cell.summary.outcomes.items() if n and outcome.value != "scored"]
    name = Text(clean(cell.agent, 64))
    if cell.unboxed:
        name.append(" NO BOX", style="bold white on red")
    if others:
        name.append(f"\n{', '.join(others)}", style="dim")
    return [
        name,
        Text(_maybe(cell.mean, spread(cell.mean.value, cell.std.value)), style="bold"),
        Text(f"{cell.summary.n_valid}/{cell.summary.n_runs}"),
        Text(_maybe(cell.success_rate, percent(cell.success_rate.value))),
        Text(_maybe(cell.relative_gain, share(cell.relative_gain.value, sign=True))),
        Text(_maybe(cell.normalised, share(cell.normalised.value))),
        Text(_maybe(cell.optimism, difference(cell.optimism.value))),
        Text(_maybe(cell.used_s, duration(cell.used_s.value))),
    ]


def _maybe(value: Maybe, text: str) -> str:
    return text if value.value is not None else DASH
