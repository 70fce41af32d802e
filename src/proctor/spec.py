"""The JSON contracts: what a run is told (`RunSpec`) and what it leaves behind (`Result`), with the words they use.

All models are frozen and versioned. `schema` 1 is the present one; a reader refuses a higher one rather than guess.
"""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = 1

GIB = 1024**3
MIB = 1024**2


class Frozen(BaseModel):
    """Base of the contracts: immutable, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Direction(StrEnum):
    """Which way a metric gets better. Declared by a task, never guessed."""

    LOWER = "lower"
    HIGHER = "higher"

    def better(self, a: float | None, b: float | None) -> bool:
        """Whether `a` is strictly better than `b`. NaN and None never win; anything finite beats them."""
        a_ok = a is not None and math.isfinite(a)
        b_ok = b is not None and math.isfinite(b)
        if not a_ok or not b_ok:
            return a_ok and not b_ok
        assert a is not None and b is not None
        return a < b if self is Direction.LOWER else a > b


class Protocol(StrEnum):
    """`sealed`: the agent sees its development split only. `published`: as in the papers."""

    SEALED = "sealed"
    PUBLISHED = "published"


class Aggregation(StrEnum):
    """Which entry of the score log counts."""

    BEST = "best"
    LAST = "last"


class Ended(StrEnum):
    """How a run ended. One fact among several; it says nothing about the score."""

    SUBMITTED = "submitted"
    EXITED = "exited"
    DEADLINE = "deadline"
    KILLED = "killed"
    INFRASTRUCTURE = "infrastructure"


class Metric(Frozen):
    """What a raw score is.

    Attributes:
        name: Short name with its unit, as shown in tables ("MSE", "bits per byte", "ln(ms)").
        direction: Which way is better.
        low: Smallest value that can be real, or None. A score outside [low, high] is invalid.
        high: Largest value that can be real, or None.
    """

    name: str
    direction: Direction
    low: float | None = None
    high: float | None = None

    def problem(self, score: float) -> str | None:
        """Why `score` cannot be a value of this metric, or None if it can."""
        if not math.isfinite(score):
            return f"the score is {score}, not a finite number"
        if self.low is not None and score < self.low:
            return f"the score {score:.6g} is below {self.low:.6g}, the least that {self.name} can be"
        if self.high is not None and score > self.high:
            return f"the score {score:.6g} is above {self.high:.6g}, the most that {self.name} can be"
        return None


class Tier(Frozen):
    """A task at a scale.

    Attributes:
        name: `mini` or `full`.
        budget_s: Default wall budget, seconds.
        gpus: GPUs that the tier needs; 0 means that it runs on the CPU.
    """

    name: str
    budget_s: float
    gpus: int = 0


class Published(Frozen):
    """Figures from the papers, for orientation; None where there is none."""

    start: float | None = None
    reference: float | None = None
    best: float | None = None
    source: str = ""


class Finding(Frozen):
    """One integrity finding, with what it rests on.

    Attributes:
        rule: Stable short name ("causality", "input_mutated", ...).
        severity: `note` (no effect on the score), `warning` (look at it), `void` (the scoring does not count).
        evidence: What was seen, in words and numbers that a reader can check.
    """

    rule: str
    severity: Literal["note", "warning", "void"]
    evidence: str


class AgentSpec(Frozen):
    """Which agent sits the exam.

    Attributes:
        name: Adapter name (`starter`, `tuner`, `command`, ...).
        argument: What follows the colon: a model, a folder or a command line; None if nothing does.
        version: Version of the agent, if it has one.
    """

    name: str
    argument: str | None = None
    version: str | None = None

    @property
    def label(self) -> str:
        return self.name if self.argument is None else f"{self.name}:{self.argument}"


class Limits(Frozen):
    """What a box may use. Bytes, counts, seconds."""

    memory_bytes: int | None = None
    pids: int = 4096
    workspace_bytes: int = 20 * GIB
    tmp_bytes: int = 4 * GIB
    output_bytes: int = 256 * MIB


class RunSpec(Frozen):
    """Everything that a worker needs to know; written as `run.json` before it starts."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    run_id: str
    experiment: str
    suite: str
    task: str
    tier: str
    protocol: Protocol = Protocol.SEALED
    agent: AgentSpec
    repeat: int = 0
    seed: int = 0
    budget_s: float
    grace_s: float = 5.0
    gpus: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    data_seed: str = "release"
    box: str = "bwrap"
    limits: Limits = Limits()
    silent_snapshots: int = 12
    python: str | None = None

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ScoreEntry(Frozen):
    """One line of the score log (`scores.jsonl`).

    Attributes:
        n: Number of the line, from 0.
        origin: Who asked: `agent`, `final` (the harness, for work left unscored at the end), `silent` (a snapshot at
            a fixed fraction of the budget, scored after the end), `seal` (the one hidden score that counts).
        split: `visible` or `hidden`.
        elapsed_s: The agent's clock when the artefact was frozen.
        at: Wall time of the same moment.
        status: `scored`, `invalid` (the submission's fault) or `error` (ours).
        score: The raw score, or None.
        message: What was said to the agent (or would have been).
        artefact: Name of the kept snapshot under `snapshots/`, or None if none could be taken.
        sha256: Content hash of that snapshot.
        scoring_s: Seconds from the freeze to the answer.
        frozen_s: Seconds for which the agent was frozen.
        overhead_s: Seconds of `scoring_s` that were the broker's own, not the candidate's.
        note: What the agent said with the call.
        details: Task-specific figures (spread of timings, checks made).
        findings: Integrity findings of this scoring.
    """

    n: int
    origin: Literal["agent", "final", "silent", "seal"]
    split: Literal["visible", "hidden"]
    elapsed_s: float
    at: datetime
    status: Literal["scored", "invalid", "error"]
    score: float | None
    message: str
    artefact: str | None = None
    sha256: str | None = None
    scoring_s: float = 0.0
    frozen_s: float = 0.0
    overhead_s: float = 0.0
    note: str = ""
    details: dict[str, Any] = {}
    findings: tuple[Finding, ...] = ()


