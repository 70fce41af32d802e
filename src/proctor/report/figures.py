"""The report's figures: score over time per run and per exam, strips of runs, best of k."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from proctor.report.load import RunRecord
from proctor.report.standings import Standing
from proctor.report.svg import Plot, Scale, Svg, nice_ticks
from proctor.report.tables import Cell, Exam
from proctor.report.words import clean, count, duration, number, share
from proctor.spec import Direction, ScoreEntry
from proctor.stats import best_so_far, budget_curve, score_at_k, score_points

MAX_MARKS = 250
"""Markers drawn per run; an agent may have asked for thousands of scores."""
UNITS = ((180.0, 1.0, "seconds"), (3 * 3600.0, 60.0, "minutes"), (math.inf, 3600.0, "hours"))
TIME_STEPS = (0.5, 1, 2, 5, 10, 15, 20, 30, 60)
"""Steps between time ticks, in the axis's unit: parts of a minute or an hour that people read at sight."""
BAND = 18
"""Height of the band under the scores, for scorings that gave none."""


@dataclass(frozen=True)
class Frame:
    """The axes that all figures of one exam share, so that they can be compared by eye."""

    seconds: float
    low: float
    high: float

    def time_axis(self, count: int) -> tuple[list[tuple[float, str]], str]:
        """Tick positions in seconds with their labels, and the unit's name."""
        _, unit, name = next(row for row in UNITS if self.seconds <= row[0])
        most = self.seconds / unit
        step = next((step for step in TIME_STEPS if most / step <= count), None)
        ticks = [i * step for i in range(int(most / step) + 1)] if step else nice_ticks(0, most, count)
        return [(tick * unit, f"{tick:g}") for tick in ticks], name


def frame_of(exam: Exam) -> Frame | None:
    """Axes that hold start, reference, every best-so-far, hidden and sealed score; None if there is no score at all.

    Visible scores far worse than all these would flatten the picture: they are drawn at the edge instead.
    """
    scores = [entry for record in exam.records for entry in record.scores if entry.score is not None]
    ends = [value for value in (exam.start.value, exam.reference.value) if value is not None]
    core = ends + [entry.score for entry in scores if entry.split == "hidden" and entry.score is not None]
    if exam.direction is not None:
        for record in exam.records:
            core += [score for _, score in best_so_far(score_points(record.scores), exam.direction)[-3:]]
    core = core or [entry.score for entry in scores if entry.score is not None]
    if not core:
        return None
    low, high = min(core), max(core)
    span = (high - low) or abs(high) or 1.0
    near = [e.score for e in scores if e.score is not None and low - 0.35 * span <= e.score <= high + 0.35 * span]
    low, high = min([low, *near]), max([high, *near])
    pad = 0.08 * ((high - low) or abs(high) or 1.0)
    latest = max((entry.elapsed_s for record in exam.records for entry in record.scores), default=0.0)
    return Frame(max(exam.key.budget_s, latest) * 1.015, low - pad, high + pad)


def run_figure(exam: Exam, record: RunRecord, frame: Frame) -> Markup:
    """Score over time of one run: visible scorings, best so far, the hidden curve, the seal, start and reference."""
    label = f"Score over time of run {record.spec.run_id}"
    plot = _plot(exam, frame, 300, 220, label, 5)
    visible = [entry for entry in record.scores if entry.split == "visible"]
    hidden = sorted(
        (e for e in record.scores if e.split == "hidden" and e.origin == "silent" and e.score is not None),
        key=lambda entry: entry.elapsed_s,
    )
    _references(plot, exam)
    if exam.direction is not None:
        steps = best_so_far(score_points(visible), exam.direction)
        until = record.result.used_s if record.result is not None else None
        end = until if until is not None else max((e.elapsed_s for e in record.scores), default=0.0)
        pixels = [(plot.x(t), plot.y.clamp(s)) for t, s in steps]
        plot.svg.steps(pixels, plot.x(min(end, frame.seconds)), "best", "Best visible score so far")
    plot.svg.path([(plot.x(e.elapsed_s), plot.y.clamp(e.score or 0.0)) for e in hidden], "hidden-line")
    for entry in hidden:
        plot.svg.circle(plot.x(entry.elapsed_s), plot.y.clamp(entry.score or 0.0), 2, "hidden", _title(entry))
    for entry in thinned(visible, exam.direction):
        _mark(plot, entry)
    for entry in record.scores:
        if entry.origin == "seal":
            _mark(plot, entry)
    return plot.svg.render()


