"""Where the command line writes to. Pipes and CI logs have no width of their own, so they get a wide one."""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from typing import Any

from rich.console import Console

PLAIN_WIDTH = 140


class Terminal(Console):
    """A console that leaves it to the caller what a closed pipe means; Rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """stdout (for results) or stderr (for what a person is told meanwhile)."""
    found = Terminal(stderr=stderr)
    if found.is_terminal:
        return found
    columns = os.environ.get("COLUMNS", "")
    return Terminal(stderr=stderr, width=max(PLAIN_WIDTH, int(columns) if columns.isdigit() else 0))


def say(target: Console, text: str, **style: Any) -> None:
    """One line as it is: no mark-up, no wrapping in the middle of a path.

    Nobody to tell (stderr is a closed pipe) is no reason to end an exam; a closed stdout is the caller's to judge.
    """
    with suppress(BrokenPipeError) if target.stderr else nullcontext():
        target.print(text, markup=False, highlight=False, soft_wrap=True, **style)
