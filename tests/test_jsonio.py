"""Files that survive a crash, a full disk and odd text."""

from __future__ import annotations

import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.clock import BudgetClock, ManualClock
from proctor.events import EventLog
from proctor.jsonio import append_line, read_lines, to_json, to_plain, write_atomic, write_json


@given(st.text())
def test_any_text_becomes_utf8(text: str) -> None:
    written = to_json({"note": text}).encode()
    assert json.loads(written) == {"note": text.encode("utf-8", "replace").decode()}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_json({"score": value})


def test_a_write_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_written_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "x", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_a_line_that_meets_a_full_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    append_line(path, {"n": 0})
    write = os.write

    def half(fd: int, data: Any) -> int:
        if len(data) > 6:
            return write(fd, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        append_line(path, {"n": 1})
    monkeypatch.undo()
    assert path.read_bytes() == b'{"n":0}\n'
    append_line(path, {"n": 2})
    assert list(read_lines(path)) == [{"n": 0}, {"n": 2}]


def test_a_torn_last_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"n": 0}\n{"n": 1, "text": "cut')
    assert list(read_lines(path)) == [{"n": 0}]
    append_line(path, {"n": 2})
    assert list(read_lines(path)) == [{"n": 0}, {"n": 2}]


def test_lines_that_are_no_objects_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'[1]\n"x"\n' + b"[" * 100_000 + b"\n\xff\n" + b'{"n": 1}\n')
    assert list(read_lines(path)) == [{"n": 1}]
    assert list(read_lines(tmp_path / "none")) == []


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.recursive(PLAIN, lambda i: st.lists(i) | st.tuples(i) | st.dictionaries(st.integers() | st.text(), i)))
def test_details_of_any_kind_can_be_written(value: Any) -> None:
    to_json(to_plain(value))


def test_details_keep_their_numbers() -> None:
    value = {
        "a": np.float32(1.5),
        "b": np.arange(3),
        "c": (1, math.nan),
        4: np.bool_(True),
        "d": datetime(2026, 1, 1, tzinfo=UTC),
    }
    assert to_plain(value) == {"a": 1.5, "b": [0, 1, 2], "c": [1, None], "4": True, "d": "2026-01-01 00:00:00+00:00"}
    assert to_plain({"x": object}) == {"x": "<class 'object'>"}
    deep: Any = 0
    for _ in range(5000):
        deep = [deep]
    to_json(to_plain(deep))


def test_events_carry_both_clocks_and_a_full_disk_costs_only_the_event(tmp_path: Path) -> None:
    clock = ManualClock(50.0)
    budget = BudgetClock(60.0, clock)
    log = EventLog(tmp_path / "events.jsonl", clock, budget)
    log.write("before")
    budget.start()
    clock.advance(1.5)
    log.write("after", detail="\ud800")
    assert list(read_lines(tmp_path / "events.jsonl")) == [
        {"at": "1970-01-01T00:00:50+00:00", "elapsed_s": 0.0, "event": "before"},
        {"at": "1970-01-01T00:00:51.500000+00:00", "elapsed_s": 1.5, "event": "after", "detail": "?"},
    ]
    (tmp_path / "full").symlink_to("/dev/full")
    EventLog(tmp_path / "full", clock).write("lost")
