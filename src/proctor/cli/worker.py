"""`proctor worker RUN_DIR`: what executors launch. Not for hands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proctor.cli import EXIT_INFRASTRUCTURE, app
from proctor.run.folder import RunFolder
from proctor.run.worker import work
from proctor.spec import Ended


@app.command("worker", hidden=True)
def worker_command(
    run_dir: Annotated[Path, typer.Argument(help="Run folder with a run.json.")],
    parent: Annotated[int | None, typer.Option(help="End cleanly when this process is gone.")] = None,
) -> None:
    """Do one planned run."""
    result = work(RunFolder(run_dir), parent=parent)
    if result.ended is Ended.INFRASTRUCTURE:
        raise typer.Exit(EXIT_INFRASTRUCTURE)
