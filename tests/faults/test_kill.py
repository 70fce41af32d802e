"""kill -9 of a worker at any moment: no process of it is left, no answer is lost, and the folder tells the truth."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from proctor.box.cgroup import Cgroup, find_base
from proctor.box.tree import descendants, state
from proctor.run.folder import RunFolder
from proctor.scoring.scorelog import counting
from proctor.spec import Aggregation, Direction, Ended, Result
from tests.box.support import needs_box, until
from tests.conftest import CommandLine
from tests.support.runs import entries, events, planned, worker

pytestmark = [needs_box, pytest.mark.slow, pytest.mark.xdist_group("kill")]

SCORINGS = 6
AGENT = f"""
export TOKEN_OF_THIS_TEST=@TOKEN@
(setsid sh -c 'trap "" TERM HUP; while :; do sleep 1; done' &)
for i in $(seq {SCORINGS}); do
    echo "{{\\"slope\\": 2.$i}}" > answer.json
    score --note "$i" >> answers.jsonl
    sleep 0.05
done
submit
"""
MOMENTS = 10
SEED = int(os.environ.get("PROCTOR_TEST_SEED", secrets.randbits(32)))
"""Of the moments; give it in PROCTOR_TEST_SEED to see a failure again."""


class Victim:
    """A run whose worker is going to be killed."""

    def __init__(self, root: Path) -> None:
        self.token = secrets.token_hex(8)
        self.run = planned(root, AGENT.replace("@TOKEN@", self.token))
        self.experiment = self.run.root.parent.parent
        self.process = worker(self.run)

    def wait_until(self, reached: Callable[[], bool], seconds: float = 60.0) -> None:
        assert until(lambda: reached() or self.process.poll() is not None, seconds), "the moment never came"

    def kill(self) -> set[int]:
        """SIGKILL; the processes that the worker had at that moment."""
        had = set(descendants(self.process.pid))
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return had

    def living(self, had: set[int]) -> list[str]:
        """What is left of the run: by descent, by control group, by environment, by name."""
        found = [f"descendant {pid}" for pid in had if state(pid) not in ("", "Z")]
        base = find_base()
        if base:
            for path in base.path.glob(f"proctor-{self.process.pid}-*"):
                found += [f"member {pid} of {path.name}" for pid in Cgroup(path, base.files).pids()]
        for process in psutil.process_iter():
            try:
                line, environment = " ".join(process.cmdline()), process.environ()
            except psutil.Error:
                continue
            if self.token in environment.values() or str(self.run.root) in line:
                found.append(f"{process.pid} {line}")
        return found

    def answers(self) -> list[dict[str, Any]]:
        """What the agent was told, as it wrote it down itself."""
        path = self.run.workspace / "answers.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]


def check_log(victim: Victim) -> None:
    """Every answer that reached the agent is in the log, whole and in order."""
    raw = victim.run.scores.read_text() if victim.run.scores.exists() else ""
    logged = entries(victim.run)
    assert len(logged) >= raw.count("\n"), "a line of the log cannot be read"
    assert [entry.n for entry in logged] == list(range(len(logged)))
    told = victim.answers()
    if told and told[-1]["status"] == "error":  # the agent outlived the worker by long enough to see the line break
        assert "does not answer" in told.pop()["message"]
    assert all(answer["status"] == "scored" for answer in told)
    recorded = [(entry.note, entry.score) for entry in logged if entry.origin == "agent"]
    assert [(answer["note"], answer["score"]) for answer in told] == recorded[: len(told)]
    assert len(recorded) <= len(told) + 1, "at most one answer can have been on its way"


def check_result(victim: Victim, result: Result) -> None:
    """The result says what happened, and keeps what was earned."""
    logged = tuple(entries(victim.run))
    best = counting(logged, Direction.LOWER, Aggregation.BEST)
    assert result.visible_best == (best.score if best else None)
    assert result.score_calls == sum(1 for entry in logged if entry.origin == "agent")
    seen = events(victim.run)
    if "sealed" in seen:
        assert (result.ended, result.valid) == (Ended.SUBMITTED, True)
        assert result.raw_score == next(entry.score for entry in logged if entry.origin == "seal")
    else:
        assert (result.ended, result.valid, result.raw_score) == (Ended.INFRASTRUCTURE, False, None)
        assert "died" in result.reason and "last seen" in result.reason
    assert (result.started_at is None) == ("agent_started" not in seen)


def check(victim: Victim, had: set[int], command_line: CommandLine) -> str:
    """Everything that must hold after a kill; in one word how far the run had come."""
    assert until(lambda: victim.living(had) == [], 5.0), victim.living(had)
    check_log(victim)
    before = victim.run.result()
    said = command_line("status", victim.experiment, "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["runs"], said.out
    result = victim.run.result()
    if not victim.run.lock_file.exists():  # the worker had not even begun
        assert result is None
        return "not begun"
    assert result is not None
    check_result(victim, result)
    if before is not None:
        assert result == before
        return "done"
    assert not victim.run.scratch.exists()
    return "sealing" if "agent_ended" in events(victim.run) else "running"


@pytest.fixture(scope="module")
def lifetime(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds that the run takes when nobody kills it; with what it then comes to checked."""
    began = time.monotonic()
    victim = Victim(tmp_path_factory.mktemp("whole"))
    assert victim.process.wait(60.0) == 0
    seconds = time.monotonic() - began
    result = victim.run.result()
    assert result is not None and (result.ended, result.valid, result.score_calls) == (Ended.SUBMITTED, True, SCORINGS)
    assert len(victim.answers()) == SCORINGS
    return seconds


