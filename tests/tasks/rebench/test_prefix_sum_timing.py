"""What the readings of a scoring come to."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from proctor.tasks.rebench.prefix_sum import timing
from proctor.tasks.rebench.prefix_sum.timing import Timed

OVERHEAD = 0.0005
COPY = Timed(
    calls=2, host_s=0.0205, own_s=0.02, fill_s=0.05, look_s=1e-4, window_s=2e-4, frozen_s=3e-4, threads=3
)  # 10 ms a call
COPIES = [COPY] * 5


def batches(per_call_s: float, count: int = 5, own: float = 1.0) -> list[Timed]:
    """Timed batches of two calls; the candidate's clock says `own` times the true time."""
    work = 2 * per_call_s
    return [replace(COPY, host_s=work + OVERHEAD, own_s=own * work)] * count


def rules(timed: list[Timed], copies: list[Timed] = COPIES, device: str = "cpu") -> dict[str, str]:
    figures = timing.analyse(copies, timed)
    found = timing.judge(figures, copies, timed, "cuda" if device == "cuda" else "cpu")
    return {finding.rule: finding.severity for finding in found}


def test_the_fixed_cost_is_taken_off_and_the_median_counts() -> None:
    timed = [*batches(0.030, 3), *batches(5.0, 2)]
    figures = timing.analyse(COPIES, timed)
    assert figures.overhead_s == pytest.approx(OVERHEAD)
    assert figures.median_s == pytest.approx(0.030)
    assert figures.copy_s == pytest.approx(0.010)


def test_the_floor_rests_on_the_fastest_copy() -> None:
    disturbed = [replace(COPY, host_s=1.0005, own_s=1.0)] * 4
    figures = timing.analyse([COPY, *disturbed], batches(0.03))
    assert figures.floor_s == pytest.approx(timing.FLOOR_FACTOR * 0.010)


def test_a_time_below_the_floor_is_void() -> None:
    assert rules(batches(0.0079)) == {"below_floor": "void"}
    assert rules(batches(0.0081)) == {}


def test_no_time_at_all_is_void() -> None:
    assert "below_floor" in rules([replace(COPY, host_s=0.0001, own_s=0.0)] * 5)


@pytest.mark.parametrize("own", [0.001, 0.5, 2.0, 1000.0])
def test_another_clock_is_void(own: float) -> None:
    assert rules(batches(0.5, own=own)) == {"clock_disagreement": "void"}


@pytest.mark.parametrize("own", [0.8, 1.0, 1.2])
def test_a_clock_that_agrees_is_not_suspected(own: float) -> None:
    assert rules(batches(0.5, own=own)) == {}


def test_a_candidate_that_gives_no_time_is_void() -> None:
    timed = [replace(t, own_s=math.nan) for t in batches(0.5)]
    assert rules(timed) == {"clock_disagreement": "void"}
    json.dumps(timing.describe(timing.analyse(COPIES, timed), COPIES, timed), allow_nan=False)


def test_one_disturbed_batch_does_not_make_a_finding() -> None:
    odd = replace(COPY, host_s=9.0, own_s=0.1, fill_s=9.0, look_s=9.0)
    assert rules([odd, *batches(0.5, 4)], device="cuda") == {}


def test_gpu_work_between_calls_is_void_on_a_gpu() -> None:
    timed = [replace(t, fill_s=0.1) for t in batches(0.5)]
    assert rules(timed, device="cuda") == {"background_gpu_work": "void"}
    assert rules(timed, device="cpu") == {}


def test_a_slow_look_is_void_on_a_gpu() -> None:
    timed = [replace(t, look_s=0.002) for t in batches(0.5)]
    assert rules(timed, device="cuda") == {"late_writer": "void"}
    assert rules(timed, device="cpu") == {}


def test_a_pool_of_threads_is_not_noted_and_one_a_call_is() -> None:
    assert rules([replace(t, threads=65) for t in batches(0.5)]) == {}
    assert rules([replace(t, threads=3 + i) for i, t in enumerate(batches(0.5))]) == {"late_threads": "note"}
