"""Long-horizon forecasting: 336 hours of seven channels in, the next 96 out (1GC-7RC, ETTh1). Host side.

How a submission is scored, and what the score can be trusted for
-----------------------------------------------------------------
Neighbouring windows overlap: what one window is to forecast is the input of another. A model that remembers the
windows it has seen could look its answers up, and a single pass over the split could not tell. Hence two passes, each
in a fresh candidate (see `onecard._common`):

* *scored pass*: all windows in random batches; the metric is computed from these outputs, in float64;
* *audit pass*: up to AUDIT_WINDOWS secret random windows, strictly in time order, one a call. When an answer is due,
  nothing later than the input's end has been shown to that process, so that nothing can be looked up.

Both must agree. **What escapes:** a lookup used on a share f of the windows goes unseen with probability (1 - f)^64:
52 % at f = 1 %, 27 % at 2 %, 4 % at 5 %. It could gain at most those windows' share of the error, so about f of the
score if they are like the others. A slight pull of every output towards a looked-up answer, small enough for the
tolerance, is caught by the mean gain: at most GAIN_FLOOR of the error escapes for a model in full precision.
**What this does not cover:** answers that are public anyway: all under `published`, the visible split under `sealed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from proctor.jsonio import write_json
from proctor.spec import Direction, Metric, Protocol, Published, Tier
from proctor.tasks.base import (
    Array,
    Calibration,
    Evaluation,
    EvaluationContext,
    PrepareRequest,
    ScorePolicy,
    Task,
)
from proctor.tasks.onecard import _common
from proctor.tasks.onecard.forecasting import data

Constants = Mapping[str, Mapping[str, Mapping[str, object]]]
BATCH = 256
AUDIT_WINDOWS = 64
TOLERANCE = 0.04
"""Largest root-mean-square difference between scored and audited forecast of one window, in standard deviations of
the data (times the forecast's own size where that is above 1). The starting and the reference solutions move by at
most 4e-6 of it with the size of the batch, and by at most 0.09 of it when bfloat16 takes the place of float32
(`tests/tasks/onecard/measure_audit.py`); the rest is for deeper models."""
GAIN_FLOOR = 0.002
"""Mean gain that is let pass, as a share of the audited windows' error."""


class Forecasting(Task):
    """ETTh1, lookback 336, horizon 96, mean squared error in normalised units."""

    id = "forecasting"
    suite = "onecard"
    title = "Forecast the next 96 hours of seven channels"
    metric = Metric(name="MSE", direction=Direction.LOWER, low=0.0)
    tiers: ClassVar[Mapping[str, Tier]] = {
        "mini": Tier(name="mini", budget_s=120.0),
        "full": Tier(name="full", budget_s=2400.0, gpus=1),
    }
    published = Published(start=0.384, best=0.3689, source="arXiv 2605.17046v2")
    artefact = _common.CHECKPOINTS
    policy = ScorePolicy(warm=2)
    locked = ("prepare.py",)
    start_command = ("python", "train.py")
    reference_command = ("python", "train.py")
    reference_constants: ClassVar[Constants] = {
        "mini": {"train.py": {"TIME_LIMIT_S": 60.0, "KINDS": ("linear", "across"), "SEEDS": 2, "EPOCHS": 15}}
    }
    files = (data.ETTH1,)
    calibrations: ClassVar[Mapping[str, Calibration]] = {
        "mini": Calibration(
            start=0.7881,
            reference=0.5334,
            start_std=0.0034,
            reference_std=0.0009,
            source="measured 2026-11-30, 2 CPU cores; seeds 0-4 and 0-2 on the release's hidden split",
        ),
        "full": Calibration(
            start=0.3803,
            reference=0.3642,
            start_std=0.0035,
            reference_std=0.0001,
            source="measured 2026-11-30, 2 CPU cores; seeds 0-4 and 0-2 on the hidden split",
        ),
    }

    def program_fields(self, tier: str, protocol: Protocol, budget_s: float) -> dict[str, str]:
        return {**super().program_fields(tier, protocol, budget_s), **_common.protocol_fields(protocol)}

    def prepare(self, request: PrepareRequest) -> None:
        """Fill public/ with normalised rows, private/ with the rows of the visible and the hidden split."""
        if request.tier == "full":
            assert request.raw is not None
            series = data.read_etth1(request.raw / data.ETTH1.path)
        else:
            series = data.generate(request.seed)
        sealed = request.protocol is Protocol.SEALED
        visible = "val" if sealed else "test"
        for name in ("train", "val") if sealed else ("train", "val", "test"):
            np.save(request.public / f"{name}.npy", getattr(series, name))
        write_json(request.public / "meta.json", {"visible": visible})
        np.save(request.private / "visible.npy", series.with_lookback(visible))
        np.save(request.private / "hidden.npy", series.with_lookback("test"))
        write_json(request.private / "meta.json", {"floor": series.floor})

    def evaluate(self, context: EvaluationContext) -> Evaluation:
        """The mean squared error over all windows of the split, if the audit agrees."""
        inputs, targets = data.windows(np.load(context.private / f"{context.split}.npy"))
        shape = targets.shape[1:]
        with context.open() as candidate:
            _common.load(candidate, context)
            once = _common.Pass(candidate, context, shape)
            scored = once.shuffled(inputs, BATCH, context.rng)
        error = squared_error(scored, targets)
        details: dict[str, Any] = {"windows": len(inputs), "predict_s": round(once.seconds, 3)}
        if not context.audit:
            return Evaluation(float(error.mean()), details=details)
        chosen = np.sort(context.rng.choice(len(inputs), min(AUDIT_WINDOWS, -(-len(inputs) // 4)), replace=False))
        with context.open() as candidate:
            _common.load(candidate, context)
            again = _common.Pass(candidate, context, shape)
            audited = np.concatenate([again.predict(inputs[i : i + 1]) for i in chosen])
        audit = compare(scored[chosen], audited, targets[chosen], chosen)
        details |= audit.details()
        if audit.passed:
            return Evaluation(float(error.mean()), details=details)
        finding = audit.finding(
            "future_leak",
            "forecasts differ between a pass that shows all windows in random order and one that shows single windows "
            "in time order, so they depend on more than their own window",
        )
        message = f"not scored: {_common.INNOCENT}. {finding.evidence}."
        return Evaluation(None, message, details, (finding,))


def squared_error(forecasts: Array, targets: Array) -> Array:
    """Mean squared error per window (n, 96, 7) -> (n,), in float64."""
    error: Array = np.square(forecasts.astype(np.float64) - targets).mean(axis=(1, 2))
    return error


def compare(scored: Array, audited: Array, targets: Array, chosen: Array) -> _common.Audit:
    """Audit verdict on the windows `chosen`; all arrays (k, 96, 7)."""
    size = np.sqrt(np.square(audited.astype(np.float64)).mean(axis=(1, 2)))
    distances = np.sqrt(squared_error(scored, audited)) / (TOLERANCE * np.maximum(1.0, size))
    losses = squared_error(audited, targets)
    gains = losses - squared_error(scored, targets)
    names = [f"window {i}" for i in chosen]
    return _common.judge(distances, gains, GAIN_FLOOR * float(losses.mean()), names)


TASK = Forecasting()
