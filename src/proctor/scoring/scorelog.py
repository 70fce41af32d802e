"""The score log: append-only, one fsynced line per scoring, numbered without gaps."""

from __future__ import annotations

import threading
from pathlib import Path

from pydantic import ValidationError

from proctor.jsonio import append_line, read_lines
from proctor.spec import Aggregation, Direction, ScoreEntry


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
        if entry.split != "visible" or entry.status != "scored" or entry.origin not in ("agent", "final"):
            continue
        if aggregation is Aggregation.LAST or best is None or direction.better(entry.score, best.score):
            best = entry
    return best
