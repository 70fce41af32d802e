"""The checkpoint loader's messages: one for each way in which a checkpoint can be unusable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from proctor.errors import InvalidSubmission
from proctor.inbox.lib import checkpoint
from proctor.tasks.onecard.forecasting.task import TASK
from tests.support.local import local_candidate
from tests.tasks.onecard.support import TARGET, write_submission

SOURCE = """
def build_model(config):
    return nn.Sequential(nn.Linear(3, config.get("width", 4)), nn.Dropout(0.5))
"""


@pytest.fixture(autouse=True)
def _own_import_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loader is made for a process of its own; here its traces are taken away again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    yield
    sys.modules.pop("submission", None)


def load(workspace: Path) -> Any:
    return checkpoint.load_model(workspace, TARGET, "cpu")


def message(workspace: Path) -> str:
    with pytest.raises(checkpoint.CheckpointError) as caught:
        load(workspace)
    return str(caught.value)


def resave(workspace: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Pass the saved dict through `change` and save what comes out."""
    saved = torch.load(workspace / TARGET, weights_only=True)
    torch.save(change(saved), workspace / TARGET)


def test_a_good_checkpoint_is_loaded_in_evaluation_mode(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE, {"width": 5}, lambda model: model[0].weight.data.fill_(2.0))
    model, config = load(tmp_path)
    assert config == {"width": 5}
    assert not model.training and not model[1].training
    assert model(torch.ones(1, 3)).shape == (1, 5)
    assert float(model[0].weight.detach().sum()) == 30.0


