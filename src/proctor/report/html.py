"""The report as one HTML page: no script, no request to anywhere, figures as inline SVG.

The page's own content security policy forbids scripts and every load, so that text which an agent wrote stays inert
even if escaping had a hole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from proctor import __version__
from proctor.clock import Clock
from proctor.report import figures, words
from proctor.report.export import document
from proctor.report.load import RunRecord
from proctor.report.notes import NOTES
from proctor.report.prose import span, summary, warn
from proctor.report.runview import run_facts
from proctor.report.standings import Standing, headline, standings
from proctor.report.tables import LIMITS, Exam, enforcement, exams, findings, outcome_counts

MAX_LOG_LINES = 120
"""Lines of a score log shown per run; the rest is counted."""


def to_html(records: Sequence[RunRecord], clock: Clock) -> str:
    """The whole page.

    Args:
        records: What `load` gave.
        clock: Says when the page was made.
    """
    all_exams = exams(records)
    rows = standings(all_exams)
    colours = {agent: i for i, agent in enumerate(sorted({record.agent for record in records}))}
    context = {
        "version": __version__,
        "made": words.moment(clock.now()),
        "head": heading(records),
        "counts": outcome_counts(records),
        "summary": summary(records, rows),
        "warnings": warn(records, all_exams),
        "groups": _groups(rows, colours),
        "exams": [_exam_view(exam, colours) for exam in all_exams],
        "findings": findings(records),
        "enforcement": enforcement(records),
        "limits": LIMITS,
        "records": records,
        "numbers": {(r.spec.experiment, r.spec.run_id): i for i, r in enumerate(records)},
        "colours": colours,
        "notes": NOTES,
        "data": inline_json(document(records)),
    }
    return _environment().get_template("page.html.j2").render(context)


def heading(records: Sequence[RunRecord]) -> dict[str, str]:
    """What the page is about: experiments, dates, versions, hardware."""
    results = [record.result for record in records if record.result is not None]
    dates = sorted(result.started_at for result in results if result.started_at is not None)
    days = list(dict.fromkeys(words.day(date) for date in (dates[0], dates[-1]))) if dates else []
    hardware = sorted({words.facts(result.hardware, brief=True) for result in results} - {""})
    versions = sorted({result.versions.get("proctor", "unknown") for result in results})
    return {
        "title": words.listing(sorted({words.clean(record.spec.experiment, 80) for record in records})),
        "date": " to ".join(days) or "not started",
        "proctor": words.listing(versions) or "unknown",
        "hardware": "; ".join(hardware) or "not recorded",
        "tiers": words.listing(sorted({record.spec.tier for record in records})),
        "protocols": words.listing(sorted({record.spec.protocol.value for record in records})),
    }


def inline_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: nothing in it can end the element or start another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _groups(rows: Sequence[Standing], colours: dict[str, int]) -> list[dict[str, Any]]:
    """Standings by suite, with the figure of the best of k."""
    groups: dict[tuple[str, str, str], list[Standing]] = {}
    for row in rows:
        groups.setdefault((row.suite, row.tier, row.protocol), []).append(row)
    return [
        {
            "suite": suite,
            "tier": tier,
            "protocol": protocol,
            "rows": group,
            "headline": headline(suite),
            "figure": figures.best_of_k_figure(group, colours),
        }
        for (suite, tier, protocol), group in groups.items()
    ]


def _exam_view(exam: Exam, colours: dict[str, int]) -> dict[str, Any]:
    frame = figures.frame_of(exam)
    return {
        "exam": exam,
        "strips": {cell.agent: figures.strip(exam, cell, colours) for cell in exam.cells},
        "wide": figures.exam_figure(exam, frame, colours, 1080) if frame else None,
        "narrow": figures.exam_figure(exam, frame, colours, 400) if frame else None,
        "runs": [(record, figures.run_figure(exam, record, frame) if frame else None) for record in exam.records],
    }


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("proctor.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "DASH": words.DASH,
        "MAX_LOG_LINES": MAX_LOG_LINES,
        "clean": words.clean,
        "count": words.count,
        "difference": words.difference,
        "duration": words.duration,
        "facts": words.facts,
        "number": words.number,
        "percent": words.percent,
        "run_facts": run_facts,
        "share": words.share,
        "span": span,
        "spread": words.spread,
    }
    return environment
