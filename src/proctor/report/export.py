"""CSV and JSON: one row per planned run, with documented columns, and in JSON the tables as well."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from proctor import __version__
from proctor.report.load import RunRecord
from proctor.report.standings import Standing, standings
from proctor.report.tables import Cell, exams, findings, outcome_counts
from proctor.report.words import Maybe
from proctor.spec import SCHEMA, Enforced

Value = str | int | float | bool | None


class Column(NamedTuple):
    """One column: its name, what it holds, and how it is read from a run."""

    name: str
    meaning: str
    read: Callable[[RunRecord], Value]


def _from_result(field: str) -> Callable[[RunRecord], Value]:
    """Reads `a.b` from the result; None without a result."""

    def read(record: RunRecord) -> Value:
        value: Any = record.result
        for part in field.split("."):
            if value is None:
                return None
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
        return value if value is None or isinstance(value, (bool, int, float)) else str(value)

    return read


def _n_findings(severity: str) -> Callable[[RunRecord], Value]:
    return lambda record: sum(row.finding.severity == severity for row in findings([record]))


COLUMNS: tuple[Column, ...] = (
    Column("experiment", "name of the experiment", lambda r: r.spec.experiment),
    Column("run_id", "name of the run, unique in its experiment", lambda r: r.spec.run_id),
    Column("suite", "suite of the task", lambda r: r.spec.suite),
    Column("task", "task", lambda r: r.spec.task),
    Column("tier", "mini or full", lambda r: r.spec.tier),
    Column("protocol", "sealed or published", lambda r: r.spec.protocol.value),
    Column("agent", "agent, with its argument", lambda r: r.agent),
    Column("agent_version", "version of the agent", _from_result("agent_version")),
    Column("model", "model that the agent used", _from_result("model")),
    Column("repeat", "number of the repeat, from 0", lambda r: r.spec.repeat),
    Column("seed", "seed given to the run", lambda r: r.spec.seed),
    Column("data_seed", "release, fresh or a number: where generated data came from", lambda r: r.spec.data_seed),
    Column("device", "cpu or cuda", lambda r: r.spec.device),
    Column(
        "outcome",
        "scored, invalid, voided, infrastructure, stopped or unfinished; exactly one",
        lambda r: r.outcome.value,
    ),
    Column("ended", "how it ended: submitted, exited, deadline, killed, infrastructure", _from_result("ended")),
    Column("limit", "which limit fired", _from_result("limit")),
    Column("exit_code", "exit code of the agent's process", _from_result("exit_code")),
    Column("reason", "why there is no score, in words", _from_result("reason")),
    Column("valid", "whether the result holds a valid score", _from_result("valid")),
    Column("metric", "name and unit of the raw score", _from_result("metric")),
    Column("direction", "lower or higher: which is better", _from_result("direction")),
    Column("raw_score", "the score that counts (only where outcome is scored does it)", _from_result("raw_score")),
    Column("start_score", "raw score of the starting solution", _from_result("start_score")),
    Column("reference_score", "raw score of the reference solution", _from_result("reference_score")),
    Column("calibration", "where start and reference score come from", _from_result("calibration")),
    Column(
        "relative_gain", "gain over the start as a share of its size; positive is better", _from_result("relative_gain")
    ),
    Column("normalised_score", "0 at the start, 1 at the reference, no upper cap", _from_result("normalised_score")),
    Column("visible_best", "best score that the agent saw", _from_result("visible_best")),
    Column("sealed_score", "hidden score of that artefact", _from_result("sealed_score")),
    Column("optimism", "gap between the two, as recorded", _from_result("optimism")),
    Column("budget_s", "wall budget, seconds", lambda r: r.spec.budget_s),
    Column("used_s", "seconds used on the agent's clock", _from_result("used_s")),
    Column("scoring_s", "of these, seconds spent on scorings", _from_result("scoring_s")),
    Column("frozen_s", "of these, seconds frozen", _from_result("frozen_s")),
    Column("model_s", "seconds waiting for the model", _from_result("model_s")),
    Column("rate_limit_s", "seconds waiting for rate limits", _from_result("rate_limit_s")),
    Column("gpu_busy_fraction", "share of the time in which the GPU was busy", _from_result("gpu_busy_fraction")),
    Column("score_calls", "scorings that the agent asked for", _from_result("score_calls")),
    Column("scripts_launched", "scripts that the agent started", _from_result("scripts_launched")),
    Column("tokens_input", "input tokens, cached ones included", _from_result("tokens.input")),
    Column("tokens_cached_input", "of these, cached", _from_result("tokens.cached_input")),
    Column("tokens_output", "output tokens", _from_result("tokens.output")),
    Column("cost_usd", "cost of the model calls, US dollars", _from_result("cost_usd")),
    Column("findings_void", "integrity findings that void a scoring", _n_findings("void")),
    Column("findings_warning", "integrity findings to look at", _n_findings("warning")),
    Column("findings_note", "integrity findings without effect", _n_findings("note")),
    Column("problems", "what does not agree in the run's folder", lambda r: " ".join(r.problems)),
    Column("box", "sandbox that held the agent; none means that nothing was enforced", lambda r: r.box),
    *(
        Column(
            f"enforced_{name}", f"how the limit on {name} was held; empty: it was not", _from_result(f"enforced.{name}")
        )
        for name in Enforced.model_fields
    ),
    Column("started_at", "start of the agent's clock, UTC", _from_result("started_at")),
    Column("version_proctor", "version of Proctor that ran it", _from_result("versions.proctor")),
    Column("version_python", "version of Python in the boxes", _from_result("versions.python")),
    Column("version_torch", "version of torch in the boxes", _from_result("versions.torch")),
    Column("artefact_sha256", "hash of the artefact that counts", _from_result("artefact_sha256")),
)
"""The columns of the CSV, and the keys of each run in the JSON. Empty (null) is unknown or not applicable."""


def rows(records: Sequence[RunRecord]) -> list[dict[str, Value]]:
    """One dictionary per planned run, keyed by column name."""
    return [{column.name: column.read(record) for column in COLUMNS} for record in records]


def to_csv(records: Sequence[RunRecord]) -> str:
    """Comma-separated, header first, one line per planned run; full precision, unknown is empty.

    Text that a spreadsheet would run as a formula (first character =, +, -, @) gets an apostrophe before it: agents
    choose some of these texts. The JSON format has them as they are.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(column.name for column in COLUMNS)
    for row in rows(records):
        writer.writerow(_csv_value(value) for value in row.values())
    return stream.getvalue()


