"""Closing runs whose worker is gone: what the folder still tells becomes a result, and nothing is made up."""

from __future__ import annotations

from datetime import datetime

from proctor.jsonio import read_lines
from proctor.run.folder import RunFolder
from proctor.run.result import Facts, build_result
from proctor.run.seal import Sealed
from proctor.scoring.scorelog import counting, read_scores
from proctor.spec import Ended, Enforced, Result
from proctor.tasks.registry import get_task


def close_dead(folder: RunFolder, why: str = "") -> Result | None:
    """Write the result of a run whose worker died without one; None if there is nothing to close.

    The score log keeps every scoring that was answered. No sealed score is made up: the run counts as an
    infrastructure failure, with its best visible score on record.
    """
    if folder.result() is not None or folder.worker_alive() or not folder.lock_file.exists():
        return None
    with folder.lock():
        existing = folder.result()
        if existing is not None:
            return existing
        spec = folder.spec()
        task = get_task(spec.task)
        events = list(read_lines(folder.events))
        entries = tuple(read_scores(folder.scores))
        chosen = counting(entries, task.metric.direction, task.aggregation)
        facts = Facts(
            ended=Ended.INFRASTRUCTURE,
            reason=f"{why or 'the worker died without a result (was it killed?)'}; last seen: {_last(events)}",
            sealed=Sealed(chosen, None),
            calls=sum(1 for e in entries if e.origin == "agent"),
        )
        for event in events:
            if event.get("event") == "agent_started":
                facts.started_at = datetime.fromisoformat(str(event["at"]))
            if event.get("event") == "enforced":
                facts.enforced = Enforced(**{name: event.get(name) for name in Enforced.model_fields})
        result = build_result(spec, task, facts, entries)
        folder.write_result(result)
        return result


def _last(events: list[dict[str, object]]) -> str:
    if not events:
        return "nothing was written"
    return f"{events[-1].get('event')} at {events[-1].get('elapsed_s')} s of the agent's clock"
