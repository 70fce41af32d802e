"""Runs in a candidate's box: loads a `onecard` checkpoint, and says in plain words why it cannot be loaded.

A checkpoint is a file that `torch.save` wrote, holding

    {"script": "train.py", "config": {...}, "state_dict": {...}}

where the script lies in the workspace and defines `build_model(config) -> torch.nn.Module`. The script is the
submission's own code, which is why all of this happens in the candidate's box and the host believes none of it.
"""

from __future__ import annotations

import importlib.util
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

COMPILE_PREFIX = "_orig_mod."
KEYS = ("script", "config", "state_dict")
SHOWN = 5
EXAMPLE = '{"script": "train.py", "config": {...}, "state_dict": model.state_dict()}'

Op = Callable[[dict[str, Any], dict[str, np.ndarray], list[int]], tuple[dict[str, Any], dict[str, np.ndarray]]]


class CheckpointError(Exception):
    """The checkpoint cannot be loaded; the message tells its author what to mend."""


def load_model(workspace: Path, target: str, device: str) -> tuple[nn.Module, dict[str, Any]]:
    """Build the checkpoint's model, load its weights strictly, and put it in evaluation mode.

    The workspace goes on `sys.path` here and not before, first as for a script that is run there; it stays, since
    a model may import more of its own files when it is called.

    Args:
        workspace: Folder of the submission.
        target: The checkpoint, relative to it.
        device: Where the model is to be (`cpu`, `cuda`).

    Returns:
        The model and the checkpoint's config.

    Raises:
        CheckpointError: Something in the checkpoint or its script has to be mended.
        Exception: Whatever the submission's own code raised.
    """
    workspace = workspace.resolve()
    script, config, weights = read_checkpoint(workspace / target, target)
    module = import_script(workspace, script, target)
    build = getattr(module, "build_model", None)
    if not callable(build):
        raise CheckpointError(f"{script} has no function build_model(config); define it at the top level of the script")
    model = build(config)
    if not isinstance(model, nn.Module):
        raise CheckpointError(f"build_model in {script} returned a {type(model).__name__}, not a torch.nn.Module")
    load_weights(model, weights, script)
    return model.to(device).eval(), config


