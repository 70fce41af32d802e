"""After the agent's end: what was left unscored is scored, the artefact that counts is sealed, the curve is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proctor.errors import InfrastructureError, InvalidSubmission
from proctor.events import EventLog
from proctor.scoring.scorelog import counting, unjudged
from proctor.scoring.service import Frozen, ScoringService
from proctor.scoring.snapshot import load_snapshot
from proctor.spec import Finding, Protocol, RunSpec, ScoreEntry
from proctor.tasks.base import Task

FALLBACKS = 2
"""How many older targets are tried when the newest one is no good and nothing else has a score."""


@dataclass(frozen=True)
class Sealed:
    """What counts.

    Attributes:
        chosen: The visible scoring whose artefact counts, or None.
        official: The scoring that gives the result: the sealed one, or `chosen` itself under `published`.
        reason: Why there is no valid score, if there is none.
        ours: Whether that is a fault of ours.
    """

    chosen: ScoreEntry | None
    official: ScoreEntry | None
    reason: str = ""
    ours: bool = False


class Sealer:
    """Ends the scoring of one run.

    Attributes:
        findings: What a reader of the result should know of how it came about.
    """

    def __init__(
        self, spec: RunSpec, task: Task, service: ScoringService, store: Path, events: EventLog, used_s: float
    ) -> None:
        self._spec = spec
        self._task = task
        self._service = service
        self._store = store
        self._events = events
        self._used_s = used_s
        self.findings: list[Finding] = []

    def final(self) -> str:
        """Score what the agent left unscored, and what failed on our side; why there was nothing, if so."""
        self._retry_faults()
        nothing_left = ""
        passed_over: set[str] = set()
        for _ in range(1 + FALLBACKS):
            why, target = self._final_state(frozenset(passed_over))
            nothing_left = nothing_left or why
            if target is None or self._counting() is not None:
                break
            # The newest may have been torn by the end of the agent's time; an older one may be whole.
            passed_over.add(target)
        return nothing_left

    def _retry_faults(self) -> None:
        """A fault of ours must not cost the agent a scoring: what it asked for is scored now."""
        for entry in unjudged(self._service.log.entries):
            try:
                copy = Frozen(load_snapshot(self._store / str(entry.artefact)), entry.elapsed_s, 0.0)
            except InvalidSubmission as error:
                self._events.write("not_scored_again", error=str(error))
                continue
            self._service.score_frozen("final", copy, "visible")

    def _final_state(self, without: frozenset[str]) -> tuple[str, str | None]:
        """Score the newest target that is not in `without`; why there was nothing, and what was looked at."""
        try:
            copy = self._service.freeze_and_copy(without=without)
        except InvalidSubmission as error:
            self._events.write("nothing_left", reason=str(error))
            return str(error), None
        except InfrastructureError as error:
            # What was scored before still counts; that the last state is missing must be seen.
            self._events.write("final_state_lost", error=error.message)
            self.findings.append(Finding(rule="final_state_lost", severity="warning", evidence=error.message))
            return error.message, None
        judged = {e.sha256 for e in self._service.log.entries if e.split == "visible" and e.status != "error"}
        if copy.snapshot.sha256 not in judged:
            entry = self._service.score_frozen("final", Frozen(copy.snapshot, self._used_s, 0.0), "visible")
            if entry.status == "error":
                entry = self._service.score_frozen("final", Frozen(copy.snapshot, self._used_s, 0.0), "visible")
            if any(finding.severity == "void" for finding in entry.findings):
                return "", None  # a cheat is not excused by what lies beside it
        return "", copy.snapshot.target

    def _counting(self) -> ScoreEntry | None:
        return counting(self._service.log.entries, self._task.metric.direction, self._task.aggregation)

    def seal(self, nothing_left: str) -> Sealed:
        """Choose the artefact that counts and score it once more where nobody looked."""
        chosen = self._counting()
        if chosen is None:
            return self._nothing(nothing_left)
        if Protocol(self._spec.protocol) is Protocol.PUBLISHED:
            return Sealed(chosen, chosen)
        try:
            copy = Frozen(load_snapshot(self._store / str(chosen.artefact)), chosen.elapsed_s, 0.0)
        except InvalidSubmission as error:
            return Sealed(chosen, None, str(error), ours=True)
        official = self._service.score_frozen("seal", copy, "hidden")
        if official.status == "error":  # a fault of ours must not cost a run its score: try once more
            official = self._service.score_frozen("seal", copy, "hidden")
        if official.status == "scored":
            return Sealed(chosen, official)
        return Sealed(chosen, official, _why(official), ours=official.status == "error")

    def _nothing(self, nothing_left: str) -> Sealed:
        """No artefact has a score: whether that is the agent's doing, or ours."""
        if self._service.lost:
            return Sealed(None, None, "scores could not be written down: is the disk full?", ours=True)
        failures = [e for e in self._service.log.entries if e.split == "visible"]
        if not failures:
            lost = any(finding.rule == "final_state_lost" for finding in self.findings)
            return Sealed(None, None, nothing_left or "nothing was submitted", ours=lost)
        return Sealed(None, None, _why(failures[-1]), ours=failures[-1].status == "error")

    def curve(self, silent: list[Frozen], stop: Callable[[], bool]) -> None:
        """Score the silent snapshots on the hidden split, each distinct one once. A cheat's points may stand in the
        curve: it is drawn without the audit passes, and is not what counts."""
        done: dict[str, ScoreEntry] = {}
        for copy in silent:
            if stop():
                return
            earlier = done.get(copy.snapshot.sha256)
            if earlier is None:
                done[copy.snapshot.sha256] = self._service.score_frozen("silent", copy, "hidden", audit=False)
                continue
            repeated = earlier.model_copy(update={"elapsed_s": round(copy.elapsed_s, 4), "scoring_s": 0.0})
            try:
                self._service.log.append(repeated)
            except OSError as error:  # a point of the curve, not the result
                self._events.write("score_not_logged", error=str(error))


def _why(entry: ScoreEntry) -> str:
    """Why an entry has no score, for whoever reads the result; the agent was told less of a fault of ours."""
    said = entry.details.get("error") if entry.status == "error" else None
    return f"{entry.message}: {said}" if said else entry.message
