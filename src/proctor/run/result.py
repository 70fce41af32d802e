"""From the facts of a run to its `result.json`. Unknown stays None; a default could be a perfect score."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from proctor.clock import BudgetClock
from proctor.data.calibration import calibration_of
from proctor.run.seal import Sealed
from proctor.spec import Ended, Enforced, Finding, Protocol, Result, RunSpec, ScoreEntry
from proctor.stats import normalise, optimism, relative_gain
from proctor.tasks.base import Task


@dataclass
class Facts:
    """What is known of a run so far; filled in as it goes on."""

    started_at: datetime | None = None
    ended: Ended = Ended.INFRASTRUCTURE
    exit_code: int | None = None
    limit: str | None = None
    reason: str = ""
    sealed: Sealed = field(default_factory=lambda: Sealed(None, None))
    calls: int = 0
    gpu_busy_fraction: float | None = None
    findings: list[Finding] = field(default_factory=list)
    enforced: Enforced = field(default_factory=Enforced)
    hardware: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    used_s: float | None = None
    scoring_s: float | None = None
    frozen_s: float | None = None

    def take_clock(self, budget: BudgetClock) -> None:
        """Read the agent's clock, if it ever ran; a scoring that outlives the agent is booked up to the agent's end."""
        if self.started_at is not None:
            self.used_s = round(budget.elapsed(), 3)
            self.scoring_s = round(budget.booked("scoring"), 3)
            self.frozen_s = round(budget.booked("frozen"), 3)


def build_result(spec: RunSpec, task: Task, facts: Facts, entries: Iterable[ScoreEntry]) -> Result:
    """The result of a run."""
    sealed = facts.sealed
    chosen, official = sealed.chosen, sealed.official
    valid = official is not None and official.status == "scored"
    raw = official.score if official is not None and valid else None
    calibration = calibration_of(task, spec.tier, spec.device)
    direction = task.metric.direction
    hidden = Protocol(spec.protocol) is Protocol.SEALED
    visible = chosen.score if chosen else None
    ended = Ended.INFRASTRUCTURE if sealed.ours else facts.ended
    findings = [*facts.findings, *(f for e in entries for f in e.findings)]
    return Result(
        run_id=spec.run_id,
        experiment=spec.experiment,
        suite=spec.suite,
        task=spec.task,
        tier=spec.tier,
        protocol=Protocol(spec.protocol),
        agent=spec.agent.label,
        agent_version=spec.agent.version,
        repeat=spec.repeat,
        seed=spec.seed,
        started_at=facts.started_at,
        ended=ended,
        exit_code=facts.exit_code,
        limit=facts.limit,
        reason=facts.reason or sealed.reason,
        valid=valid,
        metric=task.metric.name,
        raw_score=raw,
        direction=direction,
        aggregation=task.aggregation,
        visible=task.visible,
        start_score=calibration.start,
        reference_score=calibration.reference,
        calibration=calibration.source,
        relative_gain=relative_gain(raw, calibration.start, direction),
        normalised_score=normalise(raw, calibration.start, calibration.reference),
        visible_best=visible,
        sealed_score=raw if hidden else None,
        optimism=optimism(visible, raw, direction) if hidden else None,
        budget_s=spec.budget_s,
        used_s=facts.used_s,
        scoring_s=facts.scoring_s,
        frozen_s=facts.frozen_s,
        gpu_busy_fraction=facts.gpu_busy_fraction,
        score_calls=facts.calls,
        integrity=tuple(dict.fromkeys(findings)),
        box=spec.box,
        enforced=facts.enforced,
        hardware=facts.hardware,
        versions=facts.versions,
        data=facts.data,
        artefact_sha256=chosen.sha256 if chosen else None,
        artefact=chosen.artefact if chosen else None,
    )
