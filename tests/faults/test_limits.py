"""Whole runs that meet a limit: the run ends, says which limit it was, and what was made before still counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proctor.run import supervise
from proctor.spec import MIB, Ended, Limits
from tests.box.support import needs_box
from tests.support.runs import LIMITS, answers, events, ran

pytestmark = [needs_box, pytest.mark.usefixtures("no_leftovers")]

ANSWER = """echo '{"slope": 2.5}' > answer.json; score"""


def test_full_workspace_warns_then_ends_the_run_and_the_artefact_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "DISK_INTERVAL_S", 0.05)
    fill = "head -c 19000000 /dev/zero > a; sleep 0.5; clock; head -c 5000000 /dev/zero > b; sleep 30"
    limits = LIMITS.model_copy(update={"workspace_bytes": 20 * MIB})
    run, result = ran(tmp_path, f"{ANSWER}; {fill}", limits=limits)
    assert (result.ended, result.valid) == (Ended.KILLED, True)
    # How much of the second file is there when the watch looks is up to the two of them.
    assert re.fullmatch(r"disk: the workspace holds 2[0-3] MiB, 20 MiB are allowed.*", result.limit or "")
    assert result.raw_score is not None and result.raw_score < 1.0
    assert "disk_warning" in events(run)
    assert "over that the run ends" in answers(run)[-1]["warnings"][0]


def test_agent_that_forks_without_end_is_refused_and_its_answer_counts(tmp_path: Path) -> None:
    bomb = """python3 -c '
import os, time
made = 0
try:
    while made < 300:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except OSError as error:
    print("refused after", made, flush=True)
' || true"""
    limits = Limits(memory_bytes=LIMITS.memory_bytes, tmp_bytes=LIMITS.tmp_bytes, pids=60)
    run, result = ran(tmp_path, f"{ANSWER}; {bomb}; submit", limits=limits)
    assert result.valid
    assert result.ended in (Ended.SUBMITTED, Ended.EXITED)  # polled, where the kernel holds no limit
    said = run.stdout.read_text()
    assert "refused after" in said or (result.limit or "").startswith("processes")


def test_memory_hog_dies_and_the_run_goes_on(tmp_path: Path) -> None:
    hog = "python3 -c 'x = bytearray(900 << 20); import time; time.sleep(20)'; echo the hog ended with $?"
    limits = LIMITS.model_copy(update={"memory_bytes": 300 * MIB})
    run, result = ran(tmp_path, f"{ANSWER}; {hog}; submit", limits=limits)
    assert (result.ended, result.valid) == (Ended.SUBMITTED, True)
    assert (result.limit or "").startswith("memory:")
    assert "the hog ended with 137" in run.stdout.read_text()


def test_agent_that_ignores_the_deadline_is_scored_on_what_it_left(tmp_path: Path) -> None:
    stubborn = "trap '' TERM; (setsid sleep 60 &); while :; do sleep 0.1; done"
    run, result = ran(tmp_path, f"{ANSWER}; {stubborn}", budget_s=1.5)
    assert (result.ended, result.valid, result.limit) == (Ended.DEADLINE, True, "time: 1.5 s")
    spec = run.spec()
    assert result.used_s is not None and 1.5 <= result.used_s < 1.5 + spec.grace_s + 1.0


def test_submit_in_the_last_100_milliseconds_is_a_submit(tmp_path: Path) -> None:
    """The agent waits on the harness's own clock, and asks by the socket, since a command takes as long to start."""
    late = """python3 -c '
import json, os, socket
def ask(op):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(os.environ["PROCTOR_SOCKET"])
        line.sendall(json.dumps({"op": op}).encode() + b"\\n")
        return line.makefile().readline()
while json.loads(ask("clock"))["remaining_s"] > 0.1:
    pass
print(ask("submit"), flush=True)
'"""
    run, result = ran(tmp_path, f"{ANSWER}; {late}; sleep 10", budget_s=3.0)
    told = [answer["remaining_s"] for answer in answers(run) if answer["message"].startswith("submitted")]
    if not told or told[0] == 0.0:
        pytest.skip("the machine was too slow to submit in time")
    assert told[0] <= 0.1
    assert (result.ended, result.limit) == (Ended.SUBMITTED, None)
