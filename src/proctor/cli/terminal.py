"""Where the command line writes to. Pipes and CI logs have no width of their own, so they get a wide one."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console

PLAIN_WIDTH = 140


def console(*, stderr: bool = False) -> Console:
    """stdout (for results) or stderr (for what a person is told meanwhile)."""
    found = Console(stderr=stderr)
    if found.is_terminal:
        return found
    columns = os.environ.get("COLUMNS", "")
    return Console(stderr=stderr, width=max(PLAIN_WIDTH, int(columns) if columns.isdigit() else 0))


def say(target: Console, text: str, **style: Any) -> None:
    """One line as it is: no mark-up, no wrapping in the middle of a path."""
    target.print(text, markup=False, highlight=False, soft_wrap=True, **style)
