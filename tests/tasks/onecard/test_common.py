"""What both tasks share: the audit's verdict, and the limits of what a submission may compute while it is scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.errors import InvalidSubmission
from proctor.spec import Protocol
from proctor.tasks.base import Array, ArraySpec, EvaluationContext, Reply
from proctor.tasks.onecard import _common


class Slow:
    """A candidate whose every call takes as long as it is told, by the host's clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def call(
        self,
        op: str,
        arrays: Mapping[str, Array] | None = None,
        meta: Mapping[str, Any] | None = None,
        *,
        expect: Mapping[str, ArraySpec] | None = None,
        fds: Sequence[int] = (),
        timeout_s: float = 60.0,
    ) -> Reply:
        if self.seconds > timeout_s:
            raise InvalidSubmission(f"the submission did not answer within {timeout_s:g} s ({op})")
        return Reply({}, {n: np.zeros(s.shape, s.dtype) for n, s in (expect or {}).items()}, self.seconds)

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def kill(self) -> None: ...


def context(candidate: Slow, budget_s: float) -> EvaluationContext:
    here = Path()
    return EvaluationContext(
        split="hidden",
        protocol=Protocol.SEALED,
        tier="mini",
        device="cpu",
        public=here,
        private=here,
        artefact=here,
        target="checkpoints/model.pt",
        open=lambda: nullcontext(candidate),
        rng=np.random.default_rng(0),
        budget_s=budget_s,
    )


@pytest.mark.parametrize(("budget_s", "limit_s"), [(10.0, 15.0), (300.0, 30.0), (2400.0, 60.0)])
def test_training_cannot_be_put_off_into_loading(budget_s: float, limit_s: float) -> None:
    quick, slow = Slow(limit_s - 1.0), Slow(limit_s + 1.0)
    _common.load(quick, context(quick, budget_s))
    with pytest.raises(InvalidSubmission, match="must be in the checkpoint"):
        _common.load(slow, context(slow, budget_s))


def test_training_cannot_be_put_off_into_predicting() -> None:
    each = Slow(9.0)
    once = _common.Pass(each, context(each, 120.0), (2,))
    with pytest.raises(InvalidSubmission):
        once.shuffled(np.zeros((5, 3), np.float32), 1, np.random.default_rng(0))
    assert once.seconds <= 30.0


def test_a_gain_cannot_hide_behind_a_spread_that_the_submission_made() -> None:
    """Up on most samples and down on the others: the mean is a gain, and its standard error is whatever one likes."""
    gains = np.where(np.arange(128) < 78, 0.2, -0.2)
    names = [str(i) for i in range(128)]
    assert not _common.judge(np.full(128, 0.8), gains, 0.002, names).passed


def test_rounding_passes() -> None:
    gains = np.random.default_rng(0).normal(0.0, 0.01, 128)
    assert _common.judge(np.full(128, 0.5), gains, 0.002, [str(i) for i in range(128)]).passed
