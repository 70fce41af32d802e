"""`proctor fetch`: the published data of full tiers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from proctor.cli import app
from proctor.cli.run import split_list
from proctor.cli.terminal import console, say
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
    stderr = console(stderr=True)
    for task in map(get_task, split_list(tasks)):
        if not task.files:
            say(stderr, f"{task.id}: nothing to fetch; its data is generated")
            continue
        for licence in dict.fromkeys(file.licence for file in task.files):
            say(stderr, f"{task.id}: {licence}")
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=stderr, transient=True) as bars:
            known: dict[str, TaskID] = {}

            def show(name: str, done: int, total: int, bars: Progress = bars, known: dict[str, TaskID] = known) -> None:
                if name not in known:
                    known[name] = bars.add_task(name, total=total)
                bars.update(known[name], completed=done, total=total)

            fetch(task.files, raw_dir(task), source=source, progress=show)
        say(stderr, f"{task.id}: ready in {raw_dir(task)}")
