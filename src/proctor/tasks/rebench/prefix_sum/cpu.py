"""Arrays in the host's memory, shared with a candidate on the CPU as memfds."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from proctor.tasks.base import Array
from proctor.tasks.rebench.prefix_sum import data
from proctor.tasks.rebench.prefix_sum.buffers import SPOTS, FirstWrong, Order, Verdict
from proctor.tasks.rebench.prefix_sum.data import PIECE, Recipe

# A candidate that could shrink the file would crash this process at its next read.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass
class _Batch:
    """One filled batch: what went in, the garbage in its outputs, and what was seen there right after the answer."""

    order: Order
    recipes: Sequence[Recipe]
    garbage: Array
    positions: Array
    seen: list[Array]


class MemfdBuffers:
    """`proctor.tasks.rebench.prefix_sum.buffers.Buffers` in memory shared by memfd.

    Args:
        n: Elements of each array.
        pairs: Inputs, and outputs, in the pool.
        rng: Where garbage and positions come from.
    """

    device: Literal["cpu", "cuda"] = "cpu"

    def __init__(self, n: int, pairs: int, rng: np.random.Generator) -> None:
        self.n = n
        self.pairs = pairs
        self._rng = rng
        self._size = -(-4 * n // mmap.PAGESIZE) * mmap.PAGESIZE
        self._fds: list[int] = []
        self._maps: list[mmap.mmap] = []
        self._arrays: list[Array] = []
        self._batch: _Batch | None = None
        for i in range(2 * pairs):
            fd = os.memfd_create(f"prefix_sum-{i}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._fds.append(fd)
            os.ftruncate(fd, self._size)
            self._maps.append(mmap.mmap(fd, self._size))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            self._arrays.append(np.frombuffer(self._maps[-1], np.int32, n))

    def mapping(self) -> dict[str, Any]:
        return {"kind": "memfd", "n": self.n, "bytes": self._size, "pairs": self.pairs}

    def hardware(self) -> dict[str, Any]:
        return {"cores": len(os.sched_getaffinity(0))}

    def descriptors(self) -> list[int]:
        return list(self._fds)

    def fill(self, order: Order, recipes: Sequence[Recipe]) -> float:
        started = time.monotonic()
        garbage = self._rng.integers(-(2**31), 2**31, size=PIECE, dtype=np.int32)
        for (i, o), recipe in zip(order, recipes, strict=True):
            x, y = self._arrays[i], self._arrays[self.pairs + o]
            for at, piece in data.pieces(recipe, self.n):
                x[at : at + len(piece)] = piece
                y[at : at + len(piece)] = garbage[: len(piece)]
        self._batch = _Batch(order, recipes, garbage, stratified(self._rng, self.n), [])
        return time.monotonic() - started

    def look(self) -> float:
        batch = self._filled()
        started = time.monotonic()
        batch.seen = [self._arrays[self.pairs + o].take(batch.positions) for _, o in batch.order]
        return time.monotonic() - started

    def verify(self) -> Verdict:
        batch = self._filled()
        counts = np.zeros(4, np.int64)
        first: FirstWrong | None = None
        for call, ((i, o), recipe) in enumerate(zip(batch.order, batch.recipes, strict=True)):
            seen = batch.seen[call] if batch.seen else self._arrays[self.pairs + o].take(batch.positions)
            x, y = self._arrays[i], self._arrays[self.pairs + o]
            parity = total = 0
            for at, piece in data.pieces(recipe, self.n):
                expected, parity, total = data.prefix_sum(piece, parity, total)
                got = y[at : at + len(piece)]
                bad = np.flatnonzero(got != expected)
                here = (batch.positions >= at) & (batch.positions < at + len(piece))
                counts += [
                    int(np.count_nonzero(wrong))
                    for wrong in (
                        got[bad] != expected[bad],
                        seen[here] != expected[batch.positions[here] - at],
                        x[at : at + len(piece)] != piece,
                        got[bad] == batch.garbage[bad],
                    )
                ]
                if first is None and len(bad):
                    first = FirstWrong(call, at + int(bad[0]), int(expected[bad[0]]), int(got[bad[0]]))
        wrong, spots_wrong, mutated, unwritten = (int(c) for c in counts)
        return Verdict(wrong, spots_wrong, mutated, unwritten, first)

    def close(self) -> None:
        self._arrays.clear()
        self._batch = None
        for shared in self._maps:
            shared.close()
        for fd in self._fds:
            os.close(fd)
        self._maps.clear()
        self._fds.clear()

    def _filled(self) -> _Batch:
        if self._batch is None:
            raise RuntimeError("no batch has been filled")
        return self._batch


def stratified(rng: np.random.Generator, n: int, count: int = SPOTS) -> Array:
    """Up to `count` positions below `n`, one from each equal stretch and in random order, so that no part of the
    array is read last; int64."""
    count = min(count, n)
    edges = np.linspace(0, n, count + 1).astype(np.int64)
    positions = rng.integers(edges[:-1], edges[1:])
    return rng.permutation(positions)
