"""Cutting a text into blocks, normalising logits, and planning the causality audit. Host side, numpy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from proctor.tasks.base import Array
from proctor.tasks.onecard import _common

CHUNK = 64
"""Blocks that are normalised at a time, so that the float64 copies stay small."""


@dataclass(frozen=True)
class Blocks:
    """A text as blocks that do not overlap.

    Attributes:
        inputs: int64 (n, L); the end of the last block is padded with token 0.
        targets: int64 (n, L); -1 where there is nothing to predict.
    """

    inputs: Array
    targets: Array

    @property
    def size(self) -> int:
        return int(self.inputs.shape[1])

    def __len__(self) -> int:
        return len(self.inputs)


def cut(ids: Array, size: int) -> Blocks:
    """Cut a text of token ids (m,) into ceil((m - 1) / size) blocks: each target occurs exactly once."""
    inputs, targets = ids[:-1].astype(np.int64), ids[1:].astype(np.int64)
    missing = -len(inputs) % size
    inputs = np.pad(inputs, (0, missing), constant_values=0)
    targets = np.pad(targets, (0, missing), constant_values=-1)
    return Blocks(inputs.reshape(-1, size), targets.reshape(-1, size))


def log_probabilities(logits: Array) -> Array:
    """Log-softmax of logits (..., V), in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def target_log_probabilities(logits: Array, targets: Array) -> Array:
    """Log-probability of each target, (n, L) in nats; 0 where there is no target."""
    out = np.zeros(targets.shape)
    for rows in _common.batches(np.arange(len(targets)), CHUNK):
        logp = log_probabilities(logits[rows])
        wanted = targets[rows]
        picked = np.take_along_axis(logp, np.maximum(wanted, 0)[..., None], axis=-1)[..., 0]
        out[rows] = np.where(wanted >= 0, picked, 0.0)
    return out


@dataclass(frozen=True)
class Round:
    """One part of the audit: blocks whose text after a cut is another block's.

    Attributes:
        rows: Which blocks (k,).
        cuts: Position of each cut (k,): inputs up to and including it are the block's own.
        inputs: int64 (k, L).
    """

    rows: Array
    cuts: Array
    inputs: Array


def audit_rounds(blocks: Blocks, cuts: int, rng: np.random.Generator) -> Iterator[Round]:
    """Plan an audit of `cuts` random positions that shows nothing before it is due.

    Audited blocks are at most half of all, no two of them neighbours (a block's first token is the last target of
    the one before). Spliced-in ends come from blocks that are not audited. Where a block is audited at several
    positions, these come in rising order, in rounds of their own: what a later round shows of the block's own text
    lies behind positions that have been answered.
    """
    chosen = _apart(len(blocks), min(cuts, max(1, len(blocks) // 2)), rng)
    sources = np.setdiff1d(np.arange(len(blocks)), chosen)
    lengths = (blocks.targets >= 0).sum(axis=1)
    shares = rng.permutation(np.arange(len(chosen)) < cuts % len(chosen)) + cuts // len(chosen)
    plans = [
        np.sort(rng.choice(lengths[row], min(int(share), int(lengths[row])), replace=False))
        for row, share in zip(chosen, shares, strict=True)
    ]
    for i in range(max(len(plan) for plan in plans)):
        due = [(row, plan[i]) for row, plan in zip(chosen, plans, strict=True) if i < len(plan)]
        rows, at = np.array(due, np.int64).T
        inputs = np.stack([_spliced(blocks, int(row), int(cut), sources, rng) for row, cut in due])
        yield Round(rows, at, inputs)


def _apart(count: int, most: int, rng: np.random.Generator) -> Array:
    """Up to `most` random numbers below `count`, no two of them neighbours."""
    kept: set[int] = set()
    for i in rng.permutation(count).tolist():
        if len(kept) == most:
            break
        if i - 1 not in kept and i + 1 not in kept:
            kept.add(i)
    return np.array(sorted(kept), np.int64)


def _spliced(blocks: Blocks, row: int, cut: int, sources: Array, rng: np.random.Generator) -> Array:
    """Block `row` up to position `cut`, then another block's text at the same positions.

    The first token after the cut differs from the true one wherever some source has another there, since a peek that
    sees the same token gives the same output.
    """
    own: Array = blocks.inputs[row].copy()
    if cut + 1 < blocks.size and len(sources):
        other = sources[blocks.inputs[sources, cut + 1] != own[cut + 1]]
        source = rng.choice(other if len(other) else sources)
        own[cut + 1 :] = blocks.inputs[source, cut + 1 :]
    return own
