"""The local pool: a number of workers at a time, each accounted for, and orders that reach every one of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proctor.executors import local
from proctor.executors.local import LocalPool, last_line
from proctor.run.folder import RunFolder
from proctor.spec import Ended
from tests.support.stand import spec_of
from tests.support.toy.task import TASK

pytestmark = pytest.mark.usefixtures("no_leftovers")


def folders(root: Path, count: int) -> list[RunFolder]:
    made = []
    for i in range(count):
        run = RunFolder(root / f"run{i}")
        run.write_spec(spec_of(TASK, run_id=f"run{i}"))
        made.append(run)
    return made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Workers are replaced by a small program that the test gives; the folders they were started for."""
    seen: list[str] = []
    popen = subprocess.Popen

    def start(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        assert command[1:4] == ["-m", "proctor", "worker"]
        seen.append(Path(command[4]).name)
        return popen([sys.executable, "-c", PROGRAM, command[4]], **how)

    monkeypatch.setattr(local.subprocess, "Popen", start)
    monkeypatch.setattr(local, "POLL_S", 0.01)
    return seen


PROGRAM = """
import fcntl, pathlib, sys, time
root = pathlib.Path(sys.argv[1])
exec((root / "program").read_text())
"""
LOCK = "lock = open(root / 'worker.lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX)\n"


def program(runs: list[RunFolder], text: str) -> None:
    for run in runs:
        (run.root / "program").write_text(text)


def test_every_run_is_started_once_and_no_more_than_the_jobs_at_a_time(tmp_path: Path, started: list[str]) -> None:
    runs = folders(tmp_path, 5)
    program(runs, "time.sleep(0.1)")
    most = 0

    def tick() -> None:
        nonlocal most
        most = max(most, len(pool._running))

    pool = LocalPool(runs, 2, tick)
    pool.run()
    assert started == [f"run{i}" for i in range(5)] and most == 2
    assert set(pool.failures) == set(started), "none left a result"


def test_a_worker_that_dies_is_closed_with_what_it_said(tmp_path: Path, started: list[str]) -> None:
    runs = folders(tmp_path, 2)
    program(runs[:1], LOCK + "print('MemoryError: no more', file=sys.stderr); sys.exit(7)")
    program(runs[1:], "print('error: it is broken\\n  -> mend it', file=sys.stderr); sys.exit(1)")
    pool = LocalPool(runs, 2, lambda: None)
    pool.run()
    closed = pool.results["run0"]
    assert closed.ended is Ended.INFRASTRUCTURE and closed == runs[0].result()
    assert closed.reason.startswith("the worker ended with status 7 (MemoryError: no more)")
    assert pool.failures == {"run1": "the worker ended with status 1 (error: it is broken)"}


def test_a_worker_that_cannot_be_started_does_not_stop_the_others(tmp_path: Path, started: list[str]) -> None:
    runs = folders(tmp_path, 2)
    program(runs, "pass")
    runs[0].worker_log.mkdir()
    pool = LocalPool(runs, 1, lambda: None)
    pool.run()
    assert "no worker could be started" in pool.failures["run0"] and started == ["run1"]


def test_a_damaged_result_is_a_failure_with_its_name(tmp_path: Path, started: list[str]) -> None:
    runs = folders(tmp_path, 1)
    program(runs, "(root / 'result.json').write_text('{')")
    pool = LocalPool(runs, 1, lambda: None)
    pool.run()
    assert "result.json is not a result" in pool.failures["run0"]


@pytest.mark.parametrize("order", ["stop", "kill"])
def test_an_order_reaches_a_worker_that_is_just_being_started(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """A signal handler may run right between the start of a process and its entry in the books."""
    runs = folders(tmp_path, 2)
    program(runs, "time.sleep(60)")
    pool = LocalPool(runs, 1, lambda: None)
    start = local.subprocess.Popen

    def start_and_interrupt(*args: Any, **how: Any) -> subprocess.Popen[bytes]:
        process = start(*args, **how)
        getattr(pool, order)()
        return process

    monkeypatch.setattr(local.subprocess, "Popen", start_and_interrupt)
    pool.run()
    assert started == ["run0"] and pool.failures == {}, "what was not begun is planned, not failed"


DEAF = "import signal; signal.signal(15, signal.SIG_IGN); time.sleep(60)"


@pytest.mark.parametrize(("order", "text"), [("stop", "time.sleep(60)"), ("kill", DEAF)])
def test_orders_end_running_workers(tmp_path: Path, started: list[str], order: str, text: str) -> None:
    runs = folders(tmp_path, 3)
    program(runs, "(root / 'up').touch()\n" + text)
    orders: list[Callable[[], None]] = []

    def tick() -> None:
        if orders and all((run.root / "up").exists() for run in runs[:2]):
            orders.pop()()

    pool = LocalPool(runs, 2, tick)
    orders.append(getattr(pool, order))
    pool.run()
    assert started == ["run0", "run1"]


def test_a_fault_in_the_display_ends_the_workers_too(tmp_path: Path, started: list[str]) -> None:
    runs = folders(tmp_path, 1)
    program(runs, "time.sleep(60)")

    def tick() -> None:
        raise ZeroDivisionError

    pool = LocalPool(runs, 1, tick)
    with pytest.raises(ZeroDivisionError):
        pool.run()
    (process,) = pool._running.values()
    assert process.wait(10) == -15


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert last_line(run) == ""
    cases = {b"": "", b"\n\n": "", b"one\ntwo\n\n": "two", b"what\n  -> do\n": "what", b"-> do": "-> do"}
    for text, last in cases.items():
        run.worker_log.write_bytes(text)
        assert last_line(run) == last
    run.worker_log.write_bytes(b"x" * 10_000 + b"\n\xff end")
    assert last_line(run) == "\ufffd end"
