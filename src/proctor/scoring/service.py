"""Scoring a run: freeze, snapshot, candidate, metric, log. One at a time, and every outcome a line."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from proctor.box.base import Box
from proctor.clock import BudgetClock, Clock
from proctor.data.assets import Assets
from proctor.errors import InfrastructureError, InvalidSubmission, ProctorError
from proctor.events import EventLog
from proctor.jsonio import to_plain
from proctor.scoring.link import CandidateLink
from proctor.scoring.pool import CandidatePool
from proctor.scoring.scorelog import ScoreLog, worth_keeping
from proctor.scoring.snapshot import Snapshot, Snapshots
from proctor.scoring.timing import timing_lock
from proctor.spec import Protocol, RunSpec, ScoreEntry
from proctor.tasks.base import Candidate, Evaluation, EvaluationContext, Task

# What may go wrong on our side outside of a task's own code (a disk, a box, a lock): logged and reported as `error`,
# never as `invalid`.
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
TIME_IS_UP = "the time is up"

Origin = Literal["agent", "final", "silent", "seal"]


@dataclass(frozen=True)
class Frozen:
    """A submission as it was at one moment of the agent's clock."""

    snapshot: Snapshot
    elapsed_s: float
    frozen_s: float


@dataclass
class _Times:
    """Where the time of one scoring goes; seconds, `began` on the monotonic clock."""

    began: float
    began_elapsed_s: float
    elapsed_s: float
    """The agent's clock at the freeze."""
    frozen_s: float = 0.0
    waited_s: float = 0.0
    """For other runs' timings. It is credited to the agent, and counted neither as frozen nor as scoring."""
    computed_s: float = 0.0
    """Spent waiting for the candidate."""


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
        self._held: set[str] = set()
        self.lost = 0
        """Scorings that could not be written down, and so do not count."""
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

    def _times(self) -> _Times:
        elapsed = self._budget.elapsed()
        return _Times(self._clock.monotonic(), elapsed, elapsed)

    @contextmanager
    def _frozen(self, times: _Times, *, drain: bool = False) -> Iterator[None]:
        """The agent's box stopped.

        With `drain` also the GPU work that it had queued is done: a copy of files need not wait for that, a timing
        must.
        """
        with self._freezing:
            began = self._clock.monotonic()
            box = self._box
            try:
                if box is not None:
                    box.freeze()
                    if drain and not self._drain():
                        self._events.write("gpu_not_drained")
                times.elapsed_s = self._budget.elapsed()
                yield
            finally:
                if box is not None:
                    box.thaw()
                times.frozen_s += self._clock.monotonic() - began - times.waited_s

    def freeze_and_copy(
        self, target: str | None = None, *, silent: bool = False, without: frozenset[str] = frozenset()
    ) -> Frozen:
        """Freeze the agent, copy the submission, thaw it.

        Args:
            target: What to score; the newest by default.
            silent: For the curve: a file that has just been written is passed over, and the copy is kept until the
                end, when it is scored.
            without: Targets not to choose.

        Raises:
            InvalidSubmission: There is nothing that can be scored.
        """
        times = self._times()
        with self._frozen(times):
            snapshot = self.snapshots.take(target, now=time.time() if silent else None, without=without)
            if silent:
                self._held.add(snapshot.name)
        return Frozen(snapshot, times.elapsed_s, times.frozen_s)

    def score(self, origin: Origin, target: str | None = None, note: str = "") -> ScoreEntry:
        """Score the submission as it is now on the visible split; the answer is on disk when this returns.

        A request that is still waiting when the agent's time ends is not served: what it asked for is scored as the
        final state.
        """
        with self._one_at_a_time:
            if origin == "agent" and (not self._budget.running or self._budget.expired()):
                return self._entry("error", TIME_IS_UP)
            times = self._times()
            snapshot: Snapshot | None = None
            try:
                if self._task.policy.freeze_while_scoring:
                    with self._frozen(times, drain=True), timing_lock(self._spec.run_id, self._waiter(times)):
                        snapshot = self.snapshots.take(target)
                        entry = self._evaluate(snapshot, "visible", True, times)
                else:
                    with self._frozen(times):
                        snapshot = self.snapshots.take(target)
                    entry = self._evaluate(snapshot, "visible", True, times)
            except InvalidSubmission as error:
                entry = self._entry("invalid", str(error))
            except FAULTS as error:
                entry = self._fault(error)
            recorded = self._record(entry, origin, snapshot, times, note)
            self.thin()
            return recorded

    def score_frozen(
        self, origin: Origin, copy: Frozen, split: Literal["visible", "hidden"], *, audit: bool = True
    ) -> ScoreEntry:
        """Score an earlier snapshot. The agent has ended, so nothing is frozen and no clock runs."""
        with self._one_at_a_time:
            times = self._times()
            try:
                if self._task.policy.freeze_while_scoring:
                    with timing_lock(self._spec.run_id, self._waiter(times)):
                        entry = self._evaluate(copy.snapshot, split, audit, times)
                else:
                    entry = self._evaluate(copy.snapshot, split, audit, times)
            except FAULTS as error:
                entry = self._fault(error)
            times.elapsed_s = copy.elapsed_s
            return self._record(entry, origin, copy.snapshot, times, "")

    def _waiter(self, times: _Times) -> Callable[[float], None]:
        """Books waiting for other runs: the agent, frozen meanwhile, gets it back as it passes."""

        def waited(seconds: float) -> None:
            times.waited_s += seconds
            self._budget.credit(seconds)

        return waited

    def thin(self, *, ended: bool = False, keep: frozenset[str] = frozenset()) -> int:
        """Drop the artefacts that nobody will ask for again; how many went.

        Args:
            ended: The run is over, so that the copies for the curve have been scored and may go too.
            keep: Artefacts to keep whatever they scored.
        """
        with self._freezing:
            held = set() if ended else self._held
            return self.snapshots.drop_all_but(worth_keeping(self.log.entries, self._task) | held | keep)

    def _evaluate(
        self, snapshot: Snapshot, split: Literal["visible", "hidden"], audit: bool, times: _Times
    ) -> ScoreEntry:
        """One evaluation, with every way in which it can end turned into an entry."""

        def count(link: CandidateLink) -> None:
            times.computed_s += link.compute_s

        limit = self._task.policy.timeout_s
        late = InvalidSubmission(f"scoring took longer than the {limit:g} s that this task allows")
        timed_out = threading.Event()

        @contextmanager
        def opened() -> Iterator[Candidate]:
            if timed_out.is_set():
                raise late
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
            budget_s=self._spec.budget_s,
            audit=audit,
        )

        def expire() -> None:
            timed_out.set()
            self._pool.kill_in_use()

        watchdog = threading.Timer(limit, expire)
        watchdog.start()
        try:
            return self._judged(self._task.evaluate(context), snapshot)
        except InvalidSubmission as error:
            text = str(late if timed_out.is_set() else error) + _left_out(snapshot)
            return self._entry("invalid", text)
        except Exception as error:  # noqa: BLE001  a plug-in may raise anything: it costs one scoring, never a run
            return self._fault(error)
        finally:
            watchdog.cancel()

    def _fault(self, error: Exception) -> ScoreEntry:
        """A scoring that failed on our side. The agent learns the kind of fault only: the text may name hidden data."""
        kind = type(error).__name__
        text = f"{kind}: {error}"[:2000]
        trace = "".join(traceback.format_tb(error.__traceback__)[-4:])
        self._events.write("scoring_error", error=text, trace=trace)
        entry = self._entry("error", f"scoring failed on our side ({kind}); this does not count against you, try again")
        return entry.model_copy(update={"details": {"error": text}})

    def _judged(self, evaluation: Evaluation, snapshot: Snapshot) -> ScoreEntry:
        """The entry of an evaluation: a void finding, a score outside the metric's range or NaN never counts."""
        void = [f for f in evaluation.findings if f.severity == "void"]
        message = evaluation.message + _left_out(snapshot)
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
                "details": to_plain(evaluation.details),
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
        self, entry: ScoreEntry, origin: Origin, snapshot: Snapshot | None, times: _Times, note: str
    ) -> ScoreEntry:
        """Book the time, and write the line: what could not be written does not count."""
        seconds = max(0.0, self._clock.monotonic() - times.began - times.waited_s)
        split: Literal["visible", "hidden"] = "hidden" if origin in ("silent", "seal") else "visible"
        filled = entry.model_copy(
            update={
                "origin": origin,
                "split": split,
                "artefact": snapshot.name if snapshot else None,
                "sha256": snapshot.sha256 if snapshot else None,
                "elapsed_s": round(times.elapsed_s, 4),
                "frozen_s": round(times.frozen_s, 4),
                "scoring_s": round(seconds, 4),
                "overhead_s": round(max(0.0, seconds - times.computed_s), 4),
                "note": note[:1000],
            }
        )
        if origin == "agent":
            # A scoring may outlive the agent's clock; only what lay on it is booked.
            on_clock = self._budget.elapsed() - times.began_elapsed_s
            self._budget.book("scoring", min(seconds, on_clock))
            self._budget.book("frozen", min(times.frozen_s, on_clock))
        try:
            recorded = self.log.append(filled)
        except OSError as error:
            self.lost += 1
            self._events.write("score_not_logged", error=str(error), score=filled.score)
            text = f"the score could not be written down ({error.strerror}), so it does not count; try again"
            recorded = filled.model_copy(update={"status": "error", "score": None, "message": text})
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
        except (InfrastructureError, OSError) as error:
            self._events.write("refill_failed", error=str(error))


def _left_out(snapshot: Snapshot) -> str:
    """What was not copied, for the end of a message: often the reason why a submission fails."""
    return f" (left out of the submission: {'; '.join(snapshot.left_out[:5])})" if snapshot.left_out else ""
