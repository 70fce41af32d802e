"""`proctor tasks` and `proctor agents`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from proctor.agents.registry import all_agents, broken_agents
from proctor.cli import app
from proctor.cli.terminal import console, say
from proctor.data.assets import data_state
from proctor.jsonio import to_json
from proctor.tasks.base import Task
from proctor.tasks.registry import all_tasks, broken_tasks

WIDE = 100
"""Columns from which the published scores fit too."""


def describe(task: Task) -> dict[str, Any]:
    """A task as programs read it."""
    return {
        "id": task.id,
        "suite": task.suite,
        "title": task.title,
        "metric": task.metric.name,
        "direction": task.metric.direction.value,
        "visible": task.visible,
        "aggregation": task.aggregation.value,
        "tiers": {
            name: {"budget_s": tier.budget_s, "gpus": tier.gpus, "data_state": data_state(task, name)}
            for name, tier in task.tiers.items()
        },
        "published": task.published.model_dump(include={"start", "reference", "best"}),
    }


@app.command("tasks")
def tasks_command(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """List the tasks."""
    found = [describe(task) for task in all_tasks().values()]
    if as_json:
        sys.stdout.write(to_json(found) + "\n")
        return
    target = console()
    wide = target.width >= WIDE
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", no_wrap=True)
    table.add_column("suite", no_wrap=True)
    table.add_column("metric (better)", overflow="fold")
    for name in (*(("start", "best") if wide else ()), "mini", "full", "GPUs"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("full data", no_wrap=True)
    for row in found:
        published, tiers = row["published"], row["tiers"]
        full = tiers.get("full", {})
        table.add_row(
            row["id"],
            row["suite"],
            Text(f"{row['metric']} ({row['direction']})"),
            *((_number(published["start"]), _number(published["best"])) if wide else ()),
            *(_budget(tiers[name]["budget_s"]) if name in tiers else "" for name in ("mini", "full")),
            str(full.get("gpus") or ""),
            full.get("data_state", ""),
        )
    target.print(table)
    say(target, ("start, best: published scores; " if wide else "") + "mini, full: budgets", style="dim")
    for name, why in broken_tasks().items():
        say(console(stderr=True), f"{name}: {why}", style="red")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _budget(seconds: float) -> str:
    """A budget in as few letters as a column needs."""
    if seconds < 60:
        return f"{seconds:g} s"
    return f"{seconds / 60:g} min" if seconds < 3600 else f"{seconds / 3600:g} h"


@app.command("agents")
def agents_command(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """List the agents."""
    found = [
        {
            "name": agent.name,
            "kind": agent.kind,
            "version": agent.version(),
            "installed": agent.missing() is None,
            "needs": agent.missing() or agent.needs,
        }
        for agent in all_agents().values()
    ]
    if as_json:
        sys.stdout.write(to_json(found) + "\n")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("agent", no_wrap=True)
    for name in ("kind", "version", "usable", "what it does", "needs"):
        table.add_column(name, overflow="fold")
    for row in found:
        usable = "yes" if row["installed"] else "no"
        summary = all_agents()[str(row["name"])].summary
        cells = (row["name"], row["kind"], row["version"] or "", usable, summary, row["needs"])
        table.add_row(*(Text(str(cell)) for cell in cells))
    console().print(table)
    for name, why in broken_agents().items():
        say(console(stderr=True), f"{name}: {why}", style="red")
