"""The score log: whole lines, numbered without gaps, and the entry that counts."""

from __future__ import annotations

import json
import math
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.scoring.scorelog import KEPT_FAULTS, ScoreLog, counting, read_scores, unjudged, worth_keeping
from proctor.spec import Aggregation, Direction, ScoreEntry
from tests.support.toy.task import BLIND, TASK

ENTRIES = st.lists(
    st.builds(
        lambda n, origin, split, status, score: entry(n=n, origin=origin, split=split, status=status, score=score),
        st.integers(0, 99),
        st.sampled_from(["agent", "final", "silent", "seal"]),
        st.sampled_from(["visible", "hidden"]),
        st.sampled_from(["scored", "invalid", "error"]),
        st.none() | st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0]),
    ),
    max_size=12,
)


def entry(**changes: Any) -> ScoreEntry:
    values: dict[str, Any] = {
        "n": 0,
        "origin": "agent",
        "split": "visible",
        "elapsed_s": 1.0,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "status": "scored",
        "score": 1.0,
        "message": "",
        **changes,
    }
    return ScoreEntry(**values)


def eligible(e: ScoreEntry) -> bool:
    return (
        e.split == "visible"
        and e.origin in ("agent", "final")
        and e.status == "scored"
        and e.score is not None
        and math.isfinite(e.score)
    )


@settings(max_examples=400, deadline=None)
@given(entries=ENTRIES, direction=st.sampled_from(Direction), aggregation=st.sampled_from(Aggregation))
def test_what_counts_is_visible_scored_and_finite(
    entries: list[ScoreEntry], direction: Direction, aggregation: Aggregation
) -> None:
    chosen = counting(tuple(entries), direction, aggregation)
    candidates = [e for e in entries if eligible(e)]
    if not candidates:
        assert chosen is None
        return
    assert chosen is not None and eligible(chosen) and any(chosen is e for e in entries)
    if aggregation is Aggregation.LAST:
        assert chosen is candidates[-1]
    else:
        best = (min if direction is Direction.LOWER else max)(e.score for e in candidates if e.score is not None)
        assert chosen is next(e for e in candidates if e.score == best), "the earliest of equals"


def test_numbers_run_without_gaps_from_several_threads(tmp_path: Path) -> None:
    log = ScoreLog(tmp_path / "scores.jsonl")
    threads = [threading.Thread(target=lambda: [log.append(entry()) for _ in range(20)]) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [e.n for e in log.entries] == list(range(100))
    assert [e.n for e in read_scores(tmp_path / "scores.jsonl")] == list(range(100))


def test_a_log_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first = ScoreLog(tmp_path / "scores.jsonl")
    first.append(entry(note="one"))
    assert ScoreLog(tmp_path / "scores.jsonl").append(entry()).n == 1


@pytest.mark.parametrize(
    "tear", [b'{"n": 1, "origin": "ag', b"\0" * 50, b"[1, 2]\n", b'{"n": "x"}\n', b"\xff\xfe\n", b"\n"]
)
def test_a_damaged_line_costs_only_itself(tmp_path: Path, tear: bytes) -> None:
    path = tmp_path / "scores.jsonl"
    ScoreLog(path).append(entry(note="before"))
    with path.open("ab") as stream:
        stream.write(tear)
    log = ScoreLog(path)
    assert [e.note for e in log.entries] == ["before"]
    log.append(entry(note="after"))
    assert [e.note for e in read_scores(path)] == ["before", "after"]


def test_a_line_that_cannot_be_written_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    log = ScoreLog(path)
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        log.append(entry())
    assert log.entries == ()


def test_missing_and_unreadable_numbers_in_a_log_never_win(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    good = json.loads(entry(score=3.0).model_dump_json())
    for score in ("NaN", "null", "-Infinity", "3.0", "Infinity"):
        with path.open("a") as stream:
            stream.write(json.dumps({**good, "score": "HERE"}).replace('"HERE"', score) + "\n")
    for aggregation in Aggregation:
        for direction in Direction:
            chosen = counting(tuple(read_scores(path)), direction, aggregation)
            assert chosen is not None and chosen.score == 3.0


def test_only_artefacts_without_a_verdict_are_unjudged() -> None:
    fault = {"status": "error", "score": None}
    entries = (
        entry(sha256="a", artefact="a", **fault),
        entry(sha256="b", artefact="b", **fault),
        entry(sha256="b", artefact="b", note="again", **fault),
        entry(sha256="a", artefact="a", status="invalid", score=None),
        entry(sha256=None, artefact=None, **fault),
        entry(sha256="c", artefact="c", split="hidden", origin="seal", **fault),
    )
    assert [(e.sha256, e.note) for e in unjudged(entries)] == [("b", "again")]
    many = tuple(entry(sha256=str(i), artefact=str(i), **fault) for i in range(20))
    assert [e.sha256 for e in unjudged(many)] == [str(i) for i in range(20 - KEPT_FAULTS, 20)]


def test_kept_are_the_best_of_each_window_the_counting_one_the_last_and_the_unjudged() -> None:
    def at(elapsed: float, score: float | None, name: str, **more: Any) -> ScoreEntry:
        return entry(elapsed_s=elapsed, score=score, artefact=name, sha256=name, **more)

    entries = (
        at(10, 5.0, "first"),
        at(20, 3.0, "best of the first window"),
        at(30, 4.0, "third"),
        at(310, 6.0, "best of the second window"),
        at(320, 7.0, "worse"),
        at(330, None, "fault", status="error"),
        at(340, None, "last", status="invalid"),
        at(350, 0.1, "hidden", split="hidden", origin="silent"),
    )
    assert worth_keeping(entries, TASK) == {"best of the first window", "best of the second window", "fault", "last"}
    assert worth_keeping(entries, BLIND) >= {"worse"}, "where the last counts, the last valid one is kept"
