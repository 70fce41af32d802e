"""From the readings of a scoring to a time per call, and to what speaks against believing it. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from proctor.spec import Finding

FLOOR_FACTOR = 0.8
"""A time below this share of the fastest plain copy seen in the same scoring is not believed. The fastest of five:
copies on a shared CPU took 1.0 to 2.6 times the fastest within one scoring, so that disturbance only lowers
the floor. The rest allows for a way of moving the bytes that is better than the libraries' copy, which on a GPU reaches
about 0.85 of the memory's rated bandwidth."""
CLOCK_RATIO = 1.5
"""The candidate's own clock may differ from ours by this factor..."""
CLOCK_SLACK_S = 1e-2
"""...and by this much per batch, or five times the fixed cost of an exchange, if that is more."""
FILL_RATIO = 1.5
"""On a GPU, filling may take this many times as long as it did before the submission was loaded."""
LOOK_RATIO = 3.0
LOOK_SLACK_S = 2e-4
"""On a GPU, looking may take this many times as long as before, and this much longer."""


@dataclass(frozen=True)
class Timed:
    """Readings of one batch, in seconds.

    Attributes:
        calls: Calls made.
        host_s: Our clock, from before the candidate was thawed until its answer was in.
        own_s: What the candidate says that it took; NaN if it does not say.
        fill_s: Putting the inputs in place, just before.
        look_s: Looking at the outputs, just after.
        window_s: From the answer to the end of that look: the most that unfinished work could have gained.
        frozen_s: From the answer until the candidate was frozen.
        threads: Threads that the candidate says it has.
    """

    calls: int
    host_s: float
    own_s: float
    fill_s: float
    look_s: float
    window_s: float
    frozen_s: float
    threads: int


@dataclass(frozen=True)
class Figures:
    """A scoring in numbers. All times are seconds; per call unless said otherwise.

    Attributes:
        calls_s: Time per call of each timed batch, the fixed cost taken off.
        median_s: Their median: what is scored.
        copy_s: Median time of a plain copy of the same bytes.
        floor_s: Times below this are not believed.
        overhead_s: Fixed cost of one exchange (per batch).
    """

    calls_s: tuple[float, ...]
    median_s: float
    copy_s: float
    floor_s: float
    overhead_s: float


def analyse(copies: Sequence[Timed], timed: Sequence[Timed]) -> Figures:
    """The time per call, from batches of plain copies and batches of the submission.

    The fixed cost of an exchange is our clock less the time of the copies alone, as told by our own code before the
    submission was loaded. The floor rests on the fastest copy, so that a disturbed calibration can only lower it.
    """
    overhead = float(np.median([c.host_s - c.own_s for c in copies]))
    plain = [(c.host_s - overhead) / c.calls for c in copies]
    calls = [(t.host_s - overhead) / t.calls for t in timed]
    return Figures(tuple(calls), float(np.median(calls)), float(np.median(plain)), FLOOR_FACTOR * min(plain), overhead)


def judge(
    figures: Figures, copies: Sequence[Timed], timed: Sequence[Timed], device: Literal["cpu", "cuda"]
) -> list[Finding]:
    """What the readings say against the time."""
    findings = [
        _below_floor(figures),
        _clock(figures, timed),
        *((_gpu_busy_before(copies, timed), _gpu_busy_after(copies, timed)) if device == "cuda" else ()),
        _threads(timed),
    ]
    return [finding for finding in findings if finding is not None]


