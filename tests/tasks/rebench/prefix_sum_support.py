"""Scoring a prefix_sum submission without boxes, at a small size, by the same code as in an exam."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from proctor.tasks.base import Evaluation
from proctor.tasks.rebench.prefix_sum.buffers import Buffers
from proctor.tasks.rebench.prefix_sum.cpu import MemfdBuffers
from proctor.tasks.rebench.prefix_sum.session import Plan
from proctor.tasks.rebench.prefix_sum.task import TASK, score
from tests.support.local import local_candidate

CANDIDATE = TASK.folder / "candidate.py"
# Large enough that a call takes milliseconds, small enough for a test.
PLAN = Plan(n=2_000_003, pairs=3, calls=1, calibrations=3, repeats=5, least_repeats=3, time_limit_s=10.0)

START = TASK.start_files("mini")["solution.py"].decode()


def score_files(
    folder: Path, files: Mapping[str, str | bytes], plan: Plan = PLAN, buffers: Buffers | None = None
) -> Evaluation:
    """Score a workspace with `files`; `buffers` other than memfds of this process are closed here too."""
    for name, text in files.items():
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    rng = np.random.default_rng()
    pool = buffers or MemfdBuffers(plan.n, plan.pairs, rng)
    with closing(pool), local_candidate(CANDIDATE, folder) as candidate:
        return score(candidate, pool, plan, rng)


def score_source(folder: Path, source: str, plan: Plan = PLAN) -> Evaluation:
    """Score one solution.py."""
    return score_files(folder, {"solution.py": source}, plan)


def rules(evaluation: Evaluation) -> dict[str, str]:
    """The findings' rules and severities."""
    return {finding.rule: finding.severity for finding in evaluation.findings}
