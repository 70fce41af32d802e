"""How far honest arithmetic moves an output, in units of the audits' tolerances. A script, not a test.

    python -m tests.tasks.onecard.measure_audit forecasting|language_modeling WORKSPACE IDS_OR_ROWS.npy

WORKSPACE holds a trained checkpoints/model.pt; the array is a split as in an asset folder's private/. The model runs in
float32 in batches of another size, and under bfloat16 autocast. The latter against float32 bounds what reduced
precision can do from the outside: two bfloat16 kernels share most of their rounding errors.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proctor.inbox.lib import checkpoint
from proctor.tasks.base import Array
from proctor.tasks.onecard import _common
from proctor.tasks.onecard.forecasting import data
from proctor.tasks.onecard.forecasting import task as forecasting
from proctor.tasks.onecard.language_modeling import blocks
from proctor.tasks.onecard.language_modeling import task as language_modeling
from tests.tasks.onecard.support import TARGET

SAMPLES = 128
SETTINGS = {"float32, one at a time": (1, False), "bfloat16 autocast": (64, True), "the same, one at a time": (1, True)}


@torch.inference_mode()
def outputs(model: Any, inputs: Array, batch_size: int, reduced: bool) -> Array:
    """All outputs, float32."""
    parts = []
    for rows in _common.batches(np.arange(len(inputs)), batch_size):
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            parts.append(model(torch.from_numpy(np.ascontiguousarray(inputs[rows]))).float().numpy())
    return np.concatenate(parts)


def spread(rows: Array) -> Array:
    return np.unique(np.linspace(0, len(rows) - 1, SAMPLES).astype(int))


def audit_forecasts(model: Any, rows: Array) -> None:
    inputs, targets = data.windows(rows)
    chosen = spread(inputs)
    inputs, targets = inputs[chosen], targets[chosen]
    exact = outputs(model, inputs, 64, False)
    for name, setting in SETTINGS.items():
        audit = forecasting.compare(outputs(model, inputs, *setting), exact, targets, chosen)
        print(f"{name}: worst {audit.worst:.3g} of the tolerance, gain {audit.gain:.2g} of {audit.gain_limit:.2g}")


def audit_texts(model: Any, ids: Array, size: int) -> None:
    cut = blocks.cut(ids, size)
    chosen = spread(cut.inputs)
    inputs, targets = cut.inputs[chosen], np.maximum(cut.targets[chosen], 0)
    exact = outputs(model, inputs, 64, False)
    for name, setting in SETTINGS.items():
        moved = outputs(model, inputs, *setting)
        pairs = [language_modeling.compare(a, b, int(t[-1])) for a, b, t in zip(moved, exact, targets, strict=True)]
        worst = max(float(distance.max()) for distance, _ in pairs)
        audit = _common.judge(np.array([worst]), np.array([g for _, g in pairs]), language_modeling.GAIN_FLOOR, [""])
        print(f"{name}: worst {audit.worst:.3g} of the tolerance, gain {audit.gain:.2g} of {audit.gain_limit:.2g}")


def main() -> None:
    task, workspace, array = sys.argv[1], Path(sys.argv[2]), np.load(sys.argv[3])
    os.chdir(workspace)
    model, config = checkpoint.load_model(workspace, TARGET, "cpu")
    if task == "forecasting":
        audit_forecasts(model, array)
    else:
        audit_texts(model, array, language_modeling.block_size(config.get("block_size", 256)))


if __name__ == "__main__":
    main()
