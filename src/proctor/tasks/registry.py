"""Finding tasks: the ones shipped here and those of plug-ins.

Plug-ins are found through the entry-point group `proctor.tasks`, and, while one is being written, through
$PROCTOR_TASKS: `module:ATTRIBUTE`, several separated by commas, importable from $PYTHONPATH.
"""

from __future__ import annotations

import difflib
import importlib
import os
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
def _found() -> tuple[dict[str, Task], dict[str, str]]:
    """Every task by id, and what is wrong with the places that gave none: a broken plug-in must not stop the others."""
    places = dict(SHIPPED)
    for point in sorted(entry_points(group="proctor.tasks"), key=lambda p: p.name):
        places.setdefault(point.name, point.value)
    for place in filter(None, os.environ.get("PROCTOR_TASKS", "").split(",")):
        places[place.strip()] = place.strip()
    tasks: dict[str, Task] = {}
    broken: dict[str, str] = {}
    for name, place in places.items():
        try:
            task = _load(name, place)
            tasks[task.id] = task
        except ProctorError as error:
            broken[name] = error.message
    return tasks, broken


def all_tasks() -> dict[str, Task]:
    """Every task by id, shipped ones first."""
    return _found()[0]


def broken_tasks() -> dict[str, str]:
    """Places that should have given a task, and why they did not."""
    return _found()[1]


def _load(name: str, place: str) -> Task:
    module, _, attribute = place.partition(":")
    try:
        task = getattr(importlib.import_module(module), attribute or "TASK", None)
    except ImportError as error:
        raise ProctorError(f"the task plug-in {name} ({place}) cannot be imported: {error}") from error
    if not isinstance(task, Task):
        raise ProctorError(f"the task plug-in {name} ({place}) is not a Task", "it must name an instance of Task")
    return task


def get_task(name: str) -> Task:
    """A task by id (`forecasting`) or full id (`onecard/forecasting`)."""
    tasks = all_tasks()
    for task in tasks.values():
        if name in (task.id, task.full_id):
            return task
    if name in broken_tasks():
        raise ProctorError(broken_tasks()[name])
    near = difflib.get_close_matches(name, list(tasks), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"there is no task {name!r}", f"{hint}`proctor tasks` lists them all")


def suite_tasks(suite: str) -> list[Task]:
    """The tasks of a suite, in their published order."""
    found = [task for task in all_tasks().values() if task.suite == suite]
    if not found:
        suites = sorted({task.suite for task in all_tasks().values()})
        raise UsageError(f"there is no suite {suite!r}", f"suites: {', '.join(suites)}")
    return found
