"""A disk that is full: what had been written counts, what could not be is never taken for the agent's failure."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import InfrastructureError
from proctor.run import folder as folder_module
from proctor.run.recover import close_dead
from proctor.run.worker import work
from proctor.scoring import scorelog, snapshot
from proctor.spec import Ended
from tests.box.support import needs_box
from tests.support.runs import answers, entries, events, planned, ran

pytestmark = needs_box
ANSWER = """answer() { echo "{\\"slope\\": $1}" > answer.json; }\n"""


def full_when(original: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    """A function that meets a full disk when told."""

    def write(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*args, **kwargs)

    return write


@pytest.mark.usefixtures("no_leftovers")
def test_a_scoring_that_could_not_be_logged_is_made_good_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = full_when(scorelog.append_line, lambda _, entry: entry.origin == "agent")
    monkeypatch.setattr(scorelog, "append_line", lines)
    run, result = ran(tmp_path, ANSWER + "answer 2.4; score; submit")
    assert answers(run)[0]["status"] == "error" and "No space left" in answers(run)[0]["message"]
    assert [e.origin for e in entries(run)] == ["final", "seal"] and result.valid


@pytest.mark.usefixtures("no_leftovers")
def test_scores_that_cannot_be_logged_at_all_are_our_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorelog, "append_line", full_when(scorelog.append_line, lambda *_: True))
    run, result = ran(tmp_path, ANSWER + "answer 2.4; score; submit")
    assert (result.ended, result.valid, result.raw_score) == (Ended.INFRASTRUCTURE, False, None)
    assert "could not be written down" in result.reason and entries(run) == []


@pytest.mark.usefixtures("no_leftovers")
def test_a_last_state_that_cannot_be_copied_does_not_cost_what_was_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = full_when(snapshot._write_all, lambda _, data: b"9.75" in data)
    monkeypatch.setattr(snapshot, "_write_all", writing)
    run, result = ran(tmp_path, ANSWER + "answer 2.4; score; answer 9.75; submit")
    assert result.valid and result.ended is Ended.SUBMITTED
    assert [(f.rule, f.severity) for f in result.integrity] == [("final_state_lost", "warning")]
    assert "No space left" in result.integrity[0].evidence and "final_state_lost" in events(run)


@pytest.mark.usefixtures("no_leftovers")
def test_a_run_whose_only_state_cannot_be_copied_is_our_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_write_all", full_when(snapshot._write_all, lambda *_: True))
    _, result = ran(tmp_path, ANSWER + "answer 2.4; score; submit")
    assert (result.ended, result.valid) == (Ended.INFRASTRUCTURE, False)


@pytest.mark.usefixtures("no_leftovers")
def test_a_result_that_cannot_be_written_is_told_from_the_logs_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned(tmp_path, ANSWER + "answer 2.4; score; submit")
    results = full_when(folder_module.write_json, lambda path, *_: path.name == "result.json")
    monkeypatch.setattr(folder_module, "write_json", results)
    with pytest.raises(InfrastructureError, match=r"result\.json cannot be written: No space left"):
        work(run)
    with pytest.raises(InfrastructureError, match="No space left"):
        close_dead(run)
    monkeypatch.undo()
    result = close_dead(run)
    assert result is not None and result.valid and result.ended is Ended.SUBMITTED
    assert result.raw_score == entries(run)[-1].score


@pytest.mark.usefixtures("no_leftovers")
def test_lost_events_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from proctor import events as event_log

    monkeypatch.setattr(event_log, "append_line", full_when(event_log.append_line, lambda *_, **__: True))
    run, result = ran(tmp_path, ANSWER + "answer 2.4; score; submit")
    assert result.valid and events(run) == []


REAL = """
mount -t tmpfs -o size=6m none "$1" && cp -r "$2/." "$1" || exit 99
"$3" -m proctor worker "$1/runs/$4"
code=$?
cp -r "$1/." "$5"
exit $code
"""


def test_an_agent_that_fills_a_real_disk_loses_only_what_comes_after(tmp_path: Path) -> None:
    """In a mount namespace of its own, so that nothing stays mounted."""
    filling = (
        "head -c 100000000 /dev/zero > filler 2>/dev/null; answer 2.6; score; rm filler; answer 2.7; score; submit"
    )
    run = planned(tmp_path, ANSWER + "answer 2.4; score; " + filling)
    small, out = tmp_path / "small", tmp_path / "out"
    small.mkdir()
    out.mkdir()
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("needs root and unshare to mount a small disk")
    experiment = run.root.parents[1]
    words = [small, experiment, sys.executable, run.root.name, out]
    done = subprocess.run([unshare, "-m", "sh", "-c", REAL, "sh", *map(str, words)], capture_output=True, timeout=90)
    if done.returncode == 99:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == 0, done.stderr
    result = json.loads((out / "runs" / run.root.name / "result.json").read_text())
    # What the agent printed while the disk was full is lost, perhaps in the middle of a line.
    printed = (out / "runs" / run.root.name / "agent.stdout").read_text().splitlines()
    told = [json.loads(line) for line in printed if line.startswith("{") and line.endswith("}")]
    statuses = [a["status"] for a in told]
    assert statuses[0] == "scored" and "scored" in statuses[1:], told
    assert result["valid"] and result["ended"] == "submitted"
