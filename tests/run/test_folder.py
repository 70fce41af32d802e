"""The run folder's contracts, and who is working in it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from proctor.errors import InfrastructureError, ProctorError
from proctor.run.folder import BusyError, RunFolder
from proctor.spec import Result
from tests.box.support import needs_box
from tests.support.runs import ran, wait_for
from tests.support.stand import spec_of
from tests.support.toy.task import TASK

pytestmark = needs_box


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return ran(tmp_path_factory.mktemp("good"), "exit 0")[1]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.write_spec(spec_of(TASK))
    return folder


def test_what_is_written_is_read_back(run: RunFolder, good: Result) -> None:
    assert run.spec() == spec_of(TASK)
    assert run.result() is None
    run.write_result(good)
    assert run.result() == good
    assert {"schema", "run_id", "ended", "raw_score"} <= json.loads(run.result_file.read_text()).keys()


DAMAGE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not a"),
    "binary": (b"\xff\xfe\x00", "is not a"),
    "cut": (b'{"schema": 1, "run_id": "x', "is not a"),
    "a list": (b"[1, 2]", "is not a"),
    "nested": (b"[" * 100_000, "is not a"),
    "of the future": (b'{"schema": 2, "news": true}', "schema 2; this Proctor reads 1"),
    "of no schema": (b'{"schema": "one"}', "schema one"),
    "without fields": (b'{"schema": 1}', "Field required"),
    "with a stranger": (b'{"schema": 1, "stranger": 1}', "is not a"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_named(run: RunFolder, name: str) -> None:
    raw, words = DAMAGE[name]
    for file, read in ((run.spec_file, run.spec), (run.result_file, run.result)):
        file.write_bytes(raw)
        with pytest.raises(ProctorError) as caught:
            read()
        assert str(file) in caught.value.message and words in caught.value.message


def test_folders_in_the_place_of_files_are_named(run: RunFolder) -> None:
    run.result_file.mkdir()
    with pytest.raises(ProctorError, match=r"result\.json cannot be read: Is a directory"):
        run.result()
    run.spec_file.unlink()
    run.spec_file.mkdir()
    with pytest.raises(ProctorError, match="is not a run folder"):
        run.spec()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_result_with_a_number_that_is_none_is_refused(run: RunFolder, good: Result, number: str) -> None:
    for field in ("raw_score", "used_s", "visible_best"):
        value: dict[str, Any] = {**good.model_dump(mode="json", by_alias=True), field: "HERE"}
        run.result_file.write_text(json.dumps(value).replace('"HERE"', number))
        with pytest.raises(ProctorError, match=f"{field} is"):
            run.result()


def test_a_result_that_the_disk_does_not_take_is_our_fault(run: RunFolder, good: Result) -> None:
    run.root.joinpath("result.json").mkdir()
    with pytest.raises(InfrastructureError, match="cannot be written") as caught:
        run.write_result(good)
    assert "proctor status" in caught.value.hint
    assert [p.name for p in run.root.iterdir() if p.name.startswith(".")] == []


def test_one_worker_at_a_time(run: RunFolder) -> None:
    assert not run.worker_alive()
    with run.lock():
        assert run.worker_alive()
        with pytest.raises(BusyError, match="another worker is busy"), run.lock(patience_s=0.1):
            pass
    assert not run.worker_alive() and run.lock_file.exists()
    with run.lock():
        pass


def test_a_look_at_the_lock_does_not_keep_a_worker_out(run: RunFolder) -> None:
    """`proctor status` tries the lock for a moment; a worker that starts just then must not give up."""
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            run.worker_alive()

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(50):
            with run.lock():
                assert run.worker_alive()
    finally:
        over.set()
        for looker in lookers:
            looker.join()


def test_the_lock_file_never_lies_there_unlocked_while_its_worker_starts(run: RunFolder) -> None:
    """A free lock means a dead worker, so it must not be free for an instant at the start."""
    seen_free = threading.Event()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            if run.lock_file.exists() and not run.worker_alive() and run.lock_file.exists():
                seen_free.set()

    looker = threading.Thread(target=look)
    looker.start()
    for _ in range(100):
        with run.lock():
            run.lock_file.unlink()  # before it is released
    over.set()
    looker.join()
    assert not seen_free.is_set()
    assert [p.name for p in run.root.iterdir()] == ["run.json"]


def test_a_killed_worker_frees_the_lock(run: RunFolder) -> None:
    holding = "import pathlib, sys, time, proctor.run.folder as f\n"
    holding += "with f.RunFolder(pathlib.Path(sys.argv[1])).lock(): time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", holding, str(run.root)])
    try:
        wait_for(run.worker_alive)
    finally:
        process.kill()
        process.wait()
    assert not run.worker_alive()
