"""The index of an experiment: rebuilt from its folders, and nothing that anything rests on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from proctor.run.index import rebuild
from proctor.run.plan import Order, plan


def test_the_index_is_rebuilt_from_the_run_folders(tmp_path: Path) -> None:
    experiment = plan(Order(tasks=["toy"], agents=["starter"], repeats=2, out=tmp_path / "e"), datetime.now(UTC))
    for _ in range(2):
        path = rebuild(experiment)
        assert path is not None
        with closing(sqlite3.connect(path)) as base:
            rows = base.execute("SELECT run_id, task, repeat, state, raw_score FROM runs ORDER BY repeat").fetchall()
        assert [row[1:] for row in rows] == [("toy", 0, "unfinished", None), ("toy", 1, "unfinished", None)]
        path.unlink()


def test_an_index_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    experiment = plan(Order(tasks=["toy"], agents=["starter"], out=tmp_path / "e"), datetime.now(UTC))
    (experiment.folder / "index.sqlite").mkdir()
    assert rebuild(experiment) is None
    assert not list(experiment.folder.glob(".index-*"))
