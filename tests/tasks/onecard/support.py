"""Tiny hand-made submissions, and an evaluation context around them."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import torch

from proctor.scoring.link import CandidateLink
from proctor.spec import Protocol
from proctor.tasks.base import Evaluation, EvaluationContext, PrepareRequest, Task
from tests.support.local import local_candidate

DATA = Path(os.environ.get("PROCTOR_TEST_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")
TARGET = "checkpoints/model.pt"


def write_submission(
    workspace: Path, source: str, config: dict[str, Any] | None = None, fill: Callable[[Any], None] | None = None
) -> Path:
    """Write `source` as model.py and a checkpoint of what its build_model(config) makes; `fill` sets the weights."""
    workspace.mkdir(parents=True, exist_ok=True)
    script = workspace / "model.py"
    script.write_text("import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n" + dedent(source))
    spec = importlib.util.spec_from_file_location("hand_made", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.build_model(config or {})
    if fill is not None:
        fill(model)
    (workspace / "checkpoints").mkdir(exist_ok=True)
    torch.save({"script": "model.py", "config": config or {}, "state_dict": model.state_dict()}, workspace / TARGET)
    return workspace


def evaluate(task: Task, workspace: Path, private: Path) -> Evaluation:
    """Score `workspace` on the hidden split in `private`, each candidate a process of its own."""

    def fresh() -> AbstractContextManager[CandidateLink]:
        return local_candidate(task.folder / "candidate.py", workspace, {"OMP_NUM_THREADS": "1"})

    context = EvaluationContext(
        split="hidden",
        protocol=Protocol.SEALED,
        tier="mini",
        device="cpu",
        public=private,
        private=private,
        artefact=workspace,
        target=TARGET,
        open=fresh,
        rng=np.random.default_rng(7),
    )
    return task.evaluate(context)


def prepared(task: Task, tier: str, protocol: Protocol, folder: Path, raw: Path | None = None, seed: int = 5) -> Path:
    """Run the task's `prepare`; returns `folder`, which then has public/ and private/."""
    public, private = folder / "public", folder / "private"
    public.mkdir(parents=True)
    private.mkdir()
    task.prepare(PrepareRequest(tier, protocol, seed=seed, raw=raw, public=public, private=private))
    return folder


def contents(folder: Path) -> bytes:
    """Every byte under `folder`."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def meta(folder: Path) -> Any:
    return json.loads((folder / "meta.json").read_text())
