"""A scoring stand: the service, the pool and real boxes of one run, without an agent. For tests of scoring."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.box.registry import get_kind
from proctor.box.runtime import default_python, runtime_of
from proctor.clock import BudgetClock, Clock, SystemClock
from proctor.data.assets import Assets, prepare_assets
from proctor.events import EventLog
from proctor.scoring.pool import CandidatePool, CandidateSetup
from proctor.scoring.scorelog import ScoreLog
from proctor.scoring.service import ScoringService
from proctor.scoring.snapshot import Snapshots, inodes_under
from proctor.spec import GIB, MIB, AgentSpec, Limits, Protocol, RunSpec, ScoreEntry
from proctor.tasks.base import Task
from tests.support.toy.task import TASK


def spec_of(task: Task, **changes: Any) -> RunSpec:
    """A run specification of a task, with a short budget."""
    values: dict[str, Any] = {
        "run_id": f"{task.id}-mini-starter-r0",
        "experiment": "tests",
        "suite": task.suite,
        "task": task.id,
        "tier": "mini",
        "agent": AgentSpec(name="starter"),
        "budget_s": 30.0,
        "grace_s": 1.0,
        "limits": Limits(memory_bytes=GIB, pids=64, tmp_bytes=64 * MIB),
        **changes,
    }
    return RunSpec(**values)


@dataclass
class Stand:
    """One run's scoring, with its workspace and where it writes."""

    root: Path
    task: Task
    assets: Assets
    workspace: Path
    pool: CandidatePool
    service: ScoringService
    budget: BudgetClock
    events: Path
    spec: RunSpec
    made: list[str] = field(default_factory=list)

    def submit(self, files: dict[str, str | bytes]) -> None:
        """Make these files the whole workspace."""
        shutil.rmtree(self.workspace)
        for name, content in files.items():
            path = self.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def solve(self, source: str) -> ScoreEntry:
        """Score a `solve.py`."""
        self.submit({"solve.py": source})
        return self.service.score("agent")

    def answer(self, slope: float) -> ScoreEntry:
        """Score an `answer.json`."""
        self.submit({"answer.json": f'{{"slope": {slope}}}'})
        return self.service.score("agent")

    @property
    def slope(self) -> float:
        """The right answer, which only the host knows."""
        return float((self.assets.private / "secret.txt").read_text().split("-", 1)[1])


@contextmanager
def stand(
    root: Path, task: Task = TASK, *, box: str = "bwrap", warm: int = 0, clock: Clock | None = None, **changes: Any
) -> Iterator[Stand]:
    """Everything that scores, on an empty workspace; closed and cleaned on leaving."""
    spec = spec_of(task, box=box, **changes)
    clock = clock or SystemClock()
    assets = prepare_assets(task, spec.tier, Protocol(spec.protocol), spec.data_seed)
    python = runtime_of(default_python()).python
    workspace = root / "workspace"
    workspace.mkdir(parents=True)
    setup = CandidateSetup(
        kind=get_kind(box),
        candidate=tuple(task.folder / name for name in task.candidate_files),
        public=assets.public,
        python=python,
        env={"LANG": "C.UTF-8"},
        devices=(),
        hidden=(),
        limits=spec.limits,
        root=root / "candidates",
    )
    budget = BudgetClock(spec.budget_s, clock)
    pool = CandidatePool(setup, warm, quiet=task.policy.freeze_while_scoring)
    inputs = inodes_under(assets.public, assets.private)
    service = ScoringService(
        spec,
        task,
        assets,
        pool,
        Snapshots(workspace, root / "snapshots", task.artefact, inputs),
        ScoreLog(root / "scores.jsonl"),
        budget,
        clock,
        EventLog(root / "events.jsonl", clock, budget),
        lambda: True,
        (),
        python,
    )
    budget.start()
    try:
        yield Stand(root, task, assets, workspace, pool, service, budget, root / "events.jsonl", spec)
    finally:
        budget.stop()
        pool.close()
