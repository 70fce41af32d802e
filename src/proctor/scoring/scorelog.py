"""The score log: append-only, one fsynced line per scoring, numbered without gaps."""

from __future__ import annotations

import math
import threading
from pathlib import Path

from pydantic import ValidationError

from proctor.jsonio import append_line, read_lines
from proctor.spec import Aggregation, Direction, ScoreEntry
from proctor.tasks.base import Task

WINDOW_S = 300.0
"""1GC-7RC keeps the best artefact of each window of five minutes."""
KEPT_FAULTS = 5
"""Artefacts whose scoring failed on our side and that are scored again at the end, at most."""


class ScoreLog:
    """The log of one run; safe to use from several threads of its one writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._entries = read_scores(path)

    def append(self, entry: ScoreEntry) -> ScoreEntry:
        """Number the entry, write it to disk, and only then let it count."""
        with self._lock:
            numbered = entry.model_copy(update={"n": len(self._entries)})
            append_line(self._path, numbered)
            self._entries.append(numbered)
            return numbered

    @property
    def entries(self) -> tuple[ScoreEntry, ...]:
        with self._lock:
            return tuple(self._entries)


def read_scores(path: Path) -> list[ScoreEntry]:
    """Every whole line of a score log."""
    found = []
    for line in read_lines(path):
        try:
            found.append(ScoreEntry.model_validate(line))
        except ValidationError:
            continue
    return found


def counting(entries: tuple[ScoreEntry, ...], direction: Direction, aggregation: Aggregation) -> ScoreEntry | None:
    """The entry whose artefact counts: the best (the earliest of equals) or the last valid one, of what was visible."""
    best: ScoreEntry | None = None
    for entry in entries:
        if not _counts(entry):
            continue
        if aggregation is Aggregation.LAST or best is None or direction.better(entry.score, best.score):
            best = entry
    return best


def _counts(entry: ScoreEntry) -> bool:
    return (
        entry.split == "visible"
        and entry.origin in ("agent", "final")
        and entry.status == "scored"
        and entry.score is not None
        and math.isfinite(entry.score)
    )


def unjudged(entries: tuple[ScoreEntry, ...]) -> list[ScoreEntry]:
    """Visible scorings of which only a fault of ours came, the latest of each artefact; the newest few."""
    judged = {e.sha256 for e in entries if e.split == "visible" and e.status != "error"}
    faults = {e.sha256: e for e in entries if e.split == "visible" and e.status == "error" and e.artefact}
    return [entry for sha256, entry in faults.items() if sha256 not in judged][-KEPT_FAULTS:]


def worth_keeping(entries: tuple[ScoreEntry, ...], task: Task) -> set[str]:
    """Artefacts that may yet be asked for: the best of each five minutes, the one that counts, the last, and those
    that have not been judged."""
    best: dict[int, ScoreEntry] = {}
    last: ScoreEntry | None = None
    for entry in entries:
        if entry.split != "visible" or entry.artefact is None:
            continue
        last = entry
        window = int(entry.elapsed_s // WINDOW_S)
        if _counts(entry) and (window not in best or task.metric.direction.better(entry.score, best[window].score)):
            best[window] = entry
    chosen = counting(entries, task.metric.direction, task.aggregation)
    kept = [*best.values(), *unjudged(entries), *(e for e in (chosen, last) if e is not None)]
    return {str(entry.artefact) for entry in kept}
