"""Closing runs whose worker is gone: what the folder still tells becomes a result, and nothing is made up."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from proctor.jsonio import read_lines
from proctor.run.folder import BusyError, RunFolder
from proctor.run.result import Facts, build_result
from proctor.run.seal import Sealed
from proctor.scoring.scorelog import counting, read_scores
from proctor.spec import Ended, Enforced, Finding, Protocol, Result, RunSpec, ScoreEntry
from proctor.tasks.registry import get_task

Event = dict[str, Any]


def close_dead(folder: RunFolder, why: str = "") -> Result | None:
    """Write the result of a run whose worker died without one; None if there is nothing to close, or no right to.

    The score log keeps every scoring that was answered. A run that was already sealed is told in full; any other one
    counts as an infrastructure failure, with its best visible score on record and no sealed one made up.

    Raises:
        ProctorError: The folder cannot be read, or the result cannot be written.
    """
    if folder.result() is not None or not folder.lock_file.exists() or folder.worker_alive():
        return None
    try:
        with folder.lock(patience_s=0.0):
            existing = folder.result()
            if existing is not None:
                return existing
            spec = folder.spec()
            task = get_task(spec.task)
            events = list(read_lines(folder.events))
            entries = tuple(read_scores(folder.scores))
            chosen = counting(entries, task.metric.direction, task.aggregation)
            died = f"{why or 'the worker died without a result (was it killed?)'}; last seen: {_last(events)}"
            try:
                result = build_result(spec, task, _facts(spec, events, entries, chosen, died), entries)
            except ValidationError:  # a log that was edited: the score log alone must do
                result = build_result(spec, task, _bare(entries, chosen, died), entries)
            folder.write_result(result)
    except BusyError:
        return None
    except PermissionError:  # somebody else's results
        return None
    shutil.rmtree(folder.scratch, ignore_errors=True)
    for path in (folder.live, folder.socket):
        with suppress(OSError):
            path.unlink(missing_ok=True)
    return result


def _bare(entries: tuple[ScoreEntry, ...], chosen: ScoreEntry | None, died: str) -> Facts:
    """What the score log alone tells of a run."""
    return Facts(reason=died, sealed=Sealed(chosen, None), calls=sum(1 for e in entries if e.origin == "agent"))


def _facts(
    spec: RunSpec, events: Sequence[Event], entries: tuple[ScoreEntry, ...], chosen: ScoreEntry | None, died: str
) -> Facts:
    """What the logs tell of a run."""
    facts = _bare(entries, chosen, died)
    told = {str(event.get("event")): event for event in events}
    # A log that was cut or edited must not keep a run from being closed: what does not fit stays unknown.
    with suppress(KeyError, TypeError, ValueError):
        facts.started_at = datetime.fromisoformat(told["agent_started"]["started_at"])
    with suppress(KeyError, TypeError, ValueError):
        facts.enforced = Enforced(**{name: told["enforced"].get(name) for name in Enforced.model_fields})
    for name in ("hardware", "versions", "data"):
        with suppress(KeyError, TypeError, ValueError):
            setattr(facts, name, dict(told["machine"][name]))
    with suppress(KeyError, TypeError, ValueError):
        end = told["agent_ended"]
        facts.used_s, facts.scoring_s, facts.frozen_s = (float(end[k]) for k in ("used_s", "scoring_s", "frozen_s"))
        facts.exit_code, facts.limit, facts.gpu_busy_fraction = (
            end[k] for k in ("exit_code", "limit", "gpu_busy_fraction")
        )
        sealed = told["sealed"]
        facts.findings = [Finding(**finding) for finding in sealed["findings"]]
        facts.sealed = Sealed(chosen, _official(spec, entries, chosen), str(sealed["reason"]), bool(sealed["ours"]))
        facts.ended = Ended(end["ended"])
        facts.reason = str(sealed["reason"]) or f"{died}; everything that counts had been scored"
    return facts


def _official(spec: RunSpec, entries: tuple[ScoreEntry, ...], chosen: ScoreEntry | None) -> ScoreEntry | None:
    """The scoring that gives the result, of a run that was sealed."""
    if chosen is None or Protocol(spec.protocol) is Protocol.PUBLISHED:
        return chosen
    seals = [e for e in entries if e.origin == "seal" and e.sha256 == chosen.sha256]
    return seals[-1] if seals else None


def _last(events: Sequence[Event]) -> str:
    if not events:
        return "nothing was written"
    return f"{events[-1].get('event')} at {events[-1].get('elapsed_s')} s of the agent's clock"
