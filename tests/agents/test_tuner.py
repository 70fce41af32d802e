"""The tuner's search, outside of a box: stand-ins for the tools, a script whose best constants are known."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from proctor.agents.registry import get_agent
from proctor.agents.tuner import SCRIPT

pytest.importorskip("optuna")

SOURCE = """\
# LEARNING_RATE = 5.0
LEARNING_RATE = 3e-4  # steps are small
HIDDEN = 64
LAYERS=3
BLOCK = 1 << 16
DROPOUT = 0.1
SEED = 7
NAME = "x"
lower = 5
NEGATIVE = -1
BIG = 10_000
ZERO = 0
    INDENTED = 4
"""


@pytest.fixture(scope="module")
def tune() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tune", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_top_level_positive_numbers_are_what_is_tuned(tune: ModuleType) -> None:
    assert tune.constants(SOURCE) == {
        "LEARNING_RATE": 3e-4,
        "HIDDEN": 64,
        "LAYERS": 3,
        "BLOCK": 1 << 16,
        "DROPOUT": 0.1,
        "BIG": 10_000,
    }


def test_rewriting_changes_these_lines_and_nothing_else(tune: ModuleType) -> None:
    new = tune.rewritten(SOURCE, {"LEARNING_RATE": 1e-3, "HIDDEN": 128, "BLOCK": 1 << 12})
    changed = [(a, b) for a, b in zip(SOURCE.splitlines(), new.splitlines(), strict=True) if a != b]
    assert changed == [
        ("LEARNING_RATE = 3e-4  # steps are small", "LEARNING_RATE = 0.001  # steps are small"),
        ("HIDDEN = 64", "HIDDEN = 128"),
        ("BLOCK = 1 << 16", "BLOCK = 4096"),
    ]
    assert tune.rewritten(SOURCE, tune.constants(SOURCE)).count("\n") == SOURCE.count("\n")


class Trial:
    """Gives the lowest, or the highest, of every range."""

    def __init__(self, pick: int) -> None:
        self.pick = pick

    def suggest_int(self, _name: str, low: int, high: int, log: bool = False) -> int:
        return (low, high)[self.pick]

    def suggest_float(self, _name: str, low: float, high: float, log: bool = False) -> float:
        return (low, high)[self.pick]


@pytest.mark.parametrize("value", [1, 3, 7, 8, 64, 1 << 16, 10_000, 3e-4, 0.1, 0.9, 1.5, 100.0])
def test_proposals_keep_their_kind_and_sense(tune: ModuleType, value: float) -> None:
    low, high = (tune.propose(Trial(pick), "X", value) for pick in (0, 1))
    assert type(low) is type(high) is type(value)
    assert 0 < low <= value <= high
    if value < 1:
        assert high < 1
    if isinstance(value, int) and value >= 8 and value & (value - 1) == 0:
        assert low & (low - 1) == 0 and high & (high - 1) == 0


TOOL = """\
import json, pathlib, re, sys
here = pathlib.Path({here!r})
calls = here / "calls.jsonl"
name = sys.argv.pop(1)
past = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
answer = {{"status": "ok", "remaining_s": 100.0 if sum(p["tool"] == "score" for p in past) < {trials} else 1.0}}
if name == "score":
    target = sys.argv[1] if sys.argv[1] != "--note" else "script.py"
    x = float(re.search(r"X = ([0-9.]+)|x.: ([0-9.]+)", pathlib.Path(target).read_text()).expand(r"\\1\\2"))
    answer = {{"status": "scored", "score": (x - 3.0) ** 2, "message": ""}}
with calls.open("a") as log:
    log.write(json.dumps({{"tool": name, "words": sys.argv[1:], "score": answer.get("score")}}) + "\\n")
print(json.dumps(answer))
"""


class Exam:
    """A workspace with stand-ins for the tools."""

    def __init__(self, root: Path, script: str, trials: int) -> None:
        self.workspace, self.tools = root / "workspace", root / "tools"
        self.workspace.mkdir()
        self.tools.mkdir()
        (self.workspace / "script.py").write_text(script)
        tool = self.tools / "tool.py"
        tool.write_text(TOOL.format(here=str(root), trials=trials))
        for name in ("score", "clock", "submit"):
            path = self.tools / name
            # By a shell: the path of an interpreter with a space in it is no good after #!.
            path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(tool))} {name} "$@"\n')
            path.chmod(0o755)
        self._calls = root / "calls.jsonl"

    def tune(self, mode: str, direction: str = "lower") -> str:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "script.py", mode, direction, "0"],
            cwd=self.workspace,
            env={**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def calls(self, tool: str) -> list[dict[str, Any]]:
        return [c for c in map(json.loads, self._calls.read_text().splitlines()) if c["tool"] == tool]


@pytest.mark.parametrize("direction", ["lower", "higher"])
def test_a_script_that_is_the_submission_ends_as_its_best_version(tmp_path: Path, direction: str) -> None:
    exam = Exam(tmp_path, "X = 1.5\n", trials=6)
    exam.tune("edit", direction)
    scores = [c["score"] for c in exam.calls("score")]
    best = min(scores) if direction == "lower" else max(scores)
    assert scores[0] == (1.5 - 3.0) ** 2, "the script as it is comes first"
    assert len(scores) == 6 and len(set(scores)) > 1
    x = float((exam.workspace / "script.py").read_text().split("=")[1])
    assert (x - 3.0) ** 2 == pytest.approx(best)
    assert len(exam.calls("submit")) == 1


TRAIN = """\
X = 1.5
import json, pathlib, sys
if "trial" in sys.argv: sys.exit(1)
pathlib.Path("checkpoints").mkdir(exist_ok=True)
pathlib.Path("checkpoints/best.pt").write_text(json.dumps({"x": X}))
"""


def test_a_training_script_leaves_a_scored_checkpoint_for_every_trial(tmp_path: Path) -> None:
    exam = Exam(tmp_path, TRAIN, trials=3)
    exam.tune("train")
    targets = [c["words"][0] for c in exam.calls("score")]
    assert targets == [f"checkpoints/trial_{i}.pt" for i in range(3)]
    assert all((exam.workspace / target).exists() for target in targets)
    assert len(exam.calls("submit")) == 1


def test_a_script_that_fails_or_has_nothing_to_tune_still_ends(tmp_path: Path) -> None:
    exam = Exam(tmp_path, "import sys\nsys.exit('no luck')\n", trials=99)
    said = exam.tune("train")
    assert "trial 0: None {} no luck" in said and "best None" in said
    assert exam.calls("score") == [] and len(exam.calls("submit")) == 1


def test_the_launch_names_the_script_and_the_direction() -> None:
    from proctor.agents.base import Sitting
    from proctor.box.base import BoxPaths
    from tests.support.stand import spec_of
    from tests.support.toy.task import TASK

    launch = get_agent("tuner").launch(Sitting(spec_of(TASK, seed=3, repeat=2), TASK, BoxPaths(), "", "python"))
    assert launch.argv == ("python", "/opt/agent/tune.py", "start.sh", "train", "lower", "5")
    assert launch.files["tune.py"] == SCRIPT.read_bytes()
