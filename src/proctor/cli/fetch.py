"""`proctor fetch`: the published data of full tiers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from proctor.cli import app
from proctor.cli.run import split_list
from proctor.data.assets import raw_dir
from proctor.data.fetch import fetch
from proctor.errors import UsageError
from proctor.tasks.registry import get_task


@app.command("fetch")
def fetch_command(
    tasks: Annotated[list[str], typer.Argument(help="Tasks whose published data is wanted.")],
    source: Annotated[
        Path | None, typer.Option("--from", help="Take the files from this folder (or file) instead of the network.")
    ] = None,
) -> None:
    """Fetch the published data of a task's full tier, checked by size and hash."""
    if source is not None and not source.exists():
        raise UsageError(f"{source} does not exist", "give the folder that holds the files")
    console = Console(stderr=True)
    for task in map(get_task, split_list(tasks)):
        if not task.files:
            console.print(f"{task.id}: nothing to fetch; its data is generated", highlight=False)
            continue
        for licence in dict.fromkeys(file.licence for file in task.files):
            console.print(f"{task.id}: {licence}", highlight=False, markup=False)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, transient=True) as bars:
            known: dict[str, TaskID] = {}

            def show(name: str, done: int, total: int, bars: Progress = bars, known: dict[str, TaskID] = known) -> None:
                if name not in known:
                    known[name] = bars.add_task(name, total=total)
                bars.update(known[name], completed=done, total=total)

            fetch(task.files, raw_dir(task), source=source, progress=show)
        console.print(f"{task.id}: ready in {raw_dir(task)}", highlight=False, markup=False, soft_wrap=True)