def describe(figures: Figures, copies: Sequence[Timed], timed: Sequence[Timed]) -> dict[str, Any]:
    """The figures for the score log, in milliseconds."""
    low, high = np.percentile(figures.calls_s, [25, 75])
    return {
        "median_ms": _ms(figures.median_s),
        "times_ms": [_ms(t) for t in figures.calls_s],
        "iqr_ms": _ms(float(high - low)),
        "copy_ms": _ms(figures.copy_s),
        "copies_ms": [_ms((c.host_s - figures.overhead_s) / c.calls) for c in copies],
        "floor_ms": _ms(figures.floor_s),
        "overhead_ms_per_batch": _ms(figures.overhead_s),
        "calls_per_batch": timed[0].calls,
        "own_clock_ms": [_ms(t.own_s / t.calls) for t in timed],
        "fill_ms_before": [_ms(c.fill_s) for c in copies],
        "fill_ms": [_ms(t.fill_s) for t in timed],
        "look_ms_before": [_ms(c.look_s) for c in copies],
        "look_ms": [_ms(t.look_s) for t in timed],
        "late_window_ms_per_batch": _ms(max(t.window_s for t in timed)),
        "late_window_share": round(float(np.median([t.window_s / t.host_s for t in timed])), 5),
        "frozen_after_ms": _ms(max(t.frozen_s for t in timed)),
        "threads": [t.threads for t in timed],
    }


def _below_floor(figures: Figures) -> Finding | None:
    if figures.median_s >= figures.floor_s:
        return None
    return Finding(
        rule="below_floor",
        severity="void",
        evidence=f"{1e3 * figures.median_s:.4f} ms per call is less than {FLOOR_FACTOR:g} of the fastest plain copy of "
        f"the same bytes in this scoring (floor {1e3 * figures.floor_s:.4f} ms): no solution that reads its input and "
        "writes its output can be that fast",
    )


def _clock(figures: Figures, timed: Sequence[Timed]) -> Finding | None:
    """The candidate's own clock against ours; a candidate that gives no time disagrees."""
    ours = float(np.median([t.host_s for t in timed])) - figures.overhead_s
    own = float(np.median([t.own_s for t in timed]))
    slack = max(CLOCK_SLACK_S, 5 * figures.overhead_s)
    if ours <= CLOCK_RATIO * own + slack and own <= CLOCK_RATIO * ours + slack:
        return None
    return Finding(
        rule="clock_disagreement",
        severity="void",
        evidence=f"the clock in the submission's process measured {1e3 * own:.3f} ms for a batch, ours "
        f"{1e3 * ours:.3f} ms (a factor of {CLOCK_RATIO:g} and {1e3 * slack:.3f} ms are allowed)",
    )


def _gpu_busy_before(copies: Sequence[Timed], timed: Sequence[Timed]) -> Finding | None:
    """Filling is our own GPU work while the candidate is frozen; a kernel left running there slows it."""
    before, now = _median_fill(copies), _median_fill(timed)
    if now <= FILL_RATIO * before:
        return None
    return Finding(
        rule="background_gpu_work",
        severity="void",
        evidence=f"putting inputs in place took {1e3 * now:.2f} ms with the submission idle, {1e3 * before:.2f} ms "
        "before it was loaded: it keeps the GPU busy between calls",
    )


def _gpu_busy_after(copies: Sequence[Timed], timed: Sequence[Timed]) -> Finding | None:
    before = float(np.median([c.look_s for c in copies]))
    now = float(np.median([t.look_s for t in timed]))
    if now <= LOOK_RATIO * before + LOOK_SLACK_S:
        return None
    return Finding(
        rule="late_writer",
        severity="void",
        evidence=f"looking at the outputs right after the answer took {1e3 * now:.3f} ms, {1e3 * before:.3f} ms before "
        "the submission was loaded: work was still going on",
    )


def _threads(timed: Sequence[Timed]) -> Finding | None:
    """A thread left behind by every call; pools, which are made once, do not grow."""
    grown = timed[-1].threads - timed[0].threads
    if len(timed) < 3 or grown < len(timed) - 1:
        return None
    return Finding(
        rule="late_threads",
        severity="note",
        evidence=f"the submission's threads grew from {timed[0].threads} to {timed[-1].threads} over {len(timed)} "
        "timed batches",
    )


def _median_fill(batches: Sequence[Timed]) -> float:
    return float(np.median([b.fill_s for b in batches]))


def _ms(seconds: float) -> float | None:
    """Milliseconds to the nearest 10 ns; None for what is not a number (JSON has none)."""
    return round(1e3 * seconds, 5) if math.isfinite(seconds) else None