def exam_figure(exam: Exam, frame: Frame, colours: Mapping[str, int], width: int) -> Markup | None:
    """All runs of an exam: best visible score so far of each run, its mean per agent, and the seals.

    The mean goes over scored runs only, and starts where all of them have a score: a mean over changing sets of runs
    would jump. None as long as the direction of the metric is not known.
    """
    if exam.direction is None:
        return None
    wide = width > 500
    label = f"Best visible score so far, all runs of {exam.key.suite}/{exam.key.task}"
    plot = _plot(exam, frame, width, 300 if wide else 250, label, 8 if wide else 4)
    _references(plot, exam)
    grid = [exam.key.budget_s * i / 120 for i in range(121)]
    for cell in exam.cells:
        css = f"agent c{colours[cell.agent] % 8}"
        logs = [score_points(record.scores) for record in cell.records]
        for record, log in zip(cell.records, logs, strict=True):
            pixels = [(plot.x(t), plot.y.clamp(s)) for t, s in best_so_far(log, exam.direction)]
            end = plot.x(min(_used(record), frame.seconds))
            title = f"{_agent(cell)}, repeat {record.spec.repeat}: {record.outcome.value}"
            plot.svg.steps(pixels, end, f"{css} thin{'' if record.score is not None else ' lost'}", title)
        counted = [log for record, log in zip(cell.records, logs, strict=True) if record.score is not None]
        if len(counted) > 1:
            curve = budget_curve(counted, grid, exam.direction)
            rows = zip(curve.times, curve.mean, curve.n, strict=True)
            mean = [(plot.x(t), plot.y.clamp(m)) for t, m, n in rows if m is not None and n == len(counted)]
            title = f"{_agent(cell)}: mean of {count(len(counted), 'scored run')}"
            plot.svg.steps(mean, plot.x(exam.key.budget_s), f"{css} mean", title)
        for record in cell.records:
            for entry in record.scores:
                if entry.origin == "seal" and entry.score is not None:
                    title = f"{_agent(cell)}, repeat {record.spec.repeat}: {_title(entry)}"
                    plot.svg.diamond(
                        plot.x(min(entry.elapsed_s, frame.seconds)), plot.y.clamp(entry.score), 5, f"{css} seal", title
                    )
    return plot.svg.render()


def strip(exam: Exam, cell: Cell, colours: Mapping[str, int]) -> Markup | None:
    """The cell's runs between start and reference, better to the right; the scale is that of the exam."""
    values = [score for other in exam.cells for score in other.summary.scores]
    values += [value for value in (exam.start.value, exam.reference.value) if value is not None]
    if not values or not cell.summary.scores:
        return None
    low, high = min(values), max(values)
    pad = 0.05 * ((high - low) or abs(high) or 1.0)
    ends = (8.0, 172.0) if exam.direction is Direction.HIGHER else (172.0, 8.0)
    x = Scale(low - pad, high + pad, *ends)
    svg = Svg(180, 26, f"Runs of {_agent(cell)}: " + ", ".join(number(s) for s in cell.summary.scores), "strip")
    svg.line(8, 13, 172, 13, "base")
    for value, name in ((exam.start.value, "start"), (exam.reference.value, "reference")):
        if value is not None:
            svg.line(x(value), 3, x(value), 23, f"ref {name}", f"{name} {number(value)}")
    if cell.mean.value is not None and cell.summary.n_valid > 1:
        svg.line(x(cell.mean.value), 6, x(cell.mean.value), 20, f"agent c{colours[cell.agent] % 8} mean")
    for record in cell.records:
        if record.score is not None:
            title = f"repeat {record.spec.repeat}: {number(record.score)}"
            svg.circle(x(record.score), 13, 4, f"agent c{colours[cell.agent] % 8} dot", title)
    return svg.render()


def best_of_k_figure(rows: Sequence[Standing], colours: Mapping[str, int]) -> Markup | None:
    """Expected best normalised score of k attempts, per agent of one suite; None where no k is above 2."""
    curves: dict[str, list[float]] = {}
    for row in rows:
        if row.k is not None and row.k > 2:
            ks = range(1, row.k + 1)
            curves[row.agent] = [
                math.fsum(score_at_k(s, k) for s in row.per_task.values()) / len(row.per_task) for k in ks
            ]
    if not curves:
        return None
    most = max(map(len, curves.values()))
    highest = max(max(values) for values in curves.values())
    svg = Svg(400, 232, "Expected best normalised score of k attempts", "figure")
    plot = Plot(svg, Scale(1, most, 48, 384, log=most > 8), Scale(0, max(1.0, highest) * 1.06, 190, 26), 190)
    ticks = [t for t in plot.x.ticks(6) if t == int(t)]
    plot.axes([(tick, f"{tick:g}") for tick in ticks], "attempts k", "normalised score@k, higher is better")
    plot.svg.line(plot.left, plot.y(1), plot.right, plot.y(1), "ref reference", "reference solution")
    for agent, values in curves.items():
        css = f"agent c{colours[agent] % 8}"
        plot.svg.path([(plot.x(k), plot.y(v)) for k, v in enumerate(values, 1)], f"{css} mean")
        for k, v in enumerate(values, 1):
            plot.svg.circle(plot.x(k), plot.y(v), 3, f"{css} dot", f"{clean(agent, 60)}, best of {k}: {share(v)}")
    return svg.render()


