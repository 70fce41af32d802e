"""Inputs and right answers of prefix_sum, in numpy, on the host.

y_i = sum over j <= i of x_j * s_j, where s_j is 1 if the number of strictly positive x_k with k < j is odd, else 0; all
in int32. A stretch of the array acts on what comes before it only through two numbers, the parity of positives so far
and the sum so far, which is why long arrays are worked through in pieces that fit the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proctor.tasks.base import Array

LOW, HIGH = -10, 9
"""Values of every input, both ends included: part of the contract with the submission."""

PIECE = 1 << 18
"""Elements worked on at a time: 1 MiB of int32."""

EXAMPLE_LENGTH = 4096


@dataclass(frozen=True)
class Recipe:
    """How to make an input again: the host's secret seed and the range of the values (both ends included)."""

    seed: int
    low: int = LOW
    high: int = HIGH


def pieces(recipe: Recipe, n: int) -> Iterator[tuple[int, Array]]:
    """The input of length `n` as (offset, int8 array) pairs, in order; the same for the same recipe."""
    rng = np.random.Generator(np.random.SFC64(recipe.seed))
    for at in range(0, n, PIECE):
        yield at, rng.integers(recipe.low, recipe.high + 1, size=min(PIECE, n - at), dtype=np.int8)


def prefix_sum(x: Array, parity: int = 0, total: int = 0) -> tuple[Array, int, int]:
    """The function itself, for one piece.

    Args:
        x: Integers of any signed type, shape (n,).
        parity: Parity of the positives before the piece.
        total: Output just before the piece.

    Returns:
        Output as int32, shape (n,), with wrap-around; the parity and the output after the piece.
    """
    if not len(x):
        return np.empty(0, np.int32), parity, total
    positive = (x > 0).view(np.uint8)
    inclusive = np.bitwise_xor.accumulate(positive)
    kept = (inclusive ^ positive ^ np.uint8(parity)).astype(x.dtype) * x
    out = np.cumsum(kept, dtype=np.int32)
    out += np.array(total, np.int64).astype(np.int32)
    return out, int(inclusive[-1]) ^ parity, int(out[-1])


def hard_cases(rng: np.random.Generator) -> list[Array]:
    """Small inputs on which wrong shortcuts fail: odd lengths, all of one sign, zeros, single positives, edges."""
    lengths = (1, 2, 31, 1000, 4097, 100_003)
    cases = [rng.integers(LOW, HIGH + 1, size=n, dtype=np.int32) for n in lengths]
    n = 70_001
    lone = np.full(n, LOW, np.int32)
    lone[int(rng.integers(0, n // 2))] = HIGH
    return [
        *cases,
        np.full(n, HIGH, np.int32),
        np.full(n, LOW, np.int32),
        np.zeros(n, np.int32),
        lone,
        np.where(np.arange(n) % 2 == 0, HIGH, LOW).astype(np.int32),
    ]


def write_example(folder: Path, seed: int) -> None:
    """A small worked example for the agent: `example_x.npy` and `example_y.npy`, int32 of shape (4096,)."""
    x = np.random.default_rng(seed).integers(LOW, HIGH + 1, size=EXAMPLE_LENGTH, dtype=np.int32)
    np.save(folder / "example_x.npy", x)
    np.save(folder / "example_y.npy", prefix_sum(x)[0])
