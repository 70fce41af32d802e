"""`proctor fetch`: from a folder, and for tasks that need nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar

import pytest

from proctor.data.assets import data_state
from proctor.tasks import registry
from proctor.tasks.base import RemoteFile
from tests.conftest import CommandLine
from tests.support.toy.task import Toy

CONTENT = b"published data\n" * 100


class Published(Toy):
    id = "toy_published"
    files: ClassVar = (
        RemoteFile(
            path="data/train.bin",
            urls=("http://127.0.0.1:9/train.bin",),
            size=len(CONTENT),
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            licence="CC0, by nobody",
        ),
    )


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Published:
    made = Published()
    monkeypatch.setenv("PROCTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(registry.all_tasks(), made.id, made)
    return made


def test_files_are_taken_from_a_folder_and_checked(command_line: CommandLine, task: Published, tmp_path: Path) -> None:
    source = tmp_path / "my disk"
    (source / "data").mkdir(parents=True)
    (source / "data/train.bin").write_bytes(CONTENT)
    assert data_state(task, "full") == "missing"
    answer = command_line("fetch", task.id, "--from", source)
    assert answer.code == 0 and "CC0, by nobody" in answer.err and "ready in" in answer.err and answer.out == ""
    assert data_state(task, "full") == "ready"
    assert command_line("fetch", task.id).code == 0, "what is here is not fetched again"


def test_a_wrong_file_is_refused(command_line: CommandLine, task: Published, tmp_path: Path) -> None:
    source = tmp_path / "disk"
    (source / "data").mkdir(parents=True)
    (source / "data/train.bin").write_bytes(CONTENT[:-1] + b"X")
    answer = command_line("fetch", task.id, "--from", source)
    assert answer.code in (1, 2) and "train.bin" in answer.err and "Traceback" not in answer.err
    assert data_state(task, "full") == "missing"


def test_a_task_with_generated_data_has_nothing_to_fetch(command_line: CommandLine) -> None:
    answer = command_line("fetch", "toy,toy_timed")
    assert answer.code == 0 and answer.err.count("nothing to fetch; its data is generated") == 2


def test_planning_on_missing_data_says_how_to_get_it(command_line: CommandLine, task: Published) -> None:
    answer = command_line("run", "--task", task.id, "--tier", "full", "--device", "cpu", "--agent", "starter")
    assert answer.code == 1 and "proctor fetch toy_published --from DIR" in answer.err
