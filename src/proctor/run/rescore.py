"""Scoring a kept artefact again, long after its run: the proof that a number is not an accident."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Literal

from proctor.box.registry import get_kind
from proctor.box.runtime import default_python, runtime_of
from proctor.clock import BudgetClock, SystemClock
from proctor.data.assets import Assets, open_assets, prepare_assets
from proctor.errors import InfrastructureError, InvalidSubmission, UsageError
from proctor.events import EventLog
from proctor.gpu import acquire, device_nodes, drain, visible_env
from proctor.run.folder import RunFolder
from proctor.run.workspace import hidden_paths
from proctor.scoring.pool import CandidatePool, CandidateSetup
from proctor.scoring.scorelog import ScoreLog
from proctor.scoring.service import Frozen, ScoringService
from proctor.scoring.snapshot import Snapshots, load_snapshot
from proctor.spec import Protocol, Result, RunSpec
from proctor.tasks.base import Task
from proctor.tasks.registry import get_task

LEASE_TIMEOUT_S = 3600.0


def rescore(folder: RunFolder) -> dict[str, Any]:
    """Score the artefact behind a result again.

    Returns:
        `recorded`, `rescored`, `equal`, and the `tolerance` within which two scorings count as equal, `message`.

    Raises:
        UsageError: The run has no scored artefact, or it is not kept any more, or it was changed.
        InfrastructureError: It could not be scored again through no fault of its own.
    """
    spec = folder.spec()
    result = folder.result()
    if result is None:
        raise UsageError(f"{folder.root} has no result yet", "wait for the run to end")
    if result.raw_score is None or result.artefact is None:
        raise UsageError(f"{folder.root} has no valid score to compare with: {result.reason}")
    task = get_task(spec.task)
    try:
        snapshot = load_snapshot(folder.snapshots / result.artefact)
    except InvalidSubmission as error:
        raise UsageError(str(error), "the run folder must be whole to score it again") from None
    if snapshot.sha256 != result.artefact_sha256:
        raise UsageError(
            f"{snapshot.folder} is not the artefact that was scored: its hash is {snapshot.sha256}, "
            f"and {folder.result_file.name} says {result.artefact_sha256}",
            "the run folder must be whole to score it again",
        )
    assets = _assets(task, spec, result)
    split: Literal["visible", "hidden"] = "visible" if spec.protocol is Protocol.PUBLISHED else "hidden"
    clock = SystemClock()
    python = runtime_of(spec.python or default_python()).python
    lease = acquire(spec.gpus, timeout_s=LEASE_TIMEOUT_S, clock=clock, run_id=f"score {spec.run_id}")
    with lease, tempfile.TemporaryDirectory(prefix="proctor-score-") as scratch:
        root = Path(scratch)
        setup = CandidateSetup(
            kind=get_kind(spec.box),
            candidate=tuple(task.folder / name for name in task.candidate_files),
            public=assets.public,
            python=python,
            env={
                "LANG": "C.UTF-8",
                "PROCTOR_TIER": spec.tier,
                "PROCTOR_DATA": "/data",
                **task.box_env(spec.tier, spec.device),
                **visible_env(lease.gpus),
            },
            devices=tuple(device_nodes(lease.gpus)),
            hidden=hidden_paths(folder),
            limits=spec.limits,
            root=root / "candidates",
        )
        budget = BudgetClock(spec.budget_s, clock)
        events = EventLog(root / "events.jsonl", clock)
        (root / "workspace").mkdir()
        snapshots = Snapshots(root / "workspace", root / "snapshots", task.artefact, frozenset())
        log = ScoreLog(root / "scores.jsonl")
        drained = partial(drain, lease.uuids, 10.0)
        pool = CandidatePool(setup, 0)
        try:
            service = ScoringService(
                spec, task, assets, pool, snapshots, log, budget, clock, events, drained, lease.uuids, python
            )
            entry = service.score_frozen("seal", Frozen(snapshot, 0.0, 0.0), split)
        finally:
            pool.close()
    if entry.status == "error":
        raise InfrastructureError(f"{entry.message}: {entry.details.get('error', 'no reason known')}")
    tolerance = task.rescore_tolerance(spec.tier)
    equal = entry.score is not None and abs(entry.score - result.raw_score) <= tolerance
    return {
        "recorded": result.raw_score,
        "rescored": entry.score,
        "equal": equal,
        "tolerance": tolerance,
        "message": "" if entry.score is not None else entry.message,
    }


def _assets(task: Task, spec: RunSpec, result: Result) -> Assets:
    """The data that the run was scored on: the same digest, or nothing."""
    if spec.data_seed != "fresh":
        prepare_assets(task, spec.tier, Protocol(spec.protocol), spec.data_seed)
    return open_assets(task, str(result.data.get("digest")))
