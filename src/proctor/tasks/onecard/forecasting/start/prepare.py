"""The forecasting data and the local evaluation. This file is locked: read it, import it, do not change it.

A multivariate series of 7 channels, one row an hour, each channel normalised with the mean and standard deviation of
its training rows. From the LOOKBACK rows before a moment the next HORIZON rows are to be forecast, all channels at
once. In /data:

    train.npy  float32 (rows, 7)   training rows
    val.npy    float32 (rows, 7)   development rows, which follow at once after the training rows
    test.npy   float32 (rows, 7)   test rows, which follow at once after those; only under the protocol `published`
    meta.json  {"visible": "val" or "test", ...}   the split that `score` and --eval use

A window of a split has its HORIZON target rows inside the split; its LOOKBACK input rows may reach back before it.

    python prepare.py --eval checkpoints/model.pt     mean squared error on the visible split, as one line of JSON
"""

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

DATA = Path(os.environ.get("PROCTOR_DATA", "/data"))
LOOKBACK = 336
HORIZON = 96
CHANNELS = 7
SPLITS = ("train", "val", "test")


def device():
    """$PROCTOR_DEVICE if it is set, else the GPU if there is one."""
    return os.environ.get("PROCTOR_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


def meta():
    return json.loads((DATA / "meta.json").read_text())


def rows(split):
    """The rows of a split, with the LOOKBACK rows before it unless it is the first: float32 (rows, 7)."""
    own = np.load(DATA / f"{split}.npy")
    i = SPLITS.index(split)
    before = np.load(DATA / f"{SPLITS[i - 1]}.npy")[-LOOKBACK:] if i else own[:0]
    return np.concatenate([before, own])


def windows(series):
    """All windows of a series (rows, 7), as views: inputs (n, LOOKBACK, 7) and targets (n, HORIZON, 7)."""
    both = torch.as_tensor(series).unfold(0, LOOKBACK + HORIZON, 1).transpose(1, 2)  # (n, LOOKBACK + HORIZON, 7)
    return both[:, :LOOKBACK], both[:, LOOKBACK:]


@torch.inference_mode()
def mean_squared_error(model, split, batch_size=256):
    """The metric, on one split: mean over windows, steps and channels of the squared error, normalised units."""
    where = device()
    model = model.to(where).eval()
    x, y = windows(rows(split))
    total = 0.0
    for i in range(0, len(x), batch_size):
        forecast = model(x[i : i + batch_size].contiguous().to(where)).float().cpu()  # (B, HORIZON, 7)
        total += (forecast - y[i : i + batch_size]).double().square().mean((1, 2)).sum().item()
    return total / len(x)


def load_checkpoint(path):
    """The model of a checkpoint {"script", "config", "state_dict"}, as the scorer loads it."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    script = Path(saved["script"]).resolve()
    spec = importlib.util.spec_from_file_location("submission", script)
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    model = module.build_model(saved["config"])
    model.load_state_dict(saved["state_dict"], strict=True)
    return model


def save_checkpoint(path, script, config, model):
    """Write a checkpoint under another name and rename it, so that `score` never sees half a file."""
    path = Path(path)
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    torch.save({"script": script, "config": config, "state_dict": model.state_dict()}, part)
    os.replace(part, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Evaluate a checkpoint on the visible split.")
    parser.add_argument("--eval", metavar="CHECKPOINT", required=True)
    checkpoint = parser.parse_args().eval
    split = meta()["visible"]
    score = mean_squared_error(load_checkpoint(checkpoint), split)
    print(json.dumps({"checkpoint": checkpoint, "split": split, "metric": "MSE", "score": score}))
