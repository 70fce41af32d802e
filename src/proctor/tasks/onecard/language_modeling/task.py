"""Character-level language modelling: bits per byte on unseen text (1GC-7RC, TinyShakespeare). Host side.

How a submission is scored, and what the score can be trusted for
-----------------------------------------------------------------
The split is cut into blocks that do not overlap, of a length that the checkpoint chooses (config["block_size"], 16 to
1024). So a position is met as often as in training on such blocks, each byte is a target exactly once, and no block
shows the text of another. Longer blocks mean longer contexts; that is the agent's to decide.

A block's inputs hold its targets, one position on. A model that looks ahead would score near 0 bits, and one pass
could not tell. Hence two passes, each in a fresh candidate (see `onecard._common`):

* *scored pass*: all blocks in random batches; the host normalises the logits in float64 and computes the metric;
* *audit pass*: AUDIT_CUTS secret random (block, position) pairs. The block is sent with everything after the position
  replaced by other text of the split, in an order that shows nothing before it is due (`blocks.audit_rounds`). The
  log-probabilities up to and including the position must be those of the scored pass.

The scored process does not know which positions are audited. The audit process may know that it is the audit, and
still cannot give outputs that depended on the true future, for it has not got it. **Detection:** peeking at the next
token shows where the cut follows at once, so a peek on a share f of the positions is caught with probability
1 - (1 - f)^AUDIT_CUTS: 72 % at f = 1 %, 92 % at 2 %, 99.8 % at 5 %; what escapes gains about f of the score at most.
The same holds for what carries over from other blocks or earlier calls, which the audit process sees in another
order and in part. Where a split has fewer than 2 * AUDIT_CUTS blocks (long blocks), blocks are audited at several
positions, and a peek that is confined to a share f of whole *blocks* is met less surely (f = 2 % of 109 blocks of
1024: 69 %). Small nudges within the tolerance are caught by the mean gain: above GAIN_FLOOR nats
where outputs agree closely, above GAIN_CAP times that (0.012 bits) however much they are made to spread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from proctor.errors import InvalidSubmission
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
from proctor.tasks.onecard.language_modeling import blocks as cutting
from proctor.tasks.onecard.language_modeling import data
from proctor.tasks.onecard.language_modeling.blocks import Blocks

Constants = Mapping[str, Mapping[str, Mapping[str, object]]]
BATCH = 64
MIN_BLOCK, MAX_BLOCK = 16, 1024
AUDIT_CUTS = 128
TOLERANCE, TOLERANCE_PER_NAT = 0.25, 0.02
"""Largest difference of a log-probability lp between scored and audited output: 0.25 + 0.02 |lp| nats. The starting
and the reference solution of the mini tier do not move at all with the size of the batch, and by at most 0.7 of it
when bfloat16 takes the place of float32, which is more than two bfloat16 kernels differ
(`tests/tasks/onecard/measure_audit.py`)."""
GAIN_FLOOR = 0.002
"""Mean gain, in nats per audited position, that is let pass whatever the spread."""


class LanguageModeling(Task):
    """TinyShakespeare, one token a character, bits per byte."""

    id = "language_modeling"
    suite = "onecard"
    title = "Model a text, character by character"
    metric = Metric(name="bits per byte", direction=Direction.LOWER, low=0.0)
    tiers: ClassVar[Mapping[str, Tier]] = {
        "mini": Tier(name="mini", budget_s=120.0),
        "full": Tier(name="full", budget_s=2400.0, gpus=1),
    }
    published = Published(start=3.438, best=1.9727, source="arXiv 2605.17046v2")
    artefact = _common.CHECKPOINTS
    policy = ScorePolicy(warm=2)
    locked = ("prepare.py",)
    start_command = ("python", "train.py")
    start_constants: ClassVar[Constants] = {
        "mini": {
            "train.py": {
                "LAYERS": 1,
                "WIDTH": 64,
                "BLOCK_SIZE": 64,
                "BATCH_SIZE": 16,
                "EPOCHS": 2,
                "LEARNING_RATE": 3e-3,
                "WARMUP_STEPS": 50,
            }
        }
    }
    reference_command = ("python", "train.py")
    reference_constants: ClassVar[Constants] = {
        "mini": {
            "train.py": {
                "TIME_LIMIT_S": 75.0,
                "MEMBERS": 1,
                "SCHEDULES": (600,),
                "LAYERS": 2,
                "HEADS": 3,
                "WIDTH": 96,
                "DROPOUT": 0.0,
                "BLOCK_SIZE": 512,
                "BATCH_SIZE": 2,
            }
        }
    }
    files = (data.SHAKESPEARE,)
    calibrations: ClassVar[Mapping[str, Calibration]] = {
        "mini": Calibration(
            start=2.6289,
            reference=1.1515,
            start_std=0.0340,
            reference_std=0.0134,
            source="measured 2026-11-30, 2 CPU cores; seeds 0-4 and 0-2 on the release's hidden split",
        ),
        "full": Calibration(
            start=3.4043,
            reference=None,
            start_std=0.0320,
            source="one NVIDIA H200, torch 2.11, 2026-11-30; sealed, seeds 0, 1; reference not measured whole",
        ),
    }

    def program_fields(self, tier: str, protocol: Protocol, budget_s: float) -> dict[str, str]:
        return {**super().program_fields(tier, protocol, budget_s), **_common.protocol_fields(protocol)}

    def prepare(self, request: PrepareRequest) -> None:
        """Fill public/ with training and visible text, private/ with the visible and the hidden text."""
        if request.tier == "full":
            assert request.raw is not None
            text = data.read_shakespeare(request.raw / data.SHAKESPEARE.path)
        else:
            text = data.generate(request.seed)
        if request.protocol is Protocol.SEALED:
            train, visible = text.train, text.dev
        else:
            train, visible = np.concatenate([text.train, text.dev]), text.test
        np.save(request.public / "train.npy", train)
        np.save(request.public / "val.npy", visible)
        write_json(request.public / "meta.json", {"characters": text.characters})
        np.save(request.private / "visible.npy", visible)
        np.save(request.private / "hidden.npy", text.test)
        write_json(request.private / "meta.json", {"characters": text.characters, "floor": text.floor})

    def evaluate(self, context: EvaluationContext) -> Evaluation:
        """Bits per byte over the split, if the causality audit agrees."""
        ids = np.load(context.private / f"{context.split}.npy")
        vocabulary = len(read_characters(context))
        with context.open() as candidate:
            size = block_size(_common.load(candidate, context).get("block_size"))
            blocks = cutting.cut(ids, size)
            once = _common.Pass(candidate, context, (size, vocabulary))
            logits = once.shuffled(blocks.inputs, BATCH, context.rng)
        scored = cutting.target_log_probabilities(logits, blocks.targets)
        count = int((blocks.targets >= 0).sum())
        bits = float(-scored.sum() / count / np.log(2))
        details: dict[str, Any] = {"bytes": count, "block_size": size, "predict_s": round(once.seconds, 3)}
        if not context.audit:
            return Evaluation(bits, details=details)
        with context.open() as candidate:
            if block_size(_common.load(candidate, context).get("block_size")) != size:
                raise InvalidSubmission("config['block_size'] came out different when the checkpoint was loaded again")
            again = _common.Pass(candidate, context, (size, vocabulary))
            audit = self._audit(again, context, blocks, logits)
        details |= audit.details()
        if audit.passed:
            return Evaluation(bits, details=details)
        finding = audit.finding(
            "causality",
            "predictions change when only the text after them is replaced, so they depend on what they are to predict "
            "or on other blocks",
        )
        message = (
            "not scored: the logits at a position must depend on the tokens up to it only (check the attention mask, "
            f"and that nothing averages or normalises over the time axis). {_common.INNOCENT}. {finding.evidence}."
        )
        return Evaluation(None, message, details, (finding,))

    def _audit(self, again: _common.Pass, context: EvaluationContext, blocks: Blocks, logits: Array) -> _common.Audit:
        """Send the audit's rounds and compare them with the scored pass, block by block."""
        distances: list[float] = []
        gains: list[float] = []
        names: list[str] = []
        for part in cutting.audit_rounds(blocks, AUDIT_CUTS, context.rng):
            for some in _common.batches(np.arange(len(part.rows)), BATCH):
                answers = again.predict(part.inputs[some])
                for row, cut, answer in zip(part.rows[some], part.cuts[some], answers, strict=True):
                    distance, gain = compare(logits[row, : cut + 1], answer[: cut + 1], int(blocks.targets[row, cut]))
                    distances.append(distance.max())
                    gains.append(gain)
                    names.append(f"block {row}, {cut - int(distance.argmax())} positions before the cut at {cut}")
        return _common.judge(np.array(distances), np.array(gains), GAIN_FLOOR, names)


def compare(scored: Array, audited: Array, target: int) -> tuple[Array, float]:
    """Compare logits (t + 1, V) up to a cut.

    Returns:
        The largest difference of a log-probability at each position, in units of the tolerance; and by how many nats
        the scored pass predicts `target`, which follows the cut, better.
    """
    a, b = cutting.log_probabilities(scored), cutting.log_probabilities(audited)
    distance: Array = (np.abs(a - b) / (TOLERANCE + TOLERANCE_PER_NAT * np.abs(b))).max(axis=-1)
    return distance, float(a[-1, target] - b[-1, target])


def block_size(value: object) -> int:
    """The block size that a checkpoint asks for, within the allowed range.

    Raises:
        InvalidSubmission: It is not a whole number.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidSubmission(f"config['block_size'] must be a whole number, not {value!r}")
    return min(max(value, MIN_BLOCK), MAX_BLOCK)


def read_characters(context: EvaluationContext) -> str:
    """The vocabulary, from the host's own copy."""
    meta = json.loads((context.private / "meta.json").read_text(encoding="utf-8"))
    return str(meta["characters"])


TASK = LanguageModeling()
