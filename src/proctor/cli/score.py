"""`proctor score RUN_DIR`: score a kept artefact again; it must agree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from proctor.cli import app
from proctor.cli.terminal import console, say
from proctor.jsonio import to_json
from proctor.run.folder import RunFolder
from proctor.run.rescore import rescore

EXIT_DISAGREES = 3


@app.command("score")
def score_command(
    run_dir: Annotated[Path, typer.Argument(help="Run folder (EXPERIMENT/runs/ID).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score the artefact that counted once more, in a fresh box, and compare with what is on record."""
    again = rescore(RunFolder(run_dir))
    if as_json:
        told = {name: again[name] for name in ("recorded", "rescored", "equal")}
        sys.stdout.write(to_json(told) + "\n")
    else:
        verdict = "equal" if again["equal"] else "NOT equal"
        say(
            console(),
            f"recorded {again['recorded']}, now {again['rescored']}: {verdict} (tolerance {again['tolerance']:g})",
        )
    if again["message"]:
        say(console(stderr=True), again["message"])
    raise typer.Exit(0 if again["equal"] else EXIT_DISAGREES)
