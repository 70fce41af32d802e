"""A small task whose preparation misbehaves as the environment says, so that other processes can run it too."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from proctor.data.assets import prepare_assets
from proctor.spec import Direction, Metric, Protocol, Tier
from proctor.tasks.base import ArtefactRule, Evaluation, EvaluationContext, PrepareRequest, RemoteFile, Task

RAW = b"published bytes"


class SampleTask(Task):
    id = "sample"
    suite = "tests"
    title = "Sample"
    metric = Metric(name="MSE", direction=Direction.LOWER)
    tiers: ClassVar[Mapping[str, Tier]] = {
        "mini": Tier(name="mini", budget_s=10),
        "full": Tier(name="full", budget_s=10),
    }
    artefact = ArtefactRule(targets=("*.txt",))
    files = (RemoteFile("published.bin", (), len(RAW), hashlib.sha256(RAW).hexdigest(), "CC0"),)
    version = "1"

    def data_version(self) -> str:
        return self.version

    def prepare(self, request: PrepareRequest) -> None:
        if log := os.environ.get("SAMPLE_LOG"):
            with open(log, "a") as stream:
                stream.write(f"{os.getpid()}\n")
        rng = np.random.default_rng(request.seed)
        (request.public / "train").mkdir()
        np.save(request.public / "train" / "x.npy", rng.standard_normal(1000))
        if request.raw is not None:
            (request.public / "raw.bin").write_bytes((request.raw / "published.bin").read_bytes())
        if marker := os.environ.get("SAMPLE_HANG"):
            Path(marker).touch()
            time.sleep(120)
        time.sleep(float(os.environ.get("SAMPLE_SLEEP", "0")))
        np.save(request.private / "y.npy", rng.standard_normal(10))

    def evaluate(self, context: EvaluationContext) -> Evaluation:
        return Evaluation(score=0.0)


TASK = SampleTask()

if __name__ == "__main__":  # python -m tests.data.sample.task CACHE: what a worker does
    print(prepare_assets(TASK, "mini", Protocol.SEALED, "release", Path(sys.argv[1])).digest)
