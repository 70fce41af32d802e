"""`index.sqlite`: the runs of an experiment as one table, for quick questions. Never the source of truth.

It is rebuilt from the run folders whenever it is asked for, so that deleting it loses nothing.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from proctor.errors import ProctorError
from proctor.run.plan import Experiment

COLUMNS = (
    "run_id TEXT PRIMARY KEY",
    "suite TEXT",
    "task TEXT",
    "tier TEXT",
    "protocol TEXT",
    "agent TEXT",
    "repeat INTEGER",
    "state TEXT",
    "valid INTEGER",
    "raw_score REAL",
    "normalised_score REAL",
    "used_s REAL",
    "score_calls INTEGER",
    "findings INTEGER",
)


def rebuild(experiment: Experiment) -> Path | None:
    """Write the index anew, in one step, and return its path; None if it cannot be written, which loses nothing.

    `state` is how a run ended, or `unfinished`.
    """
    path = experiment.folder / "index.sqlite"
    fresh = experiment.folder / f".index-{os.getpid()}.sqlite"
    try:
        fresh.unlink(missing_ok=True)
        with closing(sqlite3.connect(fresh)) as base, base:
            base.execute(f"CREATE TABLE runs ({', '.join(COLUMNS)})")
            base.executemany(f"INSERT INTO runs VALUES ({', '.join('?' * len(COLUMNS))})", _rows(experiment))
        os.replace(fresh, path)
    except (OSError, sqlite3.Error):
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        return None
    return path


def _rows(experiment: Experiment) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for run in experiment.runs:
        try:
            spec, result = run.spec(), run.result()
        except ProctorError:
            continue  # an unreadable folder is reported where it is read, not here
        ended: tuple[object, ...] = ("unfinished", None, None, None, None, None, None)
        if result is not None:
            ended = (
                result.ended.value,
                result.valid,
                result.raw_score,
                result.normalised_score,
                result.used_s,
                result.score_calls,
                len(result.integrity),
            )
        cell = (spec.suite, spec.task, spec.tier, spec.protocol, spec.agent.label, spec.repeat)
        rows.append((spec.run_id, *cell, *ended))
    return rows
