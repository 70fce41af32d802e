"""`proctor report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from proctor.cli import app
from proctor.cli.terminal import console, say
from proctor.errors import UsageError
from proctor.report import FORMATS, load, render, terminal_table, write
from proctor.run.plan import open_experiment
from proctor.run.recover import close_dead


@app.command("report")
def report_command(
    folders: Annotated[list[Path], typer.Argument(help="Experiment folders.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write (.html, .md, ...).")] = None,
    form: Annotated[str | None, typer.Option("--format", help="html, md, csv or json.")] = None,
) -> None:
    """Report on one or more experiments."""
    chosen = form or (output.suffix.lstrip(".").lower() or None if output else None)
    chosen = {"htm": "html", "markdown": "md"}.get(chosen or "", chosen)
    if chosen is not None and chosen not in FORMATS:
        raise UsageError(f"there is no report format {chosen!r}", f"formats: {', '.join(FORMATS)}")
    for folder in folders:
        if (folder / "experiment.json").exists():
            for run in open_experiment(folder).runs:
                close_dead(run)
    records = load(folders)
    if output is not None:
        write(records, output, chosen or "html")
        say(console(stderr=True), f"wrote {output}")
    elif chosen is not None:
        sys.stdout.write(render(records, chosen))
    else:
        console().print(terminal_table(records))