def thinned(entries: Sequence[ScoreEntry], direction: Direction | None, most: int = MAX_MARKS) -> list[ScoreEntry]:
    """At most about `most` entries: every improvement is kept, of the others an even choice."""
    if len(entries) <= most:
        return list(entries)
    moments = {t for t, _ in best_so_far(score_points(entries), direction)[-most // 2 :]} if direction else set()
    others = [entry for entry in entries if entry.elapsed_s not in moments]
    every = math.ceil(len(others) / (most - len(moments)))
    kept = {entry.n for entry in others[::every]}
    return [entry for entry in entries if entry.n in kept or entry.elapsed_s in moments]


def _plot(exam: Exam, frame: Frame, width: int, height: int, label: str, x_count: int) -> Plot:
    svg = Svg(width, height, label, "figure")
    base = height - 36
    y = Scale(frame.low, frame.high, base - BAND, 26)
    plot = Plot(svg, Scale(0, frame.seconds, 44, width - 8), y, base)
    ticks, unit = frame.time_axis(x_count)
    better = "" if exam.direction is None else f", {exam.direction.value} is better"
    plot.axes(ticks, f"agent's clock, {unit}", f"{exam.metric or 'score'}{better}")
    at = plot.x(exam.key.budget_s)
    plot.svg.line(at, plot.top - 4, at, plot.base, "deadline", f"deadline, {duration(exam.key.budget_s)}")
    return plot


def _references(plot: Plot, exam: Exam) -> None:
    """Dashed lines at start and reference.

    Scores go from the one to the other, so that there is room for the start's label late in the run and on the far
    side of its line, and for the reference's early.
    """
    worse_above = exam.direction is Direction.LOWER
    for value, name in ((exam.start.value, "start"), (exam.reference.value, "reference")):
        if value is None:
            continue
        at, text = plot.y.clamp(value), f"{name} {number(value)}"
        plot.svg.line(plot.left, at, plot.right, at, f"ref {name}", text)
        x, anchor = (plot.x(exam.key.budget_s) - 7, "end") if name == "start" else (plot.left + 4, "start")
        above = worse_above if name == "start" else at - plot.top >= 14
        plot.svg.text(x, at + (-5 if above else 13), text, "ref-label", anchor)


def _mark(plot: Plot, entry: ScoreEntry) -> None:
    """One scoring: a dot, a diamond for the seal, a cross in the band on the base line if there is no score."""
    x = plot.x(min(entry.elapsed_s, plot.x.high))
    css = "seal" if entry.origin == "seal" else "visible"
    if entry.score is None or entry.status != "scored":
        plot.svg.cross(x, plot.base - 7, 3.5, "invalid" if entry.status == "invalid" else "fault", _title(entry))
    elif not plot.y.low <= entry.score <= plot.y.high:
        low = entry.score < plot.y.low
        y = plot.y.start - 2 if low else plot.top + 2
        d = f"M{x - 4:.1f} {y - 6 if low else y + 6:.1f}h8l-4 {6 if low else -6}Z"
        plot.svg.add("path", f"{css} off", title=f"{_title(entry)} (beyond the axis)", d=d)
    elif entry.origin == "seal":
        plot.svg.diamond(x, plot.y(entry.score), 6, css, _title(entry))
    else:
        plot.svg.circle(x, plot.y(entry.score), 2.8, css, _title(entry))


def _title(entry: ScoreEntry) -> str:
    what = number(entry.score) if entry.score is not None else f"{entry.status}: {clean(entry.message, 160)}"
    kind = {"seal": "sealed", "silent": "hidden", "final": "visible, scored at the end"}.get(entry.origin, "visible")
    note = f" ({clean(entry.note, 80)})" if entry.note else ""
    return f"{duration(entry.elapsed_s)}: {kind} {what}{note}"


def _used(record: RunRecord) -> float:
    used = record.result.used_s if record.result is not None else None
    return used if used is not None else max((entry.elapsed_s for entry in record.scores), default=0.0)


def _agent(cell: Cell) -> str:
    return clean(cell.agent, 60)
