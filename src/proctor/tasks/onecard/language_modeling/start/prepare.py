"""The language modelling data and the local evaluation. This file is locked: read it, import it, do not change it.

A text of single-byte characters, each character one token. In /data:

    train.npy  uint16 (n,)   training text, as ids
    val.npy    uint16 (n,)   the visible split: what `score` and --eval use
    meta.json  {"characters": "..."}   the character of each id

The metric is bits per byte: the mean of -log2 p(next character). A split is cut into blocks of block_size inputs that
do not overlap; the model sees one block, and every character but the split's first is a target exactly once. The
block size is the checkpoint's config["block_size"] (256 if it has none; 16 to 1024).

    python prepare.py --eval checkpoints/model.pt     bits per byte on the visible split, as one line of JSON
"""

import argparse
import importlib.util
import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

DATA = Path(os.environ.get("PROCTOR_DATA", "/data"))
DEFAULT_BLOCK = 256
MIN_BLOCK, MAX_BLOCK = 16, 1024


def device():
    """$PROCTOR_DEVICE if it is set, else the GPU if there is one."""
    return os.environ.get("PROCTOR_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


def characters():
    """The vocabulary, as one string: the character of id i is characters()[i]."""
    return json.loads((DATA / "meta.json").read_text())["characters"]


def tokens(split):
    """A split ("train" or "val") as int64 ids (n,)."""
    return torch.from_numpy(np.load(DATA / f"{split}.npy").astype(np.int64))


def blocks(ids, block_size):
    """Inputs and targets (number of blocks, block_size) that do not overlap; the end is padded, its targets with -1."""
    x, y = ids[:-1], ids[1:]
    missing = -len(x) % block_size
    x, y = F.pad(x, (0, missing), value=0), F.pad(y, (0, missing), value=-1)
    return x.view(-1, block_size), y.view(-1, block_size)


@torch.inference_mode()
def bits_per_byte(model, split, block_size, batch_size=64):
    """The metric, on one split."""
    where = device()
    model = model.to(where).eval()
    x, y = blocks(tokens(split), block_size)
    nats, count = 0.0, 0
    for xs, ys in zip(x.split(batch_size), y.split(batch_size), strict=True):
        logits = model(xs.to(where)).float().cpu().double()  # (B, block_size, V)
        nats += F.cross_entropy(logits.flatten(0, 1), ys.flatten(), ignore_index=-1, reduction="sum").item()
        count += int((ys >= 0).sum())
    return nats / count / math.log(2)


def load_checkpoint(path):
    """Model and config of a checkpoint {"script", "config", "state_dict"}, as the scorer loads it."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    spec = importlib.util.spec_from_file_location("submission", Path(__file__).parent / saved["script"])
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    model = module.build_model(saved["config"])
    model.load_state_dict(saved["state_dict"], strict=True)
    return model, saved["config"]


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
    model, config = load_checkpoint(checkpoint)
    block_size = min(max(config.get("block_size", DEFAULT_BLOCK), MIN_BLOCK), MAX_BLOCK)
    score = bits_per_byte(model, "val", block_size)
    print(json.dumps({"checkpoint": checkpoint, "split": "val", "metric": "bits per byte", "score": score}))
