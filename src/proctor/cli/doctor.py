"""`proctor doctor`: what this machine can enforce and run, and what to do about the rest."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from proctor.agents.registry import all_agents
from proctor.box.registry import KINDS
from proctor.box.runtime import default_python
from proctor.cli import EXIT_INFRASTRUCTURE, app
from proctor.cli.terminal import console, say
from proctor.data.assets import cache_root, data_state
from proctor.gpu import list_gpus
from proctor.hardware import hardware, versions
from proctor.jsonio import to_json
from proctor.tasks.registry import all_tasks


def examine() -> dict[str, Any]:
    """Everything that doctor knows, as plain data."""
    gpus = list_gpus()
    python = default_python()
    boxes: dict[str, dict[str, Any]] = {}
    for kind in KINDS.values():
        able = kind.capabilities()
        boxes[kind.name] = {
            "usable": able.usable,
            "isolated": able.isolated,
            "enforced": able.enforced.model_dump(),
            "problems": list(able.problems),
        }
    tasks = {
        f"{task.id} ({name})": {
            "data": data_state(task, name),
            "gpus": tier.gpus,
            "runs_here": data_state(task, name) != "missing" and len(gpus) >= tier.gpus,
        }
        for task in all_tasks().values()
        for name, tier in task.tiers.items()
    }
    found = versions(python)
    advice = [problem for box in boxes.values() if box["isolated"] or not box["usable"] for problem in box["problems"]]
    if "torch" not in found:
        advice.append(f"torch is not installed in {python}: pip install 'proctor[tasks]'; every task needs it")
    if not gpus:
        advice.append(f"no GPU: {gpus.reason}; mini tiers run, full tiers that need one do not")
    missing = [name.split()[0] for name, task in tasks.items() if task["data"] == "missing"]
    if missing:
        advice.append(f"data is missing for the full tier of {', '.join(missing)}: proctor fetch {' '.join(missing)}")
    advice += [f"agent {a.name}: {why}" for a in all_agents().values() if (why := a.missing())]
    return {
        "hardware": hardware(gpus),
        "versions": found,
        "python": python,
        "cache": str(cache_root()),
        "boxes": boxes,
        "tasks": tasks,
        "advice": advice,
        "ok": boxes["bwrap"]["usable"] and "torch" in found,
    }


@app.command("doctor")
def doctor_command(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say what this machine can enforce and run, and what to do about the rest."""
    report = examine()
    if as_json:
        sys.stdout.write(to_json(report) + "\n")
    else:
        _show(report, console())
    raise typer.Exit(0 if report["ok"] else EXIT_INFRASTRUCTURE)


def _show(report: dict[str, Any], target: Console) -> None:
    machine = report["hardware"]
    gpus = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "none"
    size = f"{machine['cores']:g} cores, {machine['memory_bytes'] / 2**30:.0f} GiB"
    say(target, f"machine   {machine['cpu']}, {size}; GPU: {gpus}")
    say(target, f"versions  {', '.join(f'{k} {v}' for k, v in report['versions'].items())}")
    say(target, f"cache     {report['cache']}")
    for name, box in report["boxes"].items():
        state = "usable" if box["usable"] else "not usable"
        isolation = "isolated" if box["isolated"] else "NO isolation"
        say(target, f"\nbox {name}: {state}, {isolation}", style="bold")
        for what, how in box["enforced"].items():
            say(target, f"  {what:13} {how or 'not enforced'}")
    table = Table(box=None, pad_edge=False, header_style="bold", title=None)
    for column in ("task", "data", "GPUs", "runs here"):
        table.add_column(column)
    for name, task in report["tasks"].items():
        table.add_row(name, task["data"], str(task["gpus"] or ""), "yes" if task["runs_here"] else "no")
    target.print()
    target.print(table)
    if report["advice"]:
        say(target, "\nwhat to do", style="bold")
        for line in report["advice"]:
            say(target, f"  - {line}")
