"""What a task is: one folder that declares itself, builds its data, and scores a frozen submission.

A task folder holds

    task.py       the `Task` subclass and its one instance, `TASK` (host side, trusted; never imports torch)
    data.py       data generator, or the reader of the published files (host side)
    program.md    the instructions that the agent gets
    start/        the starting solution, copied to /workspace
    reference/    our strong solution, never visible to an agent
    candidate.py  the operations that run in the candidate's box, beside the submission (untrusted once it loads it)

and is found through the entry-point group `proctor.tasks`.
"""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from proctor.spec import MIB, Aggregation, Finding, Metric, Published, Tier
from proctor.spec import Protocol as ExamProtocol

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ArraySpec:
    """What an array that comes out of a candidate must be; anything else is an invalid submission.

    `shape` is exact. `finite` refuses NaN and infinities in floating arrays.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    finite: bool = True

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Reply:
    """What an operation in a candidate's box gave back: plain data, already checked against the expectation."""

    meta: dict[str, Any]
    arrays: dict[str, Array]
    seconds: float
    """Host clock from the last byte sent to the first byte received."""


class Candidate(Protocol):
    """A frozen copy of a submission, running in a fresh box. Every failure raises `InvalidSubmission`."""

    def call(
        self,
        op: str,
        arrays: Mapping[str, Array] | None = None,
        meta: Mapping[str, Any] | None = None,
        *,
        expect: Mapping[str, ArraySpec] | None = None,
        fds: Sequence[int] = (),
        timeout_s: float = 60.0,
    ) -> Reply:
        """Run one operation of the task's candidate.py.

        Args:
            op: Name in the `OPS` table of candidate.py.
            arrays: Arrays to send (copied; C order).
            meta: Plain JSON data to send.
            expect: The arrays that must come back, exactly these.
            fds: File descriptors to pass along (shared memory).
            timeout_s: Host-side limit for the whole exchange.
        """
        ...

    def freeze(self) -> None:
        """Stop every process of the candidate's box; returns when they are stopped."""
        ...

    def thaw(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class EvaluationContext:
    """What a task's `evaluate` has in hand. Nothing in it is visible from any box.

    Attributes:
        split: `visible` (what the agent may learn) or `hidden` (scored once, at the end).
        protocol: `sealed` or `published`.
        tier: The tier's name.
        device: `cpu` or `cuda`.
        public: Host path of the public assets (the box's /data).
        private: Host path of the private assets.
        artefact: Host path of the frozen snapshot (the candidate's /workspace).
        target: What of the snapshot is to be scored ("checkpoints/best.pt", "solution.py"), relative to it.
        open: Starts a fresh candidate on this snapshot; use as a context manager. Each call is a new box with no
            memory of an earlier one.
        rng: Fresh entropy, never a seed that the candidate could know.
        gpu_uuids: UUIDs of the leased GPUs.
        python: Interpreter of the runtime in which task code may run (it has torch, where installed).
    """

    split: Literal["visible", "hidden"]
    protocol: ExamProtocol
    tier: str
    device: Literal["cpu", "cuda"]
    public: Path
    private: Path
    artefact: Path
    target: str
    open: Callable[[], AbstractContextManager[Candidate]]
    rng: np.random.Generator
    gpu_uuids: tuple[str, ...] = ()
    python: str = ""
    budget_s: float = math.inf
    """The run's budget: what a submission may compute while it is scored is bounded by it."""
    audit: bool = True
    """False for the curve of silent snapshots: a pass that only looks for cheating may be left out."""


@dataclass(frozen=True)
class Evaluation:
    """What a scoring came to. `score` is None only if a `void` finding says why."""

    score: float | None
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class PrepareRequest:
    """What `prepare` is to build.

    Attributes:
        tier, protocol: As in the run.
        seed: Host-side seed of generated data (mini); never shown to a box.
        raw: Folder with the fetched published files (full), already checked.
        public: Empty folder to fill; becomes the box's /data.
        private: Empty folder to fill; stays on the host.
    """

    tier: str
    protocol: ExamProtocol
    seed: int
    raw: Path | None
    public: Path
    private: Path


@dataclass(frozen=True)
class RemoteFile:
    """A published file: where it comes from and how we know that it is the right one.

    `path` is its place under the task's raw folder; `urls` are tried in order.
    """

    path: str
    urls: tuple[str, ...]
    size: int
    sha256: str
    licence: str


@dataclass(frozen=True)
class ArtefactRule:
    """Which files of the workspace make up a submission (globs relative to /workspace, `**` for any depth).

    Files larger than `max_file_bytes` that are not the target are left out; the target itself may be as large as
    `max_total_bytes`. `targets` lists what can be scored, newest first if several match.
    """

    targets: tuple[str, ...]
    include: tuple[str, ...] = ("**/*",)
    exclude: tuple[str, ...] = ("checkpoints/**", "**/__pycache__/**", "**/.git/**", "**/.cache/**")
    max_file_bytes: int = 8 * MIB
    max_total_bytes: int = 4096 * MIB
    missing: str = ""
    """What to tell an agent that has nothing to score yet."""


@dataclass(frozen=True)
class ScorePolicy:
    """How often and how the agent may ask for a score.

    Attributes:
        max_calls: Cap on the agent's calls in a run, or None.
        cooldown_s: Least seconds between two calls.
        freeze_while_scoring: Keep the agent frozen until the answer (timing tasks).
        timeout_s: Limit of one scoring, box start included.
        warm: How many candidate boxes to keep ready (as many as one evaluation opens).
    """

    max_calls: int | None = None
    cooldown_s: float = 0.0
    freeze_while_scoring: bool = False
    timeout_s: float = 600.0
    warm: int = 1


@dataclass(frozen=True)
class Calibration:
    """Raw scores of the starting and the reference solution, as measured; `source` says where and when."""

    start: float | None
    reference: float | None
    start_std: float | None = None
    reference_std: float | None = None
    source: str = ""


class Task(ABC):
    """One exam. Subclass it, set the class attributes, and put an instance named `TASK` into task.py."""

    id: ClassVar[str]
    suite: ClassVar[str]
    title: ClassVar[str]
    metric: ClassVar[Metric]
    aggregation: ClassVar[Aggregation] = Aggregation.BEST
    visible: ClassVar[bool] = True
    """Whether the agent sees its scores (`score` answers `hidden` otherwise)."""
    tiers: ClassVar[Mapping[str, Tier]]
    published: ClassVar[Published] = Published()
    artefact: ClassVar[ArtefactRule]
    policy: ClassVar[ScorePolicy] = ScorePolicy()
    locked: ClassVar[tuple[str, ...]] = ()
    """Starting files that the agent can read and not change."""
    candidate_files: ClassVar[tuple[str, ...]] = ("candidate.py",)
    """Files of the task's folder that the candidate's box shows; the first defines the operations."""
    start_command: ClassVar[tuple[str, ...] | None] = None
    """How the starting solution is run in /workspace; None if there is nothing to run."""
    reference_command: ClassVar[tuple[str, ...] | None] = None
    start_constants: ClassVar[Mapping[str, Mapping[str, Mapping[str, object]]]] = {}
    """Per tier and starting file, the top-level constants that differ from what the file says: a tier is the same
    script at another scale, so that there is one script to read."""
    reference_constants: ClassVar[Mapping[str, Mapping[str, Mapping[str, object]]]] = {}
    files: ClassVar[tuple[RemoteFile, ...]] = ()
    """Published files of the full tier."""
    calibrations: ClassVar[Mapping[str, Calibration]] = {}
    """Shipped calibration per tier."""

    @property
    def folder(self) -> Path:
        """The task's own folder."""
        return Path(inspect.getfile(type(self))).resolve().parent

    @property
    def full_id(self) -> str:
        return f"{self.suite}/{self.id}"

    def start_files(self, tier: str) -> dict[str, bytes]:
        """The starting solution by path in /workspace: `start/`, with the tier's constants put in."""
        return self._solution("start", self.start_constants.get(tier, {}))

    def reference_files(self, tier: str) -> dict[str, bytes]:
        """The reference solution by path in /workspace: `reference/`, with the tier's constants put in."""
        return self._solution("reference", self.reference_constants.get(tier, {}))

    def _solution(self, name: str, constants: Mapping[str, Mapping[str, object]]) -> dict[str, bytes]:
        files = {path: place.read_bytes() for path, place in files_under(self.folder / name).items()}
        for path, values in constants.items():
            files[path] = with_constants(files[path].decode(), values).encode()
        return files

    def program(self, tier: str, protocol: ExamProtocol, budget_s: float) -> str:
        """The instructions: program.md with `{budget}`, `{tier}`, `{protocol}` and the task's own fields filled in."""
        text = (self.folder / "program.md").read_text(encoding="utf-8")
        for name, value in self.program_fields(tier, protocol, budget_s).items():
            text = text.replace("{" + name + "}", value)
        return text

    def program_fields(self, tier: str, protocol: ExamProtocol, budget_s: float) -> dict[str, str]:
        """What `program` replaces; extend it in a task."""
        return {"budget": f"{budget_s / 60:g} minutes", "tier": tier, "protocol": protocol.value}

    def box_env(self, tier: str, device: str) -> dict[str, str]:
        """Further environment of the agent's and the candidate's boxes.

        OpenMP threads that spin while they wait take the cores from whoever else has work: two starting solutions of
        language_modeling at a time on 2 cores needed more than 60 s each, and 14 s where they wait asleep.
        """
        return {"OMP_WAIT_POLICY": "PASSIVE"} if device == "cpu" else {}

    def rescore_tolerance(self, tier: str) -> float:
        """By how much two scorings of one artefact may differ and still agree (timing tasks: more)."""
        return 1e-6

    def data_version(self) -> str:
        """Changes whenever `prepare` would build other files; part of the asset cache's key."""
        return "1"

    @abstractmethod
    def prepare(self, request: PrepareRequest) -> None:
        """Fill `request.public` and `request.private`. Deterministic in its request."""

    @abstractmethod
    def evaluate(self, context: EvaluationContext) -> Evaluation:
        """Score one frozen submission.

        Raises:
            InvalidSubmission: The submission cannot be scored; the message tells the agent what to mend.
        """


def with_constants(source: str, constants: Mapping[str, object]) -> str:
    """Python source with the values of top-level `NAME = value` lines replaced; trailing comments are kept.

    Raises:
        KeyError: A constant has no such line, so that a renamed constant cannot be missed.
    """
    for name, value in constants.items():
        line = re.compile(rf"^({re.escape(name)}\s*=\s*)([^#\n]*?)(\s*(?:#.*)?)$", re.MULTILINE)
        source, count = line.subn(lambda m, v=value: f"{m[1]}{v!r}{m[3]}", source, count=1)  # type: ignore[misc]
        if not count:
            raise KeyError(f"no top-level constant {name}")
    return source


def files_under(folder: Path) -> dict[str, Path]:
    """Every regular file under `folder`, by its relative path; caches left out."""
    if not folder.is_dir():
        return {}
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
