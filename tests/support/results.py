"""Made-up experiment folders for tests of statistics, reports and views: realistic shapes, no agent, no clock.

`an_experiment` has three tasks, two agents and two repeats of each, and among the twelve runs one of every outcome
but `stopped`; the second agent's name, notes and outputs try to inject markup.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from proctor.jsonio import append_line, write_json
from proctor.spec import (
    AgentSpec,
    Direction,
    Ended,
    Enforced,
    Finding,
    Protocol,
    Result,
    RunSpec,
    ScoreEntry,
    Tokens,
)
from proctor.stats import normalise, optimism, relative_gain

BEGAN = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
INJECTION = '<script>window.pwned=1</script><img src="http://outside.invalid/x" onerror="window.pwned=2">'
TUNER = AgentSpec(name="tuner", version="0.1.0")
RIVAL = AgentSpec(name="command", argument=f"Ångström-агент 🦊 {INJECTION} | *star* [red]x[/red] </svg>", version="2")

HARDWARE = {
    "cpu": "AMD EPYC 9654 96-Core Processor",
    "cores": 16,
    "memory_bytes": 137438953472,
    "kernel": "Linux 6.8.0",
    "python": "3.11.7",
    "gpus": [{"name": "NVIDIA H200", "memory_bytes": 150754820096}],
    "driver": "580.65.06",
}
ENFORCED = Enforced(
    network="own network namespace, no route out",
    filesystem="bind mounts, workspace only",
    process_tree="pid namespace",
    memory=None,
    pids="cgroup pids.max 4096",
    gpu="lease by UUID, foreign processes refused",
)


@dataclass(frozen=True)
class Exam:
    """A task of the made-up experiment: what it measures, between which ends, and how noisy it is."""

    suite: str
    task: str
    metric: str
    direction: Direction
    start: float
    reference: float
    budget_s: float
    noise: float


EXAMS = (
    Exam("onecard", "language_modeling", "bits per byte", Direction.LOWER, 3.438, 2.05, 2400, 0.03),
    Exam("onecard", "image_classification", "accuracy", Direction.HIGHER, 0.343, 0.70, 7200, 0.01),
    Exam("rebench", "prefix_sum", "ln(ms)", Direction.LOWER, 0.5732, -0.92, 1800, 0.02),
)


def a_spec(**changes: Any) -> RunSpec:
    """A run specification; `changes` replaces fields."""
    facts: dict[str, Any] = {
        "run_id": "language_modeling-tuner-0",
        "experiment": "unit",
        "suite": "onecard",
        "task": "language_modeling",
        "tier": "full",
        "agent": TUNER,
        "budget_s": 2400.0,
        "gpus": 1,
        "device": "cuda",
    }
    return RunSpec(**(facts | changes))


def a_result(**changes: Any) -> Result:
    """The result of a good run, or what `changes` makes of it."""
    facts: dict[str, Any] = {
        "run_id": "language_modeling-tuner-0",
        "experiment": "unit",
        "suite": "onecard",
        "task": "language_modeling",
        "tier": "full",
        "protocol": Protocol.SEALED,
        "agent": TUNER.label,
        "agent_version": TUNER.version,
        "repeat": 0,
        "seed": 0,
        "started_at": BEGAN,
        "ended": Ended.SUBMITTED,
        "exit_code": 0,
        "valid": True,
        "metric": "bits per byte",
        "raw_score": 2.5,
        "direction": Direction.LOWER,
        "start_score": 3.438,
        "reference_score": 2.05,
        "calibration": "shipped (H200, 2026-11-30, 5 runs)",
        "relative_gain": None,
        "normalised_score": None,
        "visible_best": None,
        "sealed_score": None,
        "optimism": None,
        "budget_s": 2400.0,
        "used_s": 2000.0,
        "scoring_s": 40.0,
        "frozen_s": 2.0,
        "score_calls": 5,
        "enforced": ENFORCED,
        "hardware": HARDWARE,
        "versions": {"proctor": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
    }
    return Result(**(facts | changes))


def write_experiment(
    root: Path, name: str, runs: Sequence[tuple[RunSpec, Result | None, Sequence[ScoreEntry]]]
) -> Path:
    """Write an experiment folder `root/name` with these runs; returns it."""
    folder = root / name
    (folder / "runs").mkdir(parents=True)
    write_json(folder / "experiment.json", {"experiment": name, "runs": [spec.run_id for spec, _, _ in runs]})
    for spec, result, scores in runs:
        place = folder / "runs" / spec.run_id
        place.mkdir()
        write_json(place / "run.json", spec)
        for score in scores:
            append_line(place / "scores.jsonl", score, sync=False)
        if result is not None:
            write_json(place / "result.json", result)
    return folder


@dataclass
class Log:
    """A score log in the making."""

    began: datetime
    entries: list[ScoreEntry] = field(default_factory=list)

    def add(self, elapsed_s: float, score: float | None, **changes: Any) -> None:
        digest = hashlib.sha256(f"{len(self.entries)} {score}".encode()).hexdigest()
        facts: dict[str, Any] = {
            "n": len(self.entries),
            "origin": "agent",
            "split": "visible",
            "elapsed_s": round(elapsed_s, 1),
            "at": self.began + timedelta(seconds=elapsed_s),
            "status": "scored" if score is not None else "invalid",
            "score": score,
            "message": "" if score is not None else "checkpoints/best.pt: missing key 'blocks.0.attn.weight'",
            "artefact": f"{len(self.entries):04d}",
            "sha256": digest,
            "scoring_s": 2.5,
            "frozen_s": 0.1,
        }
        self.entries.append(ScoreEntry(**(facts | changes)))


def score_log(exam: Exam, seed: str, began: datetime, *, calls: int = 14, skill: float = 0.8) -> list[ScoreEntry]:
    """A log in which an agent climbs from the start towards the reference, with mishaps, and is sealed at the end."""
    rng = random.Random(seed)
    log = Log(began)
    span = exam.reference - exam.start

    def at(t: float) -> float:
        return exam.start + span * skill * (1 - math.exp(-3.5 * t / exam.budget_s))

    times = sorted(rng.uniform(0.03, 0.97) * exam.budget_s for _ in range(calls))
    for i, t in enumerate(times):
        if i in (0, calls // 2):
            log.add(t, None, note="first try" if i == 0 else "")
        else:
            log.add(t, round(at(t) + rng.gauss(0, 2.5) * exam.noise * abs(span), 4), note=f"variant {i}")
    scored = [e for e in log.entries if e.score is not None]
    best = max(scored, key=lambda e: ((e.score or 0.0) - exam.start) / span)
    assert best.score is not None
    for part in range(1, 13):
        t = exam.budget_s * part / 13
        hidden = at(t) - 2 * exam.noise * span + rng.gauss(0, 0.3) * exam.noise * abs(span)
        log.add(t, round(hidden, 4), origin="silent", split="hidden")
    sealed = round(best.score - 1.5 * exam.noise * span, 4)
    kept = {"artefact": best.artefact, "sha256": best.sha256}
    log.add(best.elapsed_s, sealed, origin="seal", split="hidden", **kept)
    return log.entries


def _finished(exam: Exam, spec: RunSpec, scores: Sequence[ScoreEntry], **changes: Any) -> Result:
    visible = [e.score for e in scores if e.origin == "agent" and e.score is not None]
    sealed = next((e.score for e in scores if e.origin == "seal"), None)
    lower = exam.direction is Direction.LOWER
    best = (min(visible) if lower else max(visible)) if visible else None
    facts: dict[str, Any] = {
        "run_id": spec.run_id,
        "experiment": spec.experiment,
        "suite": spec.suite,
        "task": spec.task,
        "agent": spec.agent.label,
        "agent_version": spec.agent.version,
        "repeat": spec.repeat,
        "seed": spec.seed,
        "started_at": scores[0].at - timedelta(seconds=scores[0].elapsed_s) if scores else BEGAN,
        "ended": Ended.DEADLINE if spec.repeat else Ended.SUBMITTED,
        "limit": "budget" if spec.repeat else None,
        "exit_code": None if spec.repeat else 0,
        "metric": exam.metric,
        "raw_score": sealed,
        "direction": exam.direction,
        "start_score": exam.start,
        "reference_score": exam.reference,
        "relative_gain": relative_gain(sealed, exam.start, exam.direction),
        "normalised_score": normalise(sealed, exam.start, exam.reference),
        "visible_best": best,
        "sealed_score": sealed,
        "optimism": optimism(best, sealed, exam.direction),
        "budget_s": exam.budget_s,
        "used_s": exam.budget_s * (1 if spec.repeat else 0.985),
        "scoring_s": 2.5 * len(visible),
        "frozen_s": 0.1 * len(visible),
        "model_s": 312.5,
        "gpu_busy_fraction": 0.61,
        "score_calls": sum(e.origin == "agent" for e in scores),
        "scripts_launched": 9,
        "tokens": Tokens(input=1_204_331, cached_input=911_002, output=48_120),
        "cost_usd": 3.42,
        "box": spec.box,
        "enforced": Enforced() if spec.box == "none" else ENFORCED,
        "data": {"seed": spec.data_seed, "digest": "sha256:5f1c"},
        "artefact_sha256": scores[-1].sha256 if scores else None,
    }
    return a_result(**(facts | changes))


WARNING = Finding(rule="evaluator_read", severity="warning", evidence=f"the agent's log quotes score.py: {INJECTION}")
VOID = Finding(
    rule="late_writer", severity="void", evidence="3 of 16 outputs changed after the answer; positions 12, 77 and 1024"
)


def an_experiment(root: Path, name: str = "autumn", rival: AgentSpec = RIVAL) -> Path:
    """Twelve runs: 3 tasks x 2 agents x 2 repeats, with one of nearly everything that can happen to a run."""
    runs: list[tuple[RunSpec, Result | None, Sequence[ScoreEntry]]] = []
    for exam in EXAMS:
        for agent in (TUNER, rival):
            for repeat in (0, 1):
                kind = (exam.task, "tuner" if agent is TUNER else "rival", repeat)
                spec = a_spec(
                    run_id=f"{exam.task}-{kind[1]}-{repeat}",
                    experiment=name,
                    suite=exam.suite,
                    task=exam.task,
                    agent=agent,
                    repeat=repeat,
                    seed=repeat,
                    budget_s=exam.budget_s,
                    box="none" if kind == ("prefix_sum", "rival", 1) else "bwrap",
                )
                began = BEGAN + timedelta(hours=len(runs))
                skill = (0.82 if agent is TUNER else 1.04) - 0.06 * repeat
                scores = score_log(exam, spec.run_id, began, calls=12 if agent is TUNER else 22, skill=skill)
                runs.append(_as_happened(kind, exam, spec, scores))
    return write_experiment(root, name, runs)


def _as_happened(
    kind: tuple[str, str, int], exam: Exam, spec: RunSpec, scores: list[ScoreEntry]
) -> tuple[RunSpec, Result | None, Sequence[ScoreEntry]]:
    """The run of this kind with its particular fate."""
    nothing: dict[str, Any] = {
        "valid": False,
        "raw_score": None,
        "sealed_score": None,
        "optimism": None,
        "relative_gain": None,
        "normalised_score": None,
        "artefact_sha256": None,
    }
    if kind == ("language_modeling", "rival", 1):
        log = Log(scores[0].at)
        for i in range(6):
            log.add(200.0 * (i + 1), None, message=f"{INJECTION} _orig_mod. prefix: the keys do not match")
        reason = "no checkpoint could be loaded: the keys carry the prefix _orig_mod."
        return spec, _finished(exam, spec, log.entries, **nothing, visible_best=None, reason=reason), log.entries
    if kind == ("image_classification", "tuner", 1):
        kept = [e for e in scores if e.origin == "agent"][:4]
        reason = "the GPU was lost during the run (NVML: unknown error)"
        return spec, _finished(exam, spec, kept, **nothing, ended=Ended.INFRASTRUCTURE, reason=reason), kept
    if kind == ("image_classification", "rival", 1):
        return spec, None, [e for e in scores if e.origin == "agent"][:5]
    if kind == ("prefix_sum", "rival", 0):
        voided = {"findings": (VOID,), "status": "invalid", "score": None, "message": "the scoring does not count"}
        marked = [e.model_copy(update=voided) if e.origin == "seal" else e for e in scores]
        reason = "the sealed scoring was voided: late_writer"
        return spec, _finished(exam, spec, marked, **nothing, integrity=(VOID,), reason=reason), marked
    if kind == ("prefix_sum", "rival", 1):
        return spec, _finished(exam, spec, scores, integrity=(WARNING,)), scores
    return spec, _finished(exam, spec, scores), scores