def test_any_moment(tmp_path: Path, lifetime: float, command_line: CommandLine) -> None:
    print(f"PROCTOR_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    stages = []
    for i in range(MOMENTS):
        # One moment in each tenth of the life, so that ten draws see all of it.
        moment = lifetime * (i + rng.random()) / MOMENTS
        victim = Victim(tmp_path / str(i))
        time.sleep(moment)
        had = victim.kill()
        stages.append(f"{moment:.2f} s: {check(victim, had, command_line)}")
    print("\n".join(stages))


@pytest.mark.parametrize(
    ("event", "stage"), [("warming", "running"), ("agent_started", "running"), ("agent_ended", "sealing")]
)
def test_stages_that_are_short(tmp_path: Path, event: str, stage: str, command_line: CommandLine) -> None:
    victim = Victim(tmp_path)
    victim.wait_until(lambda: event in events(victim.run))
    had = victim.kill()
    if event == "agent_started":
        assert len(had) > 2, "there must be boxes, else this shows nothing"
    assert check(victim, had, command_line) in (stage, "done")


def test_in_the_middle_of_a_scoring(tmp_path: Path, command_line: CommandLine) -> None:
    victim = Victim(tmp_path)
    slots = victim.run.scratch / "candidates"
    # A candidate's folder gets its files when a scoring begins.
    victim.wait_until(lambda: any(slots.glob("*/workspace/answer.json")))
    assert check(victim, victim.kill(), command_line) == "running"


def test_control_groups_of_the_killed_worker_are_removed(tmp_path: Path) -> None:
    base = find_base()
    if base is None:
        pytest.skip("no control groups here")
    victim = Victim(tmp_path)
    mine = f"proctor-{victim.process.pid}-*"
    victim.wait_until(lambda: "agent_started" in events(victim.run))
    assert list(base.path.glob(mine))
    had = victim.kill()
    assert until(lambda: victim.living(had) == [], 5.0)
    assert until(lambda: list(base.path.glob(mine)) == [], 5.0)


def test_run_that_was_killed_can_be_told_twice_and_is_not_done_twice(tmp_path: Path, command_line: CommandLine) -> None:
    victim = Victim(tmp_path)
    victim.wait_until(lambda: len(entries(victim.run)) >= 2)
    check(victim, victim.kill(), command_line)
    first = victim.run.result_file.read_bytes()
    assert command_line("status", victim.experiment).code == 0
    assert victim.run.result_file.read_bytes() == first
    again = worker(RunFolder(victim.run.root))
    assert again.wait(60.0) != 0
    assert victim.run.result_file.read_bytes() == first
    assert subprocess.run(["grep", "-c", "has its result already", victim.run.worker_log]).returncode == 0
