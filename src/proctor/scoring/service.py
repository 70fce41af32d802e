"""Scoring a run: freeze, snapshot, candidate, metric, log. One at a time, and every outcome a line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from proctor.box.base import Box
from proctor.clock import BudgetClock, Clock
from proctor.data.assets import Assets
from proctor.errors import InfrastructureError, InvalidSubmission, ProctorError
from proctor.events import EventLog
from proctor.scoring.link import CandidateLink
from proctor.scoring.pool import CandidatePool
from proctor.scoring.scorelog import ScoreLog
from proctor.scoring.snapshot import Snapshot, Snapshots
from proctor.scoring.timing import timing_lock
from proctor.spec import Protocol, RunSpec, ScoreEntry
from proctor.tasks.base import Candidate, Evaluation, EvaluationContext, Task

# What may go wrong in a task's evaluation through a fault of ours or of a plug-in. It must cost one scoring, never a
# run, so these are caught in one place, here, logged with their type, and reported as `error`, not as `invalid`.
FAULTS = (
    ProctorError,
    OSError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)

Origin = Literal["agent", "final", "silent", "seal"]


@dataclass(frozen=True)
class Frozen:
    """A submission as it was at one moment of the agent's clock."""

    snapshot: Snapshot
    elapsed_s: float
    frozen_s: float


