"""Inputs and right answers of prefix_sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.spec import Protocol
from proctor.tasks.base import PrepareRequest
from proctor.tasks.rebench.prefix_sum import data
from proctor.tasks.rebench.prefix_sum.data import PIECE, Recipe
from proctor.tasks.rebench.prefix_sum.task import TASK


def by_definition(x: list[int]) -> list[int]:
    """The function as the instructions define it, element by element."""
    out, positives, total = [], 0, 0
    for value in x:
        total += value * (positives % 2)
        positives += value > 0
        out.append(total)
    return out


def test_the_example_of_the_instructions_is_right() -> None:
    x = np.array([3, -1, 4, 2, -5, 7], np.int32)
    assert data.prefix_sum(x)[0].tolist() == [0, -1, 3, 3, -2, 5]


@given(st.lists(st.integers(-10, 9), max_size=60), st.integers(0, 60))
def test_pieces_give_what_the_definition_gives(values: list[int], cut: int) -> None:
    x = np.array(values, np.int8)
    first, parity, total = data.prefix_sum(x[:cut])
    second, _, _ = data.prefix_sum(x[cut:], parity, total)
    assert [*first.tolist(), *second.tolist()] == by_definition(values)


def test_sums_wrap_around() -> None:
    x = np.array([1, 2**31 - 1, -1, 1, 5, 2**31 - 1], np.int32)
    expected = np.array(by_definition(x.tolist()), np.int64).astype(np.int32)
    np.testing.assert_array_equal(data.prefix_sum(x)[0], expected)
    later = data.prefix_sum(np.array([2**31 - 1], np.int32), parity=1, total=2)[0]
    assert later.tolist() == [-(2**31) + 1]


def test_inputs_are_the_same_for_a_recipe_and_differ_between_recipes() -> None:
    def whole(recipe: Recipe) -> list[int]:
        return [int(v) for _, piece in data.pieces(recipe, PIECE + 100) for v in piece]

    first = whole(Recipe(1))
    assert len(first) == PIECE + 100 and set(first) == set(range(-10, 10))
    assert whole(Recipe(1)) == first and whole(Recipe(2)) != first
    assert min(whole(Recipe(1, low=1))) == 1


def test_hard_cases_keep_to_the_contract() -> None:
    cases = data.hard_cases(np.random.default_rng(0))
    assert all(case.dtype == np.int32 and case.min() >= -10 and case.max() <= 9 for case in cases)
    assert min(len(case) for case in cases) == 1
    assert any((case > 0).all() for case in cases) and any((case < 0).all() for case in cases)


def test_prepare_writes_a_right_example_and_is_deterministic(tmp_path: Path) -> None:
    written = []
    for name in ("a", "b"):
        public, private = tmp_path / name / "public", tmp_path / name / "private"
        public.mkdir(parents=True)
        private.mkdir()
        TASK.prepare(PrepareRequest("mini", Protocol.SEALED, 5, None, public, private))
        written.append({path.name: path.read_bytes() for path in public.iterdir()})
        assert not list(private.iterdir())
    assert written[0] == written[1]
    x, y = np.load(public / "example_x.npy"), np.load(public / "example_y.npy")
    assert y.tolist() == by_definition(x.tolist())


@pytest.mark.parametrize("tier", ["mini", "full"])
def test_instructions_are_complete(tier: str) -> None:
    text = TASK.program(tier, Protocol.SEALED, 120.0)
    assert "{" not in text
    assert ("on one GPU" in text) == (tier == "full")
    assert set(TASK.start_files(tier)) == {"solution.py"}
    assert "solution.py" in TASK.reference_files(tier)
