"""Finding tasks: the ones shipped here and those of plug-ins, through the entry-point group `proctor.tasks`."""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from importlib.metadata import entry_points

from proctor.errors import ProctorError, UsageError
from proctor.tasks.base import Task

SUITES = ("onecard", "rebench")
# Shipped tasks are also found when Proctor runs from a source tree that was never installed.
SHIPPED = {
    "forecasting": "proctor.tasks.onecard.forecasting.task:TASK",
    "language_modeling": "proctor.tasks.onecard.language_modeling.task:TASK",
    "prefix_sum": "proctor.tasks.rebench.prefix_sum.task:TASK",
}


@cache
def all_tasks() -> dict[str, Task]:
    """Every task by id, shipped ones first."""
    places = dict(SHIPPED)
    for point in sorted(entry_points(group="proctor.tasks"), key=lambda p: p.name):
        places.setdefault(point.name, point.value)
    return {name: _load(name, place) for name, place in places.items()}


def _load(name: str, place: str) -> Task:
    module, _, attribute = place.partition(":")
    task = getattr(importlib.import_module(module), attribute or "TASK", None)
    if not isinstance(task, Task):
        raise ProctorError(f"the task plug-in {name} ({place}) is not a Task", "it must name an instance of Task")
    return task


def get_task(name: str) -> Task:
    """A task by id (`forecasting`) or full id (`onecard/forecasting`)."""
    tasks = all_tasks()
    for task in tasks.values():
        if name in (task.id, task.full_id):
            return task
    near = difflib.get_close_matches(name, list(tasks), n=1)
    raise UsageError(
        f"there is no task {name!r}",
        f"did you mean {near[0]!r}? " * bool(near) + "`proctor tasks` lists them all",
    )


def suite_tasks(suite: str) -> list[Task]:
    """The tasks of a suite, in their published order."""
    found = [task for task in all_tasks().values() if task.suite == suite]
    if not found:
        suites = sorted({task.suite for task in all_tasks().values()})
        raise UsageError(f"there is no suite {suite!r}", f"suites: {', '.join(suites)}")
    return found
