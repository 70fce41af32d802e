"""What the `onecard` tasks share on the host side: the checkpoint rule, the scored pass, and the audit's verdict.

Everything that one candidate process sees, it can remember. So each evaluation opens two fresh candidates. The
*scored* one gets every sample, in shuffled batches, and its outputs make the metric. The *audit* one gets a secret
random subset in an order that gives nothing away. They share no memory, and the workspace is read-only: an output
that used what its sample does not hold comes out different in the audit, however clever the code that made it.

The comparison has two parts, since a limit wide enough for honest arithmetic leaves room for small nudges:

* every audited output must agree within a tolerance that covers reduced precision (bfloat16, TF32) and kernels that
  change with the shape of the batch;
* over all audited samples, the scored outputs must not be better than the audit's by more than chance. Rounding
  errors know nothing of the answers, so that their mean gain tends to 0; a leak has gain by its purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.errors import InvalidSubmission
from proctor.spec import Finding, Protocol
from proctor.tasks.base import Array, ArraySpec, ArtefactRule, Candidate, EvaluationContext

CHECKPOINTS = ArtefactRule(
    targets=("checkpoints/*.pt",),
    missing="there is no checkpoint yet: save one as checkpoints/<name>.pt (program.md says what it holds)",
)

LOAD_SHARE, LEAST_LOAD_S, MOST_LOAD_S = 0.1, 15.0, 60.0
PREDICT_SHARE, LEAST_PREDICT_S, MOST_PREDICT_S = 0.25, 30.0, 300.0
"""Limits of loading a checkpoint, and of all its predictions in one pass, as shares of the budget. The last scorings of
a run are off the agent's clock: without limits, training could be put off until then, into `build_model` or `forward`.
"""

GAIN_ERRORS = 4.0
"""How many standard errors the mean gain of the scored pass may reach (chance: about 3 in 100,000)."""
GAIN_CAP = 4.0
"""Whatever the spread, which a submission can inflate, no gain above this many times the floor is let pass."""

INNOCENT = (
    "The output for a sample must depend on nothing but that sample: not on other samples, earlier calls or random "
    "numbers. Usual innocent causes: dropout that stays on in evaluation (F.dropout without training=self.training, "
    "dropout_p in scaled_dot_product_attention), a BatchNorm that uses batch statistics, a cache kept between calls, "
    "noise in forward"
)

COUNTS = {
    Protocol.SEALED: "`score` tells you how you do on the visible split. What counts at the end is a hidden split that "
    "you never see: your checkpoint with the best visible score is scored on it once",
    Protocol.PUBLISHED: "`score` scores on the split that counts, and your best scored checkpoint is the result",
}


def protocol_fields(protocol: Protocol) -> dict[str, str]:
    """What program.md says about the protocol."""
    return {"counts": COUNTS[protocol]}


def load(candidate: Candidate, context: EvaluationContext) -> dict[str, Any]:
    """Load the checkpoint into a fresh candidate; returns what its candidate.py tells of the config (untrusted)."""
    meta = {"target": context.target, "device": context.device}
    limit = min(MOST_LOAD_S, max(LEAST_LOAD_S, LOAD_SHARE * context.budget_s))
    try:
        return candidate.call("load", meta=meta, timeout_s=limit).meta
    except InvalidSubmission as error:
        raise InvalidSubmission(
            f"{error} (loading may take {limit:g} s: what is trained must be in the checkpoint)"
            if "did not answer within" in str(error)
            else str(error)
        ) from None


class Pass:
    """One pass over inputs by one candidate, within the time that all its predictions may take."""

    def __init__(self, candidate: Candidate, context: EvaluationContext, row_shape: Sequence[int]) -> None:
        self._candidate = candidate
        self._row_shape = tuple(row_shape)
        self._limit_s = min(MOST_PREDICT_S, max(LEAST_PREDICT_S, PREDICT_SHARE * context.budget_s))
        self.seconds = 0.0

    def predict(self, inputs: Array) -> Array:
        """One batch through the model: float32, shape (len(inputs), *row_shape)."""
        wanted = ArraySpec((len(inputs), *self._row_shape))
        left = self._limit_s - self.seconds
        if left <= 0:
            raise InvalidSubmission(f"the predictions took longer than the {self._limit_s:g} s that they may take")
        reply = self._candidate.call("predict", {"x": inputs}, expect={"y": wanted}, timeout_s=left)
        self.seconds += reply.seconds
        return reply.arrays["y"]

    def shuffled(self, inputs: Array, batch_size: int, rng: np.random.Generator) -> Array:
        """All of `inputs` in random batches; outputs in the order of `inputs`."""
        outputs = np.empty((len(inputs), *self._row_shape), np.float32)
        for rows in batches(rng.permutation(len(inputs)), batch_size):
            outputs[rows] = self.predict(inputs[rows])
        return outputs


def batches(order: Array, batch_size: int) -> Iterator[Array]:
    """`order` in slices of `batch_size`; the last may be shorter."""
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


@dataclass(frozen=True)
class Audit:
    """What the audit saw.

    Attributes:
        samples: Audited samples.
        disagreeing: How many of them lie beyond the tolerance.
        worst: Largest difference seen, in units of the tolerance.
        gain: Mean amount by which the scored outputs are better than the audit's, in the unit of the loss.
        gain_limit: What chance and rounding allow `gain` to be.
        where: The worst sample, in words.
    """

    samples: int
    disagreeing: int
    worst: float
    gain: float
    gain_limit: float
    where: str

    @property
    def passed(self) -> bool:
        return not self.disagreeing and self.gain <= self.gain_limit

    def finding(self, rule: str, meaning: str) -> Finding:
        """The finding that voids the scoring."""
        evidence = (
            f"{meaning}: of {self.samples} audited samples {self.disagreeing} differ from the scored pass by more than "
            f"the tolerance (worst: {self.worst:.3g} times the tolerance, {self.where}); the scored outputs are better "
            f"than the audited ones by {self.gain:.3g} on average, where {self.gain_limit:.3g} is allowed"
        )
        return Finding(rule=rule, severity="void", evidence=evidence)

    def details(self) -> dict[str, Any]:
        return {"audited": self.samples, "audit_worst": self.worst, "audit_gain": self.gain}


def judge(distances: Array, gains: Array, gain_floor: float, names: Sequence[str]) -> Audit:
    """Compare scored and audited outputs.

    Args:
        distances: Per audited sample, its difference in units of the tolerance.
        gains: Per audited sample, loss in the audit minus loss in the scored pass.
        gain_floor: Mean gain that is let pass whatever the spread.
        names: Per audited sample, what it is called in the evidence.
    """
    spread = float(gains.std(ddof=1)) / float(np.sqrt(len(gains))) if len(gains) > 1 else float("inf")
    worst = int(np.argmax(distances))
    return Audit(
        samples=len(distances),
        disagreeing=int(np.count_nonzero(distances > 1.0)),
        worst=float(distances[worst]),
        gain=float(gains.mean()),
        gain_limit=min(max(gain_floor, GAIN_ERRORS * spread), GAIN_CAP * gain_floor),
        where=names[worst],
    )
