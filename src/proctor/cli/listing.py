"""`proctor tasks` and `proctor agents`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proctor.agents.registry import all_agents
from proctor.cli import app
from proctor.data.assets import data_state
from proctor.jsonio import to_json
from proctor.run.prompt import minutes
from proctor.tasks.base import Task
from proctor.tasks.registry import all_tasks, broken_tasks


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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("task", "suite", "metric", "better", "published start", "published best", "mini", "full"):
        table.add_column(name)
    for row in found:
        published = row["published"]
        tiers = row["tiers"]
        table.add_row(
            row["id"],
            row["suite"],
            row["metric"],
            row["direction"],
            _number(published["start"]),
            _number(published["best"]),
            *(_tier(tiers[name]) if name in tiers else "" for name in ("mini", "full")),
        )
    Console().print(table)
    for name, why in broken_tasks().items():
        Console(stderr=True).print(f"{name}: {why}", style="red", markup=False, highlight=False)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _tier(tier: dict[str, Any]) -> str:
    gpus = f", {tier['gpus']} GPU" if tier["gpus"] else ""
    return f"{minutes(tier['budget_s'])}{gpus}, data {tier['data_state']}"


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
            "summary": agent.summary,
        }
        for agent in all_agents().values()
    ]
    if as_json:
        sys.stdout.write(to_json(found) + "\n")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("agent", "kind", "version", "usable", "needs", "what it does"):
        table.add_column(name)
    for row in found:
        usable = "yes" if row["installed"] else "no"
        cells = (row["name"], row["kind"], row["version"] or "", usable, row["needs"], row["summary"])
        table.add_row(*(Text(str(cell)) for cell in cells))
    Console().print(table)