def read_checkpoint(path: Path, target: str) -> tuple[str, dict[str, Any], dict[str, torch.Tensor]]:
    """The three parts of a checkpoint file, their kinds checked; nothing in it is unpickled but plain data."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {target}")
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's message begins with advice to turn the protection off; what was found comes after it.
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].partition("Please")[0].replace("\n", " ").strip()
        if not reason.startswith("Unsupported"):
            raise CheckpointError(
                f"{target} is not a file that torch.save wrote, or it is damaged; save it again"
            ) from None
        raise CheckpointError(
            f"{target} holds pickled objects, which are refused (weights_only=True); save only tensors, numbers, text, "
            f"lists and dicts: {EXAMPLE}. torch said: {reason[:300]}"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        # What torch raises on a file that is not its own depends on the first bytes of it.
        raise CheckpointError(
            f"{target} cannot be read; it looks truncated or is not a torch.save file. Write to another name in the "
            f"same folder and os.replace it, so that a half-written file is never seen. torch said: {str(error)[:300]}"
        ) from None
    if not isinstance(saved, dict):
        raise CheckpointError(f"{target} holds a {type(saved).__name__}, not a dict; save {EXAMPLE}")
    missing = [key for key in KEYS if key not in saved]
    if missing:
        found = ", ".join(repr(key) for key in list(saved)[:SHOWN]) or "nothing"
        raise CheckpointError(f"{target} lacks {', '.join(map(repr, missing))} (it holds {found}); save {EXAMPLE}")
    script, config, weights = (saved[key] for key in KEYS)
    if not isinstance(script, str) or not isinstance(config, dict) or not isinstance(weights, Mapping):
        kinds = ", ".join(f"{key} is a {type(saved[key]).__name__}" for key in KEYS)
        raise CheckpointError(f"{target} has parts of the wrong kind ({kinds}); save {EXAMPLE}")
    return script, config, dict(weights)


def import_script(workspace: Path, script: str, target: str) -> Any:
    """Import the submission's script as a module (its `if __name__ == "__main__"` part does not run)."""
    path = (workspace / script).resolve()
    if not path.is_relative_to(workspace):
        raise CheckpointError(
            f"{target} names the script {script!r}, which is outside the workspace; use a path inside it"
        )
    if path.suffix != ".py" or not path.is_file():
        raise CheckpointError(
            f"{target} names the script {script!r}, but the workspace has no such Python file; 'script' is the path of "
            "the script that defines build_model, relative to the workspace"
        )
    sys.path.insert(0, str(workspace))
    sys.argv = [str(path)]  # a script that reads its arguments on import must not see the driver's
    spec = importlib.util.spec_from_file_location("submission", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    return module


def load_weights(model: nn.Module, weights: dict[str, torch.Tensor], script: str) -> None:
    """`load_state_dict(strict=True)`, with what does not fit said in words."""
    prefixed = [key for key in weights if isinstance(key, str) and COMPILE_PREFIX in key]
    if prefixed:
        raise CheckpointError(
            f"{len(prefixed)} keys of the state_dict contain {COMPILE_PREFIX!r} (first: {prefixed[0]!r}): it was saved "
            "from the wrapper that torch.compile returns. Save the state_dict of the model that you compiled "
            "(compiled._orig_mod.state_dict()), or strip the prefix: "
            f'{{k.replace("{COMPILE_PREFIX}", ""): v for k, v in state_dict.items()}}'
        )
    try:
        model.load_state_dict(weights, strict=True)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise CheckpointError(
            misfit(model.state_dict(), weights, script) or f"load_state_dict failed: {error}"
        ) from None


def misfit(wanted: Mapping[str, Any], got: Mapping[str, Any], script: str) -> str:
    """What keeps the state_dict `got` from fitting a model with the state_dict `wanted`; "" if nothing is seen."""
    parts = []
    missing = [key for key in wanted if key not in got]
    unexpected = [key for key in got if key not in wanted]
    shapes = [
        f"{key} (checkpoint {shape_of(got[key])}, model {shape_of(value)})"
        for key, value in wanted.items()
        if key in got and shape_of(got[key]) != shape_of(value)
    ]
    for label, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes)):
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            parts.append(f"{len(names)} keys are {label}: {', '.join(map(str, names[:SHOWN]))}{more}")
    if not parts:
        return ""
    return (
        f"the state_dict does not fit the model that build_model in {script} makes from the saved config (loading is "
        f"strict): {'; '.join(parts)}. Save config and weights of the same model, and do not change build_model after"
    )


def shape_of(value: Any) -> str:
    """Shape of a tensor as text, or what it is if it is none."""
    return str(tuple(value.shape)) if isinstance(value, torch.Tensor) else f"not a tensor but {type(value).__name__}"


def warm() -> None:
    """Start torch's threads and libraries, so that the first batch does not pay for it."""
    a = torch.ones(64, 64)
    float((a @ a).sum())


class ModelServer:
    """The operations of a task whose model maps one batch of inputs to one batch of outputs.

    `load` {"target", "device"} answers what `describe(config)` picks from the checkpoint's config; `predict` sends
    the array `x` through the model and answers the array `y`.
    """

    def __init__(self, describe: Callable[[dict[str, Any]], dict[str, Any]] | None = None) -> None:
        self._describe = describe or (lambda config: {})
        self._model: nn.Module | None = None
        self._device = "cpu"

    @property
    def ops(self) -> dict[str, Op]:
        return {"load": self.load, "predict": self.predict}

    def load(self, meta: dict[str, Any], arrays: dict[str, np.ndarray], fds: list[int]) -> tuple[dict[str, Any], dict]:
        self._device = meta["device"]
        self._model, config = load_model(Path.cwd(), meta["target"], self._device)
        return self._describe(config), {}

    def predict(self, meta: dict[str, Any], arrays: dict[str, np.ndarray], fds: list[int]) -> tuple[dict, dict]:
        if self._model is None:
            raise CheckpointError("no checkpoint is loaded")
        with torch.inference_mode():
            x = torch.from_numpy(arrays["x"]).to(self._device)
            y = self._model(x)
            if not isinstance(y, torch.Tensor):
                raise CheckpointError(f"the model's forward returned a {type(y).__name__}; it must return one tensor")
            if not y.is_floating_point():
                raise CheckpointError(f"the model's forward returned {y.dtype}; it must return floating-point numbers")
            return {}, {"y": y.float().cpu().numpy()}
