"""After the agent's end: what was left unscored is scored, the artefact that counts is sealed, the curve is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proctor.errors import InfrastructureError, InvalidSubmission
from proctor.events import EventLog
from proctor.scoring.scorelog import counting
from proctor.scoring.service import Frozen, ScoringService
from proctor.scoring.snapshot import Snapshot, Snapshots, load_snapshot
from proctor.spec import Protocol, RunSpec, ScoreEntry
from proctor.tasks.base import Task

WINDOW_S = 300.0
"""1GC-7RC keeps the best artefact of each window of five minutes."""


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
    """Ends the scoring of one run."""

    def __init__(
        self, spec: RunSpec, task: Task, service: ScoringService, store: Path, events: EventLog, used_s: float
    ) -> None:
        self._spec = spec
        self._task = task
        self._service = service
        self._store = store
        self._events = events
        self._used_s = used_s

    def final(self) -> str:
        """Score what the agent left unscored; why there was nothing, if there was nothing."""
        try:
            copy = self._service.freeze_and_copy()
        except InvalidSubmission as error:
            self._events.write("nothing_left", reason=str(error))
            return str(error)
        if copy.snapshot.sha256 not in {e.sha256 for e in self._service.log.entries if e.split == "visible"}:
            self._service.score_frozen("final", Frozen(copy.snapshot, self._used_s, 0.0), "visible")
        return ""

    def seal(self, nothing_left: str) -> Sealed:
        """Choose the artefact that counts and score it once more where nobody looked."""
        entries = self._service.log.entries
        chosen = counting(entries, self._task.metric.direction, self._task.aggregation)
        if chosen is None:
            failures = [e for e in entries if e.split == "visible"]
            if not failures:
                return Sealed(None, None, nothing_left or "nothing was submitted")
            last = failures[-1]
            return Sealed(None, None, last.message, ours=all(e.status == "error" for e in failures))
        if Protocol(self._spec.protocol) is Protocol.PUBLISHED:
            return Sealed(chosen, chosen)
        copy = Frozen(self._kept(chosen), chosen.elapsed_s, 0.0)
        official = self._service.score_frozen("seal", copy, "hidden")
        if official.status == "error":  # a fault of ours must not cost a run its score: try once more
            official = self._service.score_frozen("seal", copy, "hidden")
        if official.status == "scored":
            return Sealed(chosen, official)
        return Sealed(chosen, official, official.message, ours=official.status == "error")

    def _kept(self, entry: ScoreEntry) -> Snapshot:
        try:
            return load_snapshot(self._store / str(entry.artefact))
        except InvalidSubmission as error:
            raise InfrastructureError(str(error)) from None

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
            else:
                repeated = earlier.model_copy(update={"elapsed_s": round(copy.elapsed_s, 4), "scoring_s": 0.0})
                self._service.log.append(repeated)


def thin(snapshots: Snapshots, entries: tuple[ScoreEntry, ...], task: Task, keep: set[str]) -> int:
    """Drop kept artefacts but the best of each five minutes, the last, and those in `keep`; how many went."""
    best: dict[int, ScoreEntry] = {}
    last: ScoreEntry | None = None
    for entry in entries:
        if entry.split != "visible" or entry.artefact is None:
            continue
        last = entry
        if entry.status == "scored":
            window = int(entry.elapsed_s // WINDOW_S)
            if window not in best or task.metric.direction.better(entry.score, best[window].score):
                best[window] = entry
    wanted = {str(e.artefact) for e in best.values()} | keep | ({str(last.artefact)} if last else set())
    return snapshots.drop_all_but(wanted)
