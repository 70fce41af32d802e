"""The forecasting series: ETTh1 as published (full), or one made from a seed (mini). Host side.

Both tiers become the same three arrays of z-normalised rows, one after the other in time.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proctor.errors import ProctorError
from proctor.tasks.base import Array, RemoteFile

LOOKBACK = 336
HORIZON = 96
CHANNELS = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")

ETTH1 = RemoteFile(
    path="ETTh1.csv",
    urls=(
        "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/ETTh1.csv",
        "https://huggingface.co/datasets/thuml/Time-Series-Library/resolve/main/ETT-small/ETTh1.csv",
    ),
    size=2_589_657,
    sha256="f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    licence="CC BY-ND 4.0 (Zhou et al., Informer, AAAI 2021); not redistributed here",
)
ETTH1_BORDERS = (8_640, 11_520, 14_400)
"""End rows of train, val and test: 12, 4 and 4 months of 30 days, as is standard; later rows are unused."""

MINI_BORDERS = (4_320, 5_160, 6_000)
"""The same for generated data: 180, 35 and 35 days, which gives 3,889 / 745 / 745 windows."""

MAX_DELAY = 97
"""Hours by which a channel may follow its drivers, at most 96: as far as the forecast reaches."""


@dataclass(frozen=True)
class Series:
    """Three float32 arrays (rows, 7), z-normalised with the train statistics of each channel.

    `floor` is the mean squared error that no forecast of the test rows can avoid (known for generated data only).
    """

    train: Array
    val: Array
    test: Array
    floor: float | None = None

    def with_lookback(self, split: str) -> Array:
        """The rows of `val` or `test`, after the LOOKBACK rows before them."""
        before, own = (self.train, self.val) if split == "val" else (self.val, self.test)
        return np.concatenate([before[-LOOKBACK:], own])


def windows(rows: Array) -> tuple[Array, Array]:
    """All windows of `rows` (n + LOOKBACK + HORIZON - 1, 7), as views: inputs (n, 336, 7) and targets (n, 96, 7)."""
    both = np.lib.stride_tricks.sliding_window_view(rows, LOOKBACK + HORIZON, axis=0).transpose(0, 2, 1)
    return both[:, :LOOKBACK], both[:, LOOKBACK:]


def split_rows(raw: Array, borders: tuple[int, int, int], noise: Array | None = None) -> Series:
    """Cut and normalise raw rows (n, 7); `noise` is the part of them that cannot be foreseen, if it is known."""
    a, b, c = borders
    mean, std = raw[:a].mean(axis=0), raw[:a].std(axis=0)
    rows = ((raw[:c] - mean) / std).astype(np.float32)
    floor = None
    if noise is not None:
        # Each row counts as often as windows have it among their targets, as it does in the metric.
        weight = np.convolve(np.ones(c - b - HORIZON + 1), np.ones(HORIZON))
        floor = float(np.average(((noise[b:c] / std) ** 2).mean(axis=1), weights=weight))
    return Series(rows[:a], rows[a:b], rows[b:c], floor)


def read_etth1(path: Path) -> Series:
    """The published series.

    Raises:
        ProctorError: The file has other columns than ETTh1's.
    """
    with path.open(newline="", encoding="utf-8") as stream:
        lines = csv.reader(stream)
        header = tuple(next(lines, ()))
        if header != ("date", *CHANNELS):
            raise ProctorError(f"{path} has the columns {', '.join(header)}, which are not ETTh1's", "fetch it again")
        raw = np.array([[float(value) for value in line[1:]] for line in lines])
    if len(raw) < ETTH1_BORDERS[-1]:
        raise ProctorError(f"{path} holds {len(raw)} rows; {ETTH1_BORDERS[-1]} are needed", "fetch it again")
    return split_rows(raw, ETTH1_BORDERS)


def generate(seed: int) -> Series:
    """A series with what a better model can find and the starting one does not.

    Hourly rows of seven channels. Each is the sum of a daily and a weekly shape, whose strength and form follow a
    hidden two-state regime that lasts for days; of a slow trend; and of two hidden drivers that cannot be foreseen
    from their own past for long. Channels 0 and 1 show the drivers at once, the others with a delay of their own of
    one to four days and, two of them, saturating: what the leading channels do now is what the others will do.
    White noise with heavy tails is added to all; its power on the test rows is the floor.
    """
    rng = np.random.default_rng([seed, 0xF0])
    n, lead = MINI_BORDERS[-1], MAX_DELAY
    hour = np.arange(n)
    regime = _regime(rng, n)
    drivers = _autoregressive(rng, (n + lead, 2), 0.985)
    drivers = np.apply_along_axis(np.convolve, 0, drivers, np.ones(5) / 5, mode="same")
    delays = [0, 0, *rng.integers(24, MAX_DELAY, size=len(CHANNELS) - 2)]
    loads = rng.normal(scale=0.3, size=(len(CHANNELS), 2))
    channels = []
    for c, delay in enumerate(delays):
        loads[c, c % 2] += 1.0
        driven = drivers[lead - delay : lead - delay + n] @ loads[c]
        if c >= len(CHANNELS) - 2:
            driven = 1.2 * np.tanh(1.5 * driven)
        seasons = 0.8 * _seasons(rng, hour, regime)
        trend = np.cumsum(rng.normal(scale=0.004, size=n))
        channels.append(driven + seasons + trend)
    clean = np.stack(channels, axis=1)  # (n, 7)
    white = rng.standard_t(4, size=clean.shape) * 0.22
    return split_rows(clean + white, MINI_BORDERS, white)


def _regime(rng: np.random.Generator, n: int) -> Array:
    """A 0/1 state per hour that stays for about eight days, smoothed over a few hours."""
    state = np.empty(n)
    now, here = 0, float(rng.integers(2))
    while now < n:
        stay = 72 + int(rng.exponential(120))
        state[now : now + stay] = here
        now, here = now + stay, 1.0 - here
    return np.convolve(np.pad(state, (12, 11), mode="edge"), np.ones(24) / 24, mode="valid")


def _seasons(rng: np.random.Generator, hour: Array, regime: Array) -> Array:
    """A daily shape (two of them, which the regime blends) and a weekly one."""
    shapes = [_harmonics(rng, hour, 24.0, 3) for _ in range(2)]
    daily = shapes[0] * (1 - regime) + shapes[1] * regime
    both: Array = daily + 0.5 * _harmonics(rng, hour, 168.0, 4)
    return both


def _harmonics(rng: np.random.Generator, hour: Array, period: float, count: int) -> Array:
    """A periodic shape: `count` harmonics with falling amplitudes and random phases."""
    k = np.arange(1, count + 1)[:, None]
    phase = rng.uniform(0, 2 * np.pi, size=(count, 1))
    amplitude = rng.uniform(0.5, 1.0, size=(count, 1)) / k
    shape: Array = (amplitude * np.sin(2 * np.pi * k * hour / period + phase)).sum(axis=0)
    return shape


def _autoregressive(rng: np.random.Generator, shape: tuple[int, ...], memory: float) -> Array:
    """A first-order autoregressive process along axis 0, with unit variance."""
    shocks: Array = rng.normal(size=shape) * np.sqrt(1 - memory**2)
    shocks[0] /= np.sqrt(1 - memory**2)
    for i in range(1, shape[0]):
        shocks[i] += memory * shocks[i - 1]
    return shocks
