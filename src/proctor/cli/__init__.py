"""The command line: one thin module a command group; no logic here."""

from __future__ import annotations

import sys
from typing import Any

import typer
from rich.console import Console

from proctor import __version__
from proctor.errors import InfrastructureError, ProctorError, UsageError

# What Typer raises for a wrong option or a missing argument: the root of its parameter errors, whichever click it
# carries.
UsageFault: Any = typer.BadParameter.__mro__[2]
EXIT_USAGE = 1
EXIT_INFRASTRUCTURE = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="proctor",
    help="Sits coding agents, and people, down for machine-learning research exams.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"proctor {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Sits coding agents, and people, down for machine-learning research exams."""


def main() -> None:
    """The console script: runs a command, and turns faults into words and exit codes."""
    from proctor.cli import doctor, fetch, listing, report, run, score, worker  # noqa: F401  (they register commands)

    # Only what a person must read goes to stderr; stdout is for results.
    console = Console(stderr=True)
    try:
        code = app(standalone_mode=False)
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except KeyboardInterrupt:
        console.print("interrupted", style="red")
        sys.exit(EXIT_INTERRUPTED)
    except InfrastructureError as error:
        _say(console, error)
        sys.exit(EXIT_INFRASTRUCTURE)
    except (UsageError, ProctorError) as error:
        _say(console, error)
        sys.exit(EXIT_USAGE)
    except BrokenPipeError:  # the reader of a pipe has gone: nothing to say to anyone
        sys.stderr.close()
        sys.exit(0)
    except UsageFault as error:
        error.show()
        sys.exit(EXIT_USAGE)
    sys.exit(code if isinstance(code, int) else 0)


def _say(console: Console, error: ProctorError) -> None:
    console.print(f"error: {error.message}", style="red", markup=False, highlight=False)
    if error.hint:
        console.print(f"  -> {error.hint}", markup=False, highlight=False)
