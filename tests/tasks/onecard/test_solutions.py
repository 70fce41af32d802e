"""The starting and the reference solutions run, and what they write is scored; on tiny data, for a few steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from proctor.jsonio import write_json
from proctor.tasks.base import Task, with_constants
from proctor.tasks.onecard.forecasting import data
from proctor.tasks.onecard.forecasting.task import TASK as FORECASTING
from proctor.tasks.onecard.language_modeling import data as text_data
from proctor.tasks.onecard.language_modeling import grammar
from proctor.tasks.onecard.language_modeling.task import TASK as LANGUAGE_MODELING
from tests.tasks.onecard.support import TARGET, evaluate

TINY: Mapping[str, Mapping[str, object]] = {
    "forecasting/start": {"EPOCHS": 1},
    "forecasting/reference": {"EPOCHS": 1, "SEEDS": 1, "KINDS": ("centred linear", "mlp", "across")},
    "language_modeling/start": {"EPOCHS": 1},
    "language_modeling/reference": {"SCHEDULES": (2, 3), "MEMBERS": 2, "BLOCK_SIZE": 64},
}


def lay_out(task: Task, kind: str, folder: Path) -> tuple[Path, Path]:
    """A workspace with the solution, and tiny data; returns workspace and data folder (public and private in one)."""
    workspace, data_folder = folder / "workspace", folder / "data"
    workspace.mkdir()
    data_folder.mkdir()
    files = {**task.start_files("mini"), **(task.reference_files("mini") if kind == "reference" else {})}
    files["train.py"] = with_constants(files["train.py"].decode(), TINY[f"{task.id}/{kind}"]).encode()
    for name, content in files.items():
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_bytes(content)
    if task is FORECASTING:
        series = data.generate(5)
        np.save(data_folder / "train.npy", series.train[-900:])
        np.save(data_folder / "val.npy", series.val[:200])
        np.save(data_folder / "hidden.npy", series.with_lookback("val")[: 336 + 200])
        write_json(data_folder / "meta.json", {"visible": "val"})
    else:
        for name, (text, _) in zip(("train", "val"), grammar.write_text(5, (9000, 6000)), strict=True):
            np.save(data_folder / f"{name}.npy", text_data.encode(text, grammar.ALPHABET))
        np.save(data_folder / "hidden.npy", np.load(data_folder / "val.npy"))
        write_json(data_folder / "meta.json", {"characters": grammar.ALPHABET})
    return workspace, data_folder


@pytest.mark.parametrize("kind", ["start", "reference"])
@pytest.mark.parametrize("task", [FORECASTING, LANGUAGE_MODELING], ids=lambda task: task.id)
def test_solutions_run_and_are_scored(task: Task, kind: str, tmp_path: Path) -> None:
    workspace, data_folder = lay_out(task, kind, tmp_path)
    env = {
        "PATH": os.environ["PATH"],
        "PROCTOR_DATA": str(data_folder),
        "PROCTOR_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=workspace, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = task.start_command if kind == "start" else task.reference_command
    assert command is not None
    assert run(*command[1:]).strip(), "progress is printed"
    # The split that plays the hidden one here is the agent's own, so that both scorers can be compared.
    result = evaluate(task, workspace, data_folder)
    assert result.findings == ()
    if kind == "start":
        line = json.loads(run("prepare.py", "--eval", TARGET))
        assert line["metric"] == task.metric.name
        assert line["score"] == pytest.approx(result.score, rel=1e-5)
