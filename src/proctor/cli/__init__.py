"""The command line: one thin module a command group; no logic here."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import typer
from rich.console import Console

from proctor import __version__
from proctor.cli.terminal import console, say
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

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 must not end a command
    # Only what a person must read goes to stderr; stdout is for results.
    stderr = console(stderr=True)
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        say(stderr, "interrupted", style="red")
        sys.exit(EXIT_INTERRUPTED)
    except InfrastructureError as error:
        _say(stderr, error)
        sys.exit(EXIT_INFRASTRUCTURE)
    except (UsageError, ProctorError) as error:
        _say(stderr, error)
        sys.exit(EXIT_USAGE)
    except BrokenPipeError:  # the reader of a pipe has gone: nothing to say to anyone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except UsageFault as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except OSError as error:  # a disk, a permission: this machine's, and named
        where = f" ({error.filename})" if error.filename else ""
        _say(stderr, InfrastructureError(f"{error.strerror or error}{where}"))
        sys.exit(EXIT_INFRASTRUCTURE)
    sys.exit(code if isinstance(code, int) else 0)


def _say(target: Console, error: ProctorError) -> None:
    say(target, f"error: {error.message}", style="red")
    if error.hint:
        say(target, f"  -> {error.hint}")
