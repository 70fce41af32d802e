"""The steps of a scoring: what happens in which order, when it stops, and what it says of failures."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.clock import ManualClock
from proctor.errors import InfrastructureError, InvalidSubmission
from proctor.spec import Protocol
from proctor.tasks.base import Array, ArraySpec, Candidate, EvaluationContext, Reply
from proctor.tasks.rebench.prefix_sum import data
from proctor.tasks.rebench.prefix_sum.cpu import MemfdBuffers
from proctor.tasks.rebench.prefix_sum.data import Recipe
from proctor.tasks.rebench.prefix_sum.gpu import JudgeBuffers
from proctor.tasks.rebench.prefix_sum.session import Plan, Session
from proctor.tasks.rebench.prefix_sum.task import TASK, score
from tests.tasks.rebench.prefix_sum_support import START, rules, score_files, score_source

SMALL = Plan(n=5000, pairs=2, calls=1, calibrations=2, repeats=5, least_repeats=2, time_limit_s=10.0)


class Recorded(MemfdBuffers):
    """Buffers that note what is done with them."""

    def __init__(self, plan: Plan, events: list[str]) -> None:
        super().__init__(plan.n, plan.pairs, np.random.default_rng())
        self.events = events

    def fill(self, order: Sequence[tuple[int, int]], recipes: Sequence[Recipe]) -> float:
        self.events.append("fill")
        return super().fill(order, recipes)

    def look(self) -> float:
        self.events.append("look")
        return super().look()

    def solve(self, order: list[tuple[int, int]]) -> None:
        for i, o in order:
            self._arrays[self.pairs + o][:] = data.prefix_sum(self._arrays[i])[0]


class Fake:
    """A candidate in this process that is right and takes as long, by a clock moved by hand, as it is told to."""

    def __init__(self, buffers: Recorded, clock: ManualClock, copy_s: float = 0.010, run_s: float = 0.030) -> None:
        self.buffers, self.clock = buffers, clock
        self.seconds = {"copy": copy_s, "run": run_s}
        self.events = buffers.events

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
        self.events.append(op)
        if op == "small":
            assert arrays is not None
            return Reply({}, {"y": data.prefix_sum(arrays["x"])[0]}, 0.0)
        if op not in self.seconds:
            return Reply({"form": "out"}, {}, 0.0)
        assert meta is not None
        self.buffers.solve(meta["order"])
        self.clock.advance(self.seconds[op] + 0.001)
        return Reply({"nonce": meta["nonce"], "own_s": self.seconds[op], "threads": 1}, {}, 0.0)

    def freeze(self) -> None:
        self.events.append("freeze")

    def thaw(self) -> None:
        self.events.append("thaw")
        self.clock.advance(0.002)

    def kill(self) -> None: ...


def faked(plan: Plan = SMALL, **seconds: float) -> tuple[Fake, Recorded, Session, ManualClock]:
    clock = ManualClock()
    buffers = Recorded(plan, [])
    candidate = Fake(buffers, clock, **seconds)
    return candidate, buffers, Session(candidate, buffers, plan, np.random.default_rng(), clock), clock


def test_inputs_appear_while_the_candidate_is_frozen_and_the_look_comes_before_the_freeze() -> None:
    candidate, buffers, steps, _ = faked()
    steps.batch("run", 1.0)
    first = list(candidate.events)
    steps.batch("run", 1.0)
    assert first == ["freeze", "fill", "thaw", "run", "look", "freeze"]
    assert candidate.events[len(first) :] == ["fill", "thaw", "run", "look", "freeze"]
    buffers.close()


def test_the_clock_runs_before_the_candidate_does() -> None:
    _, buffers, steps, _ = faked(run_s=0.030)
    timed = steps.batch("run", 1.0)
    assert timed.host_s == pytest.approx(0.002 + 0.001 + 0.030)
    assert timed.own_s == pytest.approx(0.030)
    buffers.close()


def test_slow_submissions_are_timed_less_often() -> None:
    _, buffers, steps, _ = faked(run_s=4.0)
    assert len(steps.time()) == 3  # begun after 0, 4 and 8 seconds; the limit is 10
    _, more, steps, _ = faked(run_s=60.0)
    assert len(steps.time()) == SMALL.least_repeats
    buffers.close()
    more.close()


def test_a_time_below_the_floor_has_no_score() -> None:
    for run_s, valid in ((0.030, True), (0.005, False)):
        candidate, buffers, _, clock = faked(copy_s=0.010, run_s=run_s)
        evaluation = score(candidate, buffers, SMALL, np.random.default_rng(), clock)
        assert (evaluation.score is not None) == valid
        if valid:
            assert evaluation.score == pytest.approx(math.log(30.0))
            assert evaluation.findings == ()
        else:
            assert rules(evaluation) == {"below_floor": "void"}
        buffers.close()


def test_batches_use_the_whole_pool_in_changing_order() -> None:
    plan = replace(SMALL, pairs=4, calls=None)
    candidate, buffers, steps, _ = faked(plan)
    orders = []
    candidate.buffers.solve = orders.append  # type: ignore[method-assign]
    for _ in range(8):
        steps.batch("run", 1.0)
    assert all(sorted(i for i, _ in order) == sorted(o for _, o in order) == [0, 1, 2, 3] for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    buffers.close()


def test_failures_are_told_apart(tmp_path: Path) -> None:
    cases = {
        "x = 1": "defines no function prefix_sum",
        "import nothing_of_the_kind": "ModuleNotFoundError",
        "def prefix_sum(x, out):\n    raise ValueError('half done')": "ValueError: half done",
        "def prefix_sum(x):\n    return x.long()": "torch.int64",
        "def prefix_sum(x, out):\n    out.copy_(x)": "of an array with values in",
        "import os\ndef prefix_sum(x, out):\n    os._exit(3)": "exit code 3",
    }
    for source, said in cases.items():
        with pytest.raises(InvalidSubmission, match=said):
            score_source(tmp_path, source, SMALL)


def test_a_submission_that_hangs_is_ended(tmp_path: Path) -> None:
    source = START.replace("def prefix_sum(", "def plain(") + (
        f"\nimport time\ndef prefix_sum(x, out):\n    if len(x) == {SMALL.n}: time.sleep(60)\n    plain(x, out)\n"
    )
    with pytest.raises(InvalidSubmission, match="did not answer within 1 s"):
        score_source(tmp_path, source, replace(SMALL, load_timeout_s=1.0))


def test_a_judge_process_scores_as_this_process_does(tmp_path: Path) -> None:
    plan = Plan(n=300_001, pairs=4, calls=None, calibrations=2, repeats=3, least_repeats=3)
    judged = JudgeBuffers(plan.n, plan.pairs, np.random.default_rng(), sys.executable, device="cpu")
    evaluation = score_files(tmp_path, {"solution.py": START}, plan, judged)
    assert evaluation.score is not None and evaluation.findings == ()
    assert evaluation.details["calls_per_batch"] == 4


def test_a_judge_process_finds_what_is_unfinished(tmp_path: Path) -> None:
    plan = Plan(n=300_001, pairs=4, calls=None, calibrations=2, repeats=3, least_repeats=3)
    judged = JudgeBuffers(plan.n, plan.pairs, np.random.default_rng(), sys.executable, device="cpu")
    source = START.replace("def prefix_sum(", "def honest(") + (
        "\nimport threading\ndef prefix_sum(x, out):\n"
        f"    if len(x) < {plan.n}: return honest(x, out)\n"
        "    threading.Timer(0.2, honest, (x, out)).start()\n"
    )
    evaluation = score_files(tmp_path, {"solution.py": source}, plan, judged)
    assert rules(evaluation) == {"late_writer": "void"}


def test_the_full_tier_asks_for_a_gpu(tmp_path: Path) -> None:
    def no_box() -> AbstractContextManager[Candidate]:
        raise AssertionError("no candidate is started")

    context = EvaluationContext(
        split="visible",
        protocol=Protocol.SEALED,
        tier="full",
        device="cpu",
        public=tmp_path,
        private=tmp_path,
        artefact=tmp_path,
        target="solution.py",
        open=no_box,
        rng=np.random.default_rng(),
    )
    with pytest.raises(InfrastructureError, match="timed on a GPU"):
        TASK.evaluate(context)
