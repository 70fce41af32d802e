"""Orders to stop, at every stage of a run: it ends cleanly, keeps everything and has a result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from proctor.run.folder import RunFolder
from proctor.run.plan import Experiment, open_experiment
from proctor.spec import Ended, Result
from tests.box.support import needs_box
from tests.support.runs import entries, events, planned, script, wait_for, worker

pytestmark = [needs_box, pytest.mark.slow, pytest.mark.usefixtures("no_leftovers")]
ANSWER = """answer() { echo "{\\"slope\\": $1}" > answer.json; }\n"""
SLOW = "printf 'import time\\ndef predict(x):\\n    time.sleep(0.5)\\n    return 2 * x\\n' > solve.py\n"


@pytest.fixture(autouse=True)
def _nobody_left(tmp_path: Path) -> Iterator[None]:
    """No process that names the test's folder outlives the test."""
    yield
    wait_for(lambda: not _naming(tmp_path), 10)


def _naming(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if any(str(folder) in word for word in line):
            found.append(" ".join(line))
    return found


def phase(run: RunFolder) -> str | None:
    try:
        return str(json.loads(run.live.read_text())["phase"])
    except (OSError, ValueError):
        return None


def stopped(run: RunFolder, when: Callable[[], object], number: int = signal.SIGTERM, **environment: str) -> Result:
    """The result of a run whose worker gets a signal as soon as something is so."""
    process = worker(run, **environment)
    try:
        wait_for(when)
        process.send_signal(number)
        code = process.wait(60)
    finally:
        process.kill()
        process.wait()
    result = run.result()
    assert result is not None, run.worker_log.read_text()
    assert code == (2 if result.ended is Ended.INFRASTRUCTURE else 0)
    assert run.worker_log.read_text() == "", "no traceback"
    assert not run.scratch.exists() and not run.live.exists() and not run.socket.exists()
    return result


def test_while_the_data_is_being_made(tmp_path: Path) -> None:
    run = planned(tmp_path, "exit 0", data_seed=str(int.from_bytes(os.urandom(4))))
    result = stopped(run, lambda: events(run), TOY_PREPARE_S="0.7")
    assert (result.ended, result.started_at) == (Ended.INFRASTRUCTURE, None)
    assert result.reason == "the run was stopped before the agent started"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_the_agent_works(tmp_path: Path, number: int) -> None:
    """The agent gets its grace, and what it makes of it is scored."""
    working = "answer 9; trap 'answer 2.5; exit 0' TERM; touch ready; while :; do sleep 0.05; done"
    run = planned(tmp_path, ANSWER + working)
    result = stopped(run, (run.workspace / "ready").exists, number)
    assert (result.ended, result.limit, result.valid) == (Ended.KILLED, None, True)
    kept = run.snapshots / str(result.artefact) / "files/answer.json"
    assert json.loads(kept.read_text()) == {"slope": 2.5}


def test_while_a_scoring_runs(tmp_path: Path) -> None:
    run = planned(tmp_path, SLOW + "touch ready; score; sleep 60")
    result = stopped(run, lambda: any(run.snapshots.glob("*/snapshot.json")))
    assert (result.ended, result.valid) == (Ended.KILLED, True)
    assert [(e.origin, e.status) for e in entries(run)] == [("agent", "scored"), ("seal", "scored")]


def test_while_the_result_is_sealed(tmp_path: Path) -> None:
    run = planned(tmp_path, SLOW + "submit; sleep 60")
    result = stopped(run, lambda: phase(run) == "sealing")
    assert (result.ended, result.valid) == (Ended.SUBMITTED, True), "the order came too late to change anything"
    assert [e.origin for e in entries(run)] == ["final", "seal"]


def test_while_the_curve_is_scored(tmp_path: Path) -> None:
    writing = 'for i in 1 2 3 4 5 6 7 8; do echo "# $i" >> solve.py; sleep 0.2; done; submit; sleep 60'
    run = planned(tmp_path, SLOW + writing, budget_s=2.0, silent_snapshots=8)
    result = stopped(run, lambda: phase(run) == "scoring the curve")
    assert (result.ended, result.valid) == (Ended.SUBMITTED, True)
    taken = len(run.silent.read_text().splitlines())
    scored = sum(e.origin == "silent" for e in entries(run))
    assert scored < taken, "the rest of the curve was given up"
    assert (run.snapshots / str(result.artefact)).is_dir()


def test_a_second_order_changes_nothing(tmp_path: Path) -> None:
    slow_to_go = "answer 2.5; trap 'sleep 0.6; exit' TERM; touch ready; while :; do sleep 0.05; done"
    run = planned(tmp_path, ANSWER + slow_to_go)
    process = worker(run)
    wait_for((run.workspace / "ready").exists)
    for _ in range(3):
        process.terminate()
        time.sleep(0.1)
    assert process.wait(60) == 0
    result = run.result()
    assert result is not None and result.ended is Ended.KILLED and result.valid


# `proctor run`


class Started:
    """`proctor run` as a process, as somebody at a terminal sees it."""

    def __init__(self, root: Path, agent: str, *more: str) -> None:
        self.out = root / "out"
        command = [sys.executable, "-m", "proctor", "run", "--task", "toy", "--agent", script(root, agent)]
        command += ["--out", str(self.out), "--budget", "60s", "--silent-snapshots", "0", "--memory", "1", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @property
    def experiment(self) -> Experiment:
        return open_experiment(self.out)

    def wait_until_ready(self, count: int) -> None:
        wait_for(lambda: len(list(self.out.glob("runs/*/workspace/ready"))) >= count)

    def end(self) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        return self.process.returncode, out, err

    def results(self) -> dict[str, Any]:
        return {run.root.name[-2:]: run.result() for run in self.experiment.runs}


WORKING = ANSWER + "answer 2.5; score > told; touch ready; sleep 100"
DEAF = ANSWER + "answer 2.5; score > told; trap '' TERM; touch ready; while :; do sleep 1; done"


def test_one_interrupt_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    started = Started(tmp_path, WORKING, "--repeats", "3", "--jobs", "2", "--json")
    started.wait_until_ready(2)
    started.process.send_signal(signal.SIGINT)
    code, out, err = started.end()
    assert code == 130
    assert err.count("stopping: no new runs") == 1 and "Traceback" not in err
    results = started.results()
    assert results["r2"] is None and not (started.experiment.runs[2].workspace).exists()
    for name in ("r0", "r1"):
        assert (results[name].ended, results[name].valid) == (Ended.KILLED, True)
    assert [r["run_id"][-2:] for r in json.loads(out)["runs"]] == ["r0", "r1"]


def test_two_interrupts_kill_at_once_and_still_keep_everything(tmp_path: Path) -> None:
    started = Started(tmp_path, DEAF, "--repeats", "2", "--jobs", "2")
    started.wait_until_ready(2)
    started.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    began = time.monotonic()
    started.process.send_signal(signal.SIGINT)
    code, _, err = started.end()
    assert code == 130 and time.monotonic() - began < 4, "the agents' grace of five seconds was not waited for"
    assert err.count("killing the running ones") == 1 and "Traceback" not in err
    for result in started.results().values():
        assert (result.ended, result.valid) == (Ended.INFRASTRUCTURE, False)
        assert result.visible_best is not None and result.score_calls == 1


def test_workers_whose_parent_is_killed_end_by_themselves(tmp_path: Path) -> None:
    started = Started(tmp_path, WORKING)
    started.wait_until_ready(1)
    started.process.kill()
    started.end()
    (run,) = started.experiment.runs
    wait_for(lambda: run.result() is not None)
    result = run.result()
    assert result is not None and (result.ended, result.valid) == (Ended.KILLED, True)
    assert "the process that started this run is gone" in run.events.read_text()


def test_a_reader_that_leaves_does_not_end_the_exam(tmp_path: Path) -> None:
    started = Started(tmp_path, ANSWER + "sleep 0.5; answer 2.5; submit; sleep 60", "--json")
    assert started.process.stderr is not None
    started.process.stderr.close()
    assert started.process.stdout is not None
    out = started.process.stdout.read()
    started.process.stdout.close()
    started.process.wait(60)
    assert started.process.returncode == 0
    assert json.loads(out)["runs"][0]["valid"] is True