def _csv_value(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    return str(value).lower() if isinstance(value, bool) else repr(value)


def to_json(records: Sequence[RunRecord]) -> str:
    """Indented JSON: see `document`."""
    return json.dumps(document(records), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def document(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Everything in the report as plain data: outcomes, standings, cells, findings, runs, and what the columns mean.

    A number that is not known is null; `why` beside it (`mean_why` for `mean`) says why.
    """
    all_exams = exams(records)
    return {
        "schema": SCHEMA,
        "proctor": __version__,
        "outcomes": {outcome.value: n for outcome, n in outcome_counts(records).items()},
        "standings": [_standing(row) for row in standings(all_exams)],
        "cells": [_cell(cell) for exam in all_exams for cell in exam.cells],
        "findings": [
            {
                "experiment": row.record.spec.experiment,
                "run_id": row.record.spec.run_id,
                "where": row.where,
                **row.finding.model_dump(),
            }
            for row in findings(records)
        ],
        "runs": rows(records),
        "columns": {column.name: column.meaning for column in COLUMNS},
    }


def _standing(row: Standing) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return _plain(values)


def _cell(cell: Cell) -> dict[str, Any]:
    numbers = (
        "mean",
        "std",
        "success_rate",
        "relative_gain",
        "normalised",
        "visible_best",
        "sealed",
        "optimism",
        "used_s",
    )
    return _plain(
        {
            **cell.exam._asdict(),
            "agent": cell.agent,
            "n_runs": cell.summary.n_runs,
            "n_valid": cell.summary.n_valid,
            "outcomes": {outcome.value: n for outcome, n in cell.summary.outcomes.items()},
            **{name: getattr(cell, name) for name in numbers},
            "runs": [record.spec.run_id for record in cell.records],
            "mixed": cell.mixed,
        }
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data; a `Maybe` becomes its value, with its reason beside it where it has none."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Maybe):
            plain[name] = value.value
            if value.value is None:
                plain[f"{name}_why"] = value.why
        elif hasattr(value, "__dataclass_fields__"):
            plain[name] = asdict(value)
        else:
            plain[name] = value
    return plain
