"""One scoring of prefix_sum: lend arrays, calibrate, load the submission, check it, time it, check it again.

What makes the time trustworthy, whatever the submission does:

* The candidate is frozen while a batch's inputs are put in place, and the clock starts before it is thawed: nothing
  can be worked out ahead. Inputs are new for every batch, and which array is which is said only with the request.
* Outputs hold garbage before, are looked at at random places the moment the answer is in, and are compared in full
  once the candidate is frozen again: nothing can be finished later, or left out.
* Answers carry a number that only the request has: none can be sent ahead.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from proctor.clock import Clock, SystemClock
from proctor.errors import InvalidSubmission
from proctor.spec import Finding
from proctor.tasks.base import ArraySpec, Candidate
from proctor.tasks.rebench.prefix_sum import data
from proctor.tasks.rebench.prefix_sum.buffers import Buffers, Verdict
from proctor.tasks.rebench.prefix_sum.data import HIGH, Recipe
from proctor.tasks.rebench.prefix_sum.timing import Timed

LATE_WAIT_S = 1.0
"""How long wrong outputs are given to become right, to tell a late writer from a wrong answer."""


@dataclass(frozen=True)
class Plan:
    """How much is measured at a tier.

    Attributes:
        n: Elements of the timed arrays.
        pairs: Inputs, and outputs, in the pool (on a GPU, fewer if its memory is short).
        calls: Calls in a batch, which is what is timed; None for as many as there are pairs.
        calibrations: Batches of plain copies, before the submission is loaded.
        repeats: Timed batches.
        least_repeats: Timed batches even where `time_limit_s` is up.
        time_limit_s: No further timed batch is begun after this many seconds of them.
        load_timeout_s: Limit for importing the submission, and for its first calls (compilation).
        batch_timeout_s: Limit for a timed batch.
    """

    n: int
    pairs: int
    calls: int | None
    calibrations: int = 5
    repeats: int = 7
    least_repeats: int = 5
    time_limit_s: float = 20.0
    load_timeout_s: float = 60.0
    batch_timeout_s: float = 20.0


class Voided(Exception):
    """The scoring cannot count; carries the finding that says why."""

    def __init__(self, rule: str, evidence: str) -> None:
        super().__init__(evidence)
        self.finding = Finding(rule=rule, severity="void", evidence=evidence)


class Session:
    """The steps of one scoring, to be taken in the order in which they are written here.

    Args:
        candidate: A fresh candidate that has loaded nothing yet.
        buffers: The arrays.
        plan: How much to measure.
        rng: Secret entropy.
        clock: Where time comes from.
    """

    def __init__(
        self, candidate: Candidate, buffers: Buffers, plan: Plan, rng: np.random.Generator, clock: Clock | None = None
    ) -> None:
        self._candidate = candidate
        self._buffers = buffers
        self._plan = plan
        self._rng = rng
        self._clock = clock or SystemClock()
        self._frozen = False
        self.runtime: dict[str, Any] = {}

    def connect(self) -> None:
        """Have the arrays mapped in the candidate."""
        fds = self._buffers.descriptors()
        self.runtime = self._candidate.call("map", meta=self._buffers.mapping(), fds=fds, timeout_s=60.0).meta

    def calibrate(self) -> list[Timed]:
        """Plain copies by our own code in the candidate's process; the first batch is not counted."""
        batches = [self.batch("copy", self._plan.batch_timeout_s) for _ in range(self._plan.calibrations + 1)]
        return batches[1:]

    def load(self) -> str:
        """Import the submission. Returns `out` or `returns`: what its `prefix_sum` does with the answer."""
        self._thaw()
        reply = self._candidate.call("load", timeout_s=self._plan.load_timeout_s)
        return "returns" if reply.meta.get("form") == "returns" else "out"

    def check_small(self) -> int:
        """Small inputs of many kinds; returns how many were right.

        Raises:
            InvalidSubmission: One was not.
        """
        self._thaw()
        cases = data.hard_cases(self._rng)
        for x in cases:
            poison = int(self._rng.integers(-(2**31), 2**31))
            spec = ArraySpec(x.shape, "int32")
            limit = self._plan.load_timeout_s
            got = self._candidate.call(
                "small", {"x": x}, {"poison": poison}, expect={"y": spec}, timeout_s=limit
            ).arrays["y"]
            expected, _, _ = data.prefix_sum(x)
            bad = np.flatnonzero(got != expected)
            if len(bad):
                raise InvalidSubmission(
                    f"prefix_sum is wrong at {len(bad)} of {len(x)} positions of an array with values in "
                    f"[{int(x.min())}, {int(x.max())}]; the first is index {bad[0]}: expected {expected[bad[0]]}, "
                    f"got {got[bad[0]]}"
                )
        return len(cases)

    def warm_up(self) -> None:
        """Untimed calls at full length, checked in full: on ordinary inputs, on positive ones only, and again."""
        for low in (data.LOW, 1, data.LOW):
            self._checked(self.batch("run", self._plan.load_timeout_s, low))

    def time(self) -> list[Timed]:
        """The timed batches, each on new inputs and checked in full.

        Raises:
            InvalidSubmission: An output was wrong.
            Voided: An output was unfinished, an input was changed, or an answer was sent ahead.
        """
        batches: list[Timed] = []
        started = self._clock.monotonic()
        while len(batches) < self._plan.repeats:
            late = self._clock.monotonic() - started > self._plan.time_limit_s
            if late and len(batches) >= self._plan.least_repeats:
                break
            batches.append(self._checked(self.batch("run", self._plan.batch_timeout_s)))
        return batches

    def batch(self, op: str, timeout_s: float, low: int = data.LOW) -> Timed:
        """One batch of calls of `op` on new inputs with values in [low, HIGH]; leaves the candidate frozen."""
        buffers, candidate = self._buffers, self._candidate
        calls = self._plan.calls or buffers.pairs
        pool = range(buffers.pairs)
        order = list(
            zip(self._rng.permutation(pool)[:calls].tolist(), self._rng.permutation(pool)[:calls].tolist(), strict=True)
        )
        recipes = [Recipe(int(seed), low, HIGH) for seed in self._rng.integers(0, 2**63, size=calls)]
        self._freeze()
        fill_s = buffers.fill(order, recipes)
        nonce = self._rng.bytes(8).hex()
        meta = {"order": order, "nonce": nonce}

        started = self._clock.monotonic()
        self._thaw()
        reply = candidate.call(op, meta=meta, timeout_s=timeout_s)
        answered = self._clock.monotonic()
        look_s = buffers.look()
        looked = self._clock.monotonic()
        self._freeze()
        stopped = self._clock.monotonic()

        if reply.meta.get("nonce") != nonce:
            raise Voided(
                "forged_message",
                f"the answer to {op} came after {1e3 * (answered - started):.3f} ms without the number that the "
                "request carried: it was not made by the driver in reply to this request",
            )
        return Timed(
            calls,
            answered - started,
            _number(reply.meta.get("own_s")),
            fill_s,
            look_s,
            looked - answered,
            stopped - answered,
            int(_number(reply.meta.get("threads"), 0.0)),
        )

    def _checked(self, timed: Timed) -> Timed:
        """Pass a batch on if all that it left behind is right."""
        verdict = self._buffers.verify()
        if verdict.mutated:
            raise Voided(
                "input_mutated",
                f"prefix_sum changed its input at {verdict.mutated} positions; the input must be left as it is",
            )
        if verdict.wrong or verdict.spots_wrong:
            self._explain(verdict, timed)
        return timed

    def _explain(self, verdict: Verdict, timed: Timed) -> None:
        """Tell unfinished outputs from wrong ones, and raise accordingly."""
        again = verdict
        if verdict.wrong:
            self._thaw()
            time.sleep(LATE_WAIT_S)  # the candidate runs meanwhile
            self._freeze()
            again = self._buffers.verify()
        if not again.wrong:
            raise Voided(
                "late_writer",
                f"outputs were still being written after the answer: {verdict.spots_wrong} of the positions looked at "
                f"within {1e3 * timed.window_s:.3f} ms of it were wrong, and {verdict.wrong} when the candidate was "
                f"frozen {1e3 * timed.frozen_s:.3f} ms after it; all were right later",
            )
        raise InvalidSubmission(wrong_values(again, timed.calls, self._buffers.n))

    def _freeze(self) -> None:
        if not self._frozen:
            self._candidate.freeze()
            self._frozen = True

    def _thaw(self) -> None:
        if self._frozen:
            self._candidate.thaw()
            self._frozen = False


def wrong_values(verdict: Verdict, calls: int, n: int) -> str:
    """What to tell the author of wrong outputs."""
    text = f"prefix_sum is wrong at {verdict.wrong} of {calls * n} positions ({calls} calls on {n} elements)"
    if verdict.first is not None:
        first = verdict.first
        text += f"; the first is index {first.index} of call {first.call}: expected {first.expected}, got {first.got}"
    if verdict.unwritten:
        text += f"; {verdict.unwritten} of them were never written"
    return text


def _number(value: object, default: float = math.nan) -> float:
    """A finite number that the candidate sent, or the default."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return default
