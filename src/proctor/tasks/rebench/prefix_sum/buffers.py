"""What the scoring procedure needs of the arrays that a submission works on, wherever they lie.

`cpu.MemfdBuffers` keeps them in memory that this process shares with the candidate; `gpu.JudgeBuffers` has them kept on
a GPU by a trusted process of ours (`judge.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from proctor.tasks.rebench.prefix_sum.data import Recipe

Order = Sequence[tuple[int, int]]
"""Which input goes into which output, call by call."""

SPOTS = 2048
"""Positions looked at per output right after the answer, one drawn from each of as many equal stretches: an output
of which more than one part in 2048 (in one piece) is still unwritten cannot pass."""


@dataclass(frozen=True)
class FirstWrong:
    """The first wrong position: number of the call in its batch, index, and the two values."""

    call: int
    index: int
    expected: int
    got: int


@dataclass(frozen=True)
class Verdict:
    """What a batch's outputs came to, compared exactly with answers made afresh from the recipes.

    Attributes:
        wrong: Positions with a wrong value when read in full.
        spots_wrong: Positions with a wrong value when looked at right after the answer.
        mutated: Input positions that no longer hold what was put there.
        unwritten: Wrong positions that still hold the garbage put there before the call.
        first: The first wrong position, or None.
    """

    wrong: int
    spots_wrong: int
    mutated: int
    unwritten: int
    first: FirstWrong | None = None


class Buffers(Protocol):
    """A pool of `pairs` inputs and as many outputs, each `n` int32, shared with a candidate by descriptor."""

    n: int
    pairs: int
    device: Literal["cpu", "cuda"]

    def mapping(self) -> dict[str, Any]:
        """What the candidate's `map` operation must be told."""
        ...

    def hardware(self) -> dict[str, Any]:
        """What the arrays lie on, for the record."""
        ...

    def descriptors(self) -> list[int]:
        """Descriptors of the inputs, then of the outputs."""
        ...

    def fill(self, order: Order, recipes: Sequence[Recipe]) -> float:
        """Put fresh inputs and garbage outputs in place for a batch; `recipes` has one for each call.

        Returns:
            Seconds that it took; on a GPU, where it takes longer if anything else is running there.
        """
        ...

    def look(self) -> float:
        """Read the batch's outputs at random positions, to be judged by `verify`; returns the seconds it took."""
        ...

    def verify(self) -> Verdict:
        """Compare the batch's outputs, in full, and its inputs with what they must be. May be called again."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...
