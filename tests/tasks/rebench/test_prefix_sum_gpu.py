"""The full tier on a real GPU: references, a late writer, and shared memory by descriptor. Skipped without one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from proctor.tasks.base import Evaluation, with_constants
from proctor.tasks.rebench.prefix_sum.gpu import JudgeBuffers
from proctor.tasks.rebench.prefix_sum.session import Plan
from proctor.tasks.rebench.prefix_sum.task import TASK, score
from tests.support.local import local_candidate
from tests.tasks.rebench.prefix_sum_support import CANDIDATE, START, rules

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a CUDA build of torch"),
]

PLAN = Plan(n=20_000_001, pairs=16, calls=None, calibrations=3, repeats=3, least_repeats=3, load_timeout_s=200.0)


@pytest.fixture
def judged() -> Iterator[JudgeBuffers]:
    with closing(JudgeBuffers(PLAN.n, PLAN.pairs, np.random.default_rng(), sys.executable)) as buffers:
        yield buffers


def evaluate(folder: Path, files: dict[str, bytes], judged: JudgeBuffers) -> Evaluation:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with local_candidate(CANDIDATE, folder, dict(os.environ)) as candidate:
        return score(candidate, judged, PLAN, np.random.default_rng())


def test_start_is_scored_without_findings(tmp_path: Path, judged: JudgeBuffers) -> None:
    evaluation = evaluate(tmp_path, {"solution.py": START.encode()}, judged)
    assert evaluation.score is not None and evaluation.findings == ()


@pytest.mark.parametrize("implementation", ["cuda_scan", "triton_scan"])
def test_references_are_right_and_faster_than_half_the_start(
    tmp_path: Path, judged: JudgeBuffers, implementation: str
) -> None:
    files = dict(TASK.reference_files("full"))
    text = with_constants(files["solution.py"].decode(), {"IMPLEMENTATION": implementation})
    evaluation = evaluate(tmp_path, {**files, "solution.py": text.encode()}, judged)
    assert evaluation.score is not None and evaluation.findings == ()
    assert evaluation.details["median_ms"] < 4 * evaluation.details["copy_ms"]


def test_unsynchronised_work_is_void(tmp_path: Path, judged: JudgeBuffers) -> None:
    source = START + '\nimport candidate\ncandidate.SUBMISSION["synchronise"] = lambda: None\n'
    assert rules(evaluate(tmp_path, {"solution.py": source.encode()}, judged))["late_writer"] == "void"