def test_the_workspace_is_importable_only_once_something_is_loaded(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    (tmp_path / "my_layers.py").write_text("WIDTH = 4\n")
    (tmp_path / "model.py").write_text(
        "import sys\nfrom torch import nn\nimport my_layers\nARGUMENTS = list(sys.argv)\n"
        "def build_model(config):\n    return nn.Sequential(nn.Linear(3, my_layers.WIDTH), nn.Dropout(0.5))\n"
    )
    assert str(tmp_path) not in sys.path
    load(tmp_path)
    seen = sys.modules["submission"].ARGUMENTS
    assert seen == [str(tmp_path / "model.py")]


def test_no_such_file(tmp_path: Path) -> None:
    assert "there is no file checkpoints/model.pt" in message(tmp_path)


def test_the_prefix_of_torch_compile(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    resave(
        tmp_path, lambda s: {**s, "state_dict": {f"_orig_mod.{key}": value for key, value in s["state_dict"].items()}}
    )
    said = message(tmp_path)
    assert "torch.compile" in said
    strip = said[said.index("{k.replace") :]
    saved = torch.load(tmp_path / TARGET, weights_only=True)
    mended = eval(strip, {"state_dict": saved["state_dict"]})
    resave(tmp_path, lambda s: {**s, "state_dict": mended})
    load(tmp_path)  # the advice works


def test_missing_and_unexpected_keys_are_named(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    resave(tmp_path, lambda s: {**s, "state_dict": {"0.weight": s["state_dict"]["0.weight"], "1.scale": torch.ones(1)}})
    said = message(tmp_path)
    assert "1 keys are missing: 0.bias" in said
    assert "1 keys are unexpected: 1.scale" in said


def test_only_the_first_few_keys_are_named(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    extra = {f"extra{i}": torch.ones(1) for i in range(30)}
    resave(tmp_path, lambda s: {**s, "state_dict": {**s["state_dict"], **extra}})
    said = message(tmp_path)
    assert "extra4 and 25 more" in said
    assert "extra5" not in said


def test_shapes_are_compared(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE, {"width": 5})
    resave(tmp_path, lambda s: {**s, "config": {"width": 6}})
    assert "0.weight (checkpoint (5, 3), model (6, 3))" in message(tmp_path)


@pytest.mark.parametrize("value", [[1, 2], torch.ones(3), "text"])
def test_not_a_dict(tmp_path: Path, value: object) -> None:
    write_submission(tmp_path, SOURCE)
    resave(tmp_path, lambda s: value)
    assert f"holds a {type(value).__name__}, not a dict" in message(tmp_path)


def test_a_bare_state_dict_lacks_the_three_keys(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    resave(tmp_path, lambda s: s["state_dict"])
    said = message(tmp_path)
    assert "lacks 'script', 'config', 'state_dict'" in said
    assert "0.weight" in said


def test_parts_of_the_wrong_kind(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    resave(tmp_path, lambda s: {**s, "config": 3})
    assert "config is a int" in message(tmp_path)


def test_the_script_is_missing(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    (tmp_path / "model.py").unlink()
    assert "the workspace has no such Python file" in message(tmp_path)


@pytest.mark.parametrize("script", ["../outside.py", "/etc/outside.py"])
def test_the_script_is_outside_the_workspace(tmp_path: Path, script: str) -> None:
    workspace = write_submission(tmp_path / "workspace", SOURCE)
    (tmp_path / "outside.py").write_text("raise SystemExit('this must not run')\n")
    resave(workspace, lambda s: {**s, "script": script})
    assert "outside the workspace" in message(workspace)


def test_a_link_out_of_the_workspace_is_outside_as_well(tmp_path: Path) -> None:
    workspace = write_submission(tmp_path / "workspace", SOURCE)
    (tmp_path / "outside.py").write_text("raise SystemExit('this must not run')\n")
    (workspace / "linked.py").symlink_to(tmp_path / "outside.py")
    resave(workspace, lambda s: {**s, "script": "linked.py"})
    assert "outside the workspace" in message(workspace)


def test_no_build_model(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    (tmp_path / "model.py").write_text("build_module = None\n")
    assert "has no function build_model(config)" in message(tmp_path)


def test_build_model_returns_something_else(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    (tmp_path / "model.py").write_text("def build_model(config):\n    return [1]\n")
    assert "returned a list, not a torch.nn.Module" in message(tmp_path)


def test_an_error_of_the_script_is_passed_on(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    (tmp_path / "model.py").write_text("def build_model(config):\n    return config['depth']\n")
    with pytest.raises(KeyError, match="depth"):
        load(tmp_path)


class Custom:
    pass


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    resave(tmp_path, lambda s: {**s, "config": {"thing": Custom()}})
    said = message(tmp_path)
    assert "holds pickled objects" in said
    assert "Custom" in said
    assert said.count("weights_only") == 1, "torch's advice to turn the protection off must not be passed on"


@pytest.mark.parametrize("keep", [0, 10, 400, -100])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    write_submission(tmp_path, SOURCE)
    whole = (tmp_path / TARGET).read_bytes()
    (tmp_path / TARGET).write_bytes(whole[:keep])
    said = message(tmp_path)
    assert "truncated" in said or "damaged" in said


def test_a_text_file(tmp_path: Path) -> None:
    write_submission(tmp_path, SOURCE)
    (tmp_path / TARGET).write_text("these are not weights\n" * 10)
    assert "is not a torch.save file" in message(tmp_path)


def test_a_forward_that_returns_a_tuple_or_whole_numbers_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_submission(tmp_path, SOURCE)
    monkeypatch.chdir(tmp_path)
    for value, said in (("(x, None)", "returned a tuple"), ("x.long()", "returned torch.int64")):
        (tmp_path / "model.py").write_text(
            "from torch import nn\nclass M(nn.Sequential):\n"
            f"    def forward(self, x):\n        return {value}\n"
            "def build_model(config):\n    return M(nn.Linear(3, 4), nn.Dropout(0.5))\n"
        )
        server = checkpoint.ModelServer()
        server.load({"target": TARGET, "device": "cpu"}, {}, [])
        with pytest.raises(checkpoint.CheckpointError, match=said):
            server.predict({}, {"x": torch.ones(2, 3).numpy()}, [])


def test_an_error_while_the_model_is_built_is_told_with_its_own_frames(tmp_path: Path) -> None:
    """The script's arguments are not the driver's: telling the error must not rest on them."""
    (tmp_path / "model.py").write_text('import sys\nsys.argv = []\ndef build_model(c): raise ValueError("too wide")\n')
    (tmp_path / "checkpoints").mkdir()
    torch.save({"script": "model.py", "config": {}, "state_dict": {}}, tmp_path / "checkpoints" / "m.pt")
    with (
        local_candidate(TASK.folder / "candidate.py", tmp_path) as candidate,
        pytest.raises(InvalidSubmission, match="ValueError: too wide") as told,
    ):
        candidate.call("load", meta={"target": "checkpoints/m.pt", "device": "cpu"})
    assert "model.py:3 in build_model" in str(told.value) and "driver.py" not in str(told.value)