class Tokens(Frozen):
    """Model tokens of a run; None where they are not known."""

    input: int | None = None
    cached_input: int | None = None
    output: int | None = None


class Enforced(Frozen):
    """How each limit was held on this machine, in words; None means that it was not."""

    network: str | None = None
    filesystem: str | None = None
    process_tree: str | None = None
    memory: str | None = None
    pids: str | None = None
    gpu: str | None = None


class Result(Frozen):
    """`result.json`: what a run came to. Unknown is None, never 0."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    run_id: str
    experiment: str
    suite: str
    task: str
    tier: str
    protocol: Protocol
    agent: str
    agent_version: str | None = None
    model: str | None = None
    repeat: int
    seed: int
    started_at: datetime | None
    ended: Ended
    exit_code: int | None = None
    limit: str | None = None
    reason: str = ""
    valid: bool
    metric: str
    raw_score: float | None
    direction: Direction
    aggregation: Aggregation = Aggregation.BEST
    visible: bool = True
    start_score: float | None
    reference_score: float | None
    calibration: str = ""
    relative_gain: float | None
    normalised_score: float | None
    visible_best: float | None
    sealed_score: float | None
    optimism: float | None
    budget_s: float
    used_s: float | None
    scoring_s: float | None
    frozen_s: float | None
    model_s: float | None = None
    rate_limit_s: float | None = None
    gpu_busy_fraction: float | None = None
    score_calls: int
    scripts_launched: int | None = None
    tokens: Tokens = Tokens()
    cost_usd: float | None = None
    integrity: tuple[Finding, ...] = ()
    box: str = "bwrap"
    enforced: Enforced = Enforced()
    hardware: dict[str, Any] = {}
    versions: dict[str, str] = {}
    data: dict[str, Any] = {}
    artefact_sha256: str | None = None
    artefact: str | None = None

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
