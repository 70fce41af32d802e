"""The arrays lent to a candidate, in this process and in a judge process: fill, look, verify."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from proctor.errors import InfrastructureError
from proctor.tasks.base import Array
from proctor.tasks.rebench.prefix_sum import data
from proctor.tasks.rebench.prefix_sum.buffers import SPOTS, Buffers
from proctor.tasks.rebench.prefix_sum.cpu import MemfdBuffers, stratified
from proctor.tasks.rebench.prefix_sum.data import PIECE, Recipe
from proctor.tasks.rebench.prefix_sum.gpu import JudgeBuffers

N = PIECE + 12_345
PAIRS = 3
ORDER = [(1, 2), (0, 0)]
RECIPES = [Recipe(11), Recipe(12, low=1)]


@pytest.fixture(params=["memfd", "judge"])
def buffers(request: pytest.FixtureRequest) -> Iterator[Buffers]:
    rng = np.random.default_rng()
    made: Buffers
    if request.param == "memfd":
        made = MemfdBuffers(N, PAIRS, rng)
    else:
        made = JudgeBuffers(N, PAIRS, rng, sys.executable, device="cpu")
    yield made
    made.close()


@pytest.fixture
def mapped(buffers: Buffers) -> list[Array]:
    """The arrays as a candidate has them: inputs, then outputs."""
    described = buffers.mapping()
    assert described["n"] == N and described["pairs"] == PAIRS and described["kind"] == "memfd"
    return [np.frombuffer(mmap.mmap(fd, described["bytes"]), np.int32, N) for fd in buffers.descriptors()]


def solve(mapped: list[Array]) -> None:
    for i, o in ORDER:
        mapped[PAIRS + o][:] = data.prefix_sum(mapped[i])[0]


def test_right_outputs_pass(buffers: Buffers, mapped: list[Array]) -> None:
    for _ in range(2):
        buffers.fill(ORDER, RECIPES)
        solve(mapped)
        buffers.look()
        verdict = buffers.verify()
        assert (verdict.wrong, verdict.spots_wrong, verdict.mutated, verdict.first) == (0, 0, 0, None)


def test_inputs_keep_to_their_recipes(buffers: Buffers, mapped: list[Array]) -> None:
    buffers.fill(ORDER, RECIPES)
    assert set(np.unique(mapped[1])) == set(range(-10, 10))
    assert set(np.unique(mapped[0])) == set(range(1, 10))
    before = mapped[1].copy()
    buffers.fill(ORDER, [Recipe(13), Recipe(14)])
    assert np.mean(before == mapped[1]) < 0.1


def test_one_wrong_value_is_found_and_told(buffers: Buffers, mapped: list[Array]) -> None:
    buffers.fill(ORDER, RECIPES)
    solve(mapped)
    right = int(mapped[PAIRS][N - 2])
    mapped[PAIRS][N - 2] += 3
    buffers.look()
    verdict = buffers.verify()
    assert verdict.wrong == 1 and verdict.unwritten == 0
    assert verdict.first is not None
    assert (verdict.first.call, verdict.first.index) == (1, N - 2)
    assert (verdict.first.expected, verdict.first.got) == (right, right + 3)


def test_unwritten_outputs_are_told_from_wrong_ones(buffers: Buffers, mapped: list[Array]) -> None:
    buffers.fill(ORDER, RECIPES)
    solve(mapped)
    buffers.fill(ORDER, RECIPES)
    mapped[PAIRS + 2][: N // 2] = 123_456_789
    buffers.look()
    verdict = buffers.verify()
    assert verdict.wrong == 2 * N
    assert verdict.unwritten == 2 * N - N // 2
    assert verdict.spots_wrong == 2 * SPOTS


def test_late_outputs_are_wrong_when_looked_at_and_right_in_full(buffers: Buffers, mapped: list[Array]) -> None:
    buffers.fill(ORDER, RECIPES)
    solve(mapped)
    part = slice(N // 2, N // 2 + N // 1000)
    finished = mapped[PAIRS][part].copy()
    mapped[PAIRS][part] = 7 * 10**8
    buffers.look()
    mapped[PAIRS][part] = finished
    verdict = buffers.verify()
    assert verdict.wrong == 0
    assert 1 <= verdict.spots_wrong <= 4


def test_changed_inputs_are_found(buffers: Buffers, mapped: list[Array]) -> None:
    buffers.fill(ORDER, RECIPES)
    solve(mapped)
    mapped[0][17] += 1
    buffers.look()
    verdict = buffers.verify()
    assert verdict.mutated == 1 and verdict.wrong == 0


def test_every_stretch_is_looked_at_in_random_order() -> None:
    rng = np.random.default_rng(1)
    positions = stratified(rng, 1_000_000)
    assert len(positions) == SPOTS
    width = 1_000_000 / SPOTS
    assert sorted((np.sort(positions) / width).astype(int).tolist()) == pytest.approx(range(SPOTS), abs=1)
    assert np.any(np.diff(positions) < 0)
    assert sorted(stratified(rng, 3).tolist()) == [0, 1, 2]


def test_closing_gives_the_descriptors_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    MemfdBuffers(1000, 2, np.random.default_rng()).close()
    JudgeBuffers(1000, 2, np.random.default_rng(), sys.executable, device="cpu").close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_judge_that_fails_is_our_fault() -> None:
    made = JudgeBuffers(1000, 2, np.random.default_rng(), sys.executable, device="cpu")
    with pytest.raises(InfrastructureError, match="no batch has been filled"):
        made.verify()
    made.close()


def test_a_judge_that_cannot_start_says_why() -> None:
    with pytest.raises(InfrastructureError, match="ended during allocate"):
        JudgeBuffers(1000, 2, np.random.default_rng(), "/bin/false", device="cpu")
