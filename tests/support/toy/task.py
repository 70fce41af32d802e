"""A task small enough for tests of the harness: guess the slope of a line. Needs no torch; scores in milliseconds.

The submission is `answer.json` {"slope": a} or `solve.py` with `predict(x)`. Raw score: mean absolute error. Beside the
plain task there are one that is timed, one that shows no scores, one that grants two scorings, and one whose own code
fails.
"""

from __future__ import annotations

import os
import time
import zipfile
from typing import ClassVar

import numpy as np

from proctor.spec import Aggregation, Direction, Metric, Tier
from proctor.tasks.base import (
    ArraySpec,
    ArtefactRule,
    Calibration,
    Evaluation,
    EvaluationContext,
    PrepareRequest,
    ScorePolicy,
    Task,
)


class Toy(Task):
    id = "toy"
    suite = "tests"
    title = "Guess the slope"
    metric = Metric(name="MAE", direction=Direction.LOWER, low=0.0)
    tiers: ClassVar = {"mini": Tier(name="mini", budget_s=30.0), "full": Tier(name="full", budget_s=60.0, gpus=1)}
    artefact = ArtefactRule(targets=("answer.json", "solve.py", "checkpoints/*.json"))
    policy = ScorePolicy(timeout_s=20.0)
    locked = ("locked.txt",)
    start_command = ("sh", "start.sh")
    reference_command = ("sh", "start.sh")
    calibrations: ClassVar = {"mini": Calibration(start=1.0, reference=0.1, source="by construction")}

    def prepare(self, request: PrepareRequest) -> None:
        time.sleep(float(os.environ.get("TOY_PREPARE_S", "0")))
        rng = np.random.default_rng(request.seed)
        slope = float(rng.uniform(2.0, 3.0))
        for split, folder in (("train", request.public), ("visible", request.private), ("hidden", request.private)):
            x = rng.normal(size=64).astype("float32")
            np.savez(folder / f"{split}.npz", x=x, y=(slope * x).astype("float32"))
        (request.private / "secret.txt").write_text(f"CANARY-{slope}\n")

    def evaluate(self, context: EvaluationContext) -> Evaluation:
        data = np.load(context.private / f"{context.split}.npz")
        with context.open() as candidate:
            candidate.call("load", meta={"target": context.target}, timeout_s=10.0)
            reply = candidate.call("predict", {"x": data["x"]}, expect={"y": ArraySpec(data["y"].shape)}, timeout_s=5.0)
        return Evaluation(float(np.abs(reply.arrays["y"].astype("float64") - data["y"]).mean()), "scored")


class ToyTimed(Toy):
    """The same, frozen while it is scored."""

    id = "toy_timed"
    policy = ScorePolicy(timeout_s=20.0, freeze_while_scoring=True)


class ToyBlind(Toy):
    """The same, without scores for the agent; the last submission counts."""

    id = "toy_blind"
    visible = False
    aggregation = Aggregation.LAST


class ToyCapped(Toy):
    """The same, with two scorings."""

    id = "toy_capped"
    policy = ScorePolicy(timeout_s=20.0, max_calls=2)


class ToyFaulty(Toy):
    """The same, but the first $TOY_FAULTS evaluations of a process fail, and their fault names hidden data."""

    id = "toy_faulty"
    faults = 0

    def evaluate(self, context: EvaluationContext) -> Evaluation:
        if self.faults < int(os.environ.get("TOY_FAULTS", "1")):
            type(self).faults += 1
            raise zipfile.BadZipFile((context.private / "secret.txt").read_text())
        return super().evaluate(context)


TASK = Toy()
TIMED = ToyTimed()
BLIND = ToyBlind()
CAPPED = ToyCapped()
FAULTY = ToyFaulty()