class ScoringService:
    """Everything that turns a workspace into score-log lines, for one run.

    Args:
        spec, task, assets: The run's.
        pool: Candidate boxes.
        snapshots: Where submissions are frozen to.
        log: The score log.
        budget: The agent's clock.
        clock: Where wall time comes from.
        events: The run's event log.
        drain: Waits until the agent's GPU work is done, after it was frozen.
        gpu_uuids: The leased GPUs.
    """

    def __init__(
        self,
        spec: RunSpec,
        task: Task,
        assets: Assets,
        pool: CandidatePool,
        snapshots: Snapshots,
        log: ScoreLog,
        budget: BudgetClock,
        clock: Clock,
        events: EventLog,
        drain: Callable[[], bool],
        gpu_uuids: tuple[str, ...],
        python: str,
    ) -> None:
        self._spec = spec
        self._task = task
        self._assets = assets
        self._pool = pool
        self.snapshots = snapshots
        self.log = log
        self._budget = budget
        self._clock = clock
        self._events = events
        self._drain = drain
        self._gpu_uuids = gpu_uuids
        self._python = python
        self._one_at_a_time = threading.Lock()
        self._freezing = threading.RLock()
        self._box: Box | None = None
        self._refill: threading.Thread | None = None

    def attach(self, box: Box) -> None:
        """The agent's box, which is frozen for snapshots from now on."""
        self._box = box

    def attach_nothing(self) -> None:
        """The agent's box is gone."""
        with self._freezing:
            self._box = None

    def wait_idle(self) -> None:
        """Return when no scoring is going on."""
        with self._one_at_a_time:
            pass

    @contextmanager
    def frozen(self, *, drain: bool = False) -> Iterator[Callable[[], float]]:
        """The agent's box stopped. Yields a function: seconds frozen so far.

        With `drain` also the GPU work that it had queued is done: a copy of files need not wait for that, a timing
        must.
        """
        with self._freezing:
            began = time.monotonic()
            box = self._box
            if box is not None:
                box.freeze()
                if drain and not self._drain():
                    self._events.write("gpu_not_drained")
            try:
                yield lambda: time.monotonic() - began
            finally:
                if box is not None:
                    box.thaw()

    def freeze_and_copy(self, target: str | None = None, *, silent: bool = False) -> Frozen:
        """Freeze the agent, copy the submission, thaw it.

        Raises:
            InvalidSubmission: There is nothing that can be scored.
        """
        with self.frozen() as seconds:
            elapsed = self._budget.elapsed()
            snapshot = self.snapshots.take(target, now=time.time() if silent else None)
            return Frozen(snapshot, elapsed, seconds())

    def score(self, origin: Origin, target: str | None = None, note: str = "") -> ScoreEntry:
        """Score the submission as it is now on the visible split; the answer is on disk when this returns.

        A request that is still waiting when the agent's time ends is not served: what it asked for is scored as the
        final state.
        """
        with self._one_at_a_time:
            if origin == "agent" and not self._budget.running:
                return self._entry("error", "the time is up")
            began = time.monotonic()
            elapsed = self._budget.elapsed()
            frozen_s = 0.0
            snapshot: Snapshot | None = None
            try:
                if self._task.policy.freeze_while_scoring:
                    with timing_lock(self._spec.run_id), self.frozen(drain=True) as seconds:
                        elapsed = self._budget.elapsed()
                        snapshot = self.snapshots.take(target)
                        entry = self._evaluate(snapshot, "visible", True)
                        frozen_s = seconds()
                else:
                    copy = self.freeze_and_copy(target)
                    snapshot, elapsed, frozen_s = copy.snapshot, copy.elapsed_s, copy.frozen_s
                    entry = self._evaluate(snapshot, "visible", True)
            except InvalidSubmission as error:
                entry = self._entry("invalid", str(error))
            except FAULTS as error:
                entry = self._entry("error", f"scoring failed on our side ({type(error).__name__}): {error}")
            return self._record(entry, origin, snapshot, elapsed, frozen_s, began, note)

    def score_frozen(
        self, origin: Origin, copy: Frozen, split: Literal["visible", "hidden"], *, audit: bool = True
    ) -> ScoreEntry:
        """Score an earlier snapshot. The agent has ended, so nothing is frozen and no clock runs."""
        with self._one_at_a_time:
            began = time.monotonic()
            if self._task.policy.freeze_while_scoring:
                with timing_lock(self._spec.run_id):
                    entry = self._evaluate(copy.snapshot, split, audit)
            else:
                entry = self._evaluate(copy.snapshot, split, audit)
            return self._record(entry, origin, copy.snapshot, copy.elapsed_s, 0.0, began, "")

    def _evaluate(self, snapshot: Snapshot, split: Literal["visible", "hidden"], audit: bool) -> ScoreEntry:
        """One evaluation, with every way in which it can end turned into an entry."""
        computing = 0.0

        def count(link: CandidateLink) -> None:
            nonlocal computing
            computing += link.compute_s

        @contextmanager
        def opened() -> Iterator[Candidate]:
            with self._pool.open(snapshot, count) as link:
                yield link

        context = EvaluationContext(
            split=split,
            protocol=Protocol(self._spec.protocol),
            tier=self._spec.tier,
            device=self._spec.device,
            public=self._assets.public,
            private=self._assets.private,
            artefact=snapshot.files,
            target=snapshot.target,
            open=opened,
            rng=np.random.default_rng(),
            gpu_uuids=self._gpu_uuids,
            python=self._python,
            audit=audit,
        )
        limit = self._task.policy.timeout_s
        timed_out = threading.Event()

        def expire() -> None:
            timed_out.set()
            self._pool.kill_in_use()

        watchdog = threading.Timer(limit, expire)
        watchdog.start()
        began = time.monotonic()
        try:
            entry = self._judged(self._task.evaluate(context), snapshot)
        except InvalidSubmission as error:
            late = f"scoring took longer than the {limit:g} s that this task allows"
            entry = self._entry("invalid", late if timed_out.is_set() else str(error))
        except FAULTS as error:
            self._events.write("scoring_error", error=f"{type(error).__name__}: {error}")
            entry = self._entry("error", f"scoring failed on our side ({type(error).__name__}): {error}")
        finally:
            watchdog.cancel()
        own = max(0.0, time.monotonic() - began - computing)
        return entry.model_copy(update={"overhead_s": own})

    def _judged(self, evaluation: Evaluation, snapshot: Snapshot) -> ScoreEntry:
        """The entry of an evaluation: a void finding, a score outside the metric's range or NaN never counts."""
        void = [f for f in evaluation.findings if f.severity == "void"]
        message = evaluation.message
        if snapshot.left_out:
            message += f" (left out of the submission: {'; '.join(snapshot.left_out[:5])})"
        status: Literal["scored", "invalid"] = "scored"
        score = evaluation.score
        if void:
            status, score = "invalid", None
            message = message or f"{void[0].rule}: {void[0].evidence}"
        elif score is None:
            status, message = "invalid", message or "no score was found, and the task gave no reason"
        else:
            problem = self._task.metric.problem(float(score))
            if problem:
                status, score, message = "invalid", None, problem
        entry = self._entry(status, message.strip())
        return entry.model_copy(
            update={
                "score": None if score is None else float(score),
                "details": evaluation.details,
                "findings": tuple(evaluation.findings),
            }
        )

    def _entry(self, status: Literal["scored", "invalid", "error"], message: str) -> ScoreEntry:
        return ScoreEntry(
            n=0,
            origin="agent",
            split="visible",
            elapsed_s=0.0,
            at=self._clock.now(),
            status=status,
            score=None,
            message=message[:8000],
        )

    def _record(
        self,
        entry: ScoreEntry,
        origin: Origin,
        snapshot: Snapshot | None,
        elapsed_s: float,
        frozen_s: float,
        began: float,
        note: str,
    ) -> ScoreEntry:
        seconds = time.monotonic() - began
        split: Literal["visible", "hidden"] = "hidden" if origin in ("silent", "seal") else "visible"
        filled = entry.model_copy(
            update={
                "origin": origin,
                "split": split,
                "artefact": snapshot.name if snapshot else None,
                "sha256": snapshot.sha256 if snapshot else None,
                "elapsed_s": round(elapsed_s, 4),
                "frozen_s": round(frozen_s, 4),
                "scoring_s": round(seconds, 4),
                "overhead_s": round(entry.overhead_s, 4),
                "note": note[:1000],
            }
        )
        if origin == "agent":
            self._budget.book("scoring", seconds)
            self._budget.book("frozen", frozen_s)
        recorded = self.log.append(filled)
        self._warm_again()
        return recorded

    def _warm_again(self) -> None:
        """Start boxes for the next scoring while the agent works (or while a host-side metric is computed)."""
        if self._refill is None or not self._refill.is_alive():
            self._refill = threading.Thread(target=self._fill, name="refill", daemon=True)
            self._refill.start()

    def _fill(self) -> None:
        try:
            self._pool.fill()
        except InfrastructureError as error:
            self._events.write("refill_failed", error=error.message)


def snapshot_folder(run: Path, entry: ScoreEntry) -> Path | None:
    """Where the artefact of a score-log line is kept, if it still is."""
    if entry.artefact is None:
        return None
    folder = run / "snapshots" / entry.artefact
    return folder if folder.is_dir() else None
