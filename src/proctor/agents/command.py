"""`command:PATH[ ARGS]`: any executable, copied into the box and run in /workspace, the prompt on standard input."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from proctor.agents.base import Agent, Launch, Sitting
from proctor.errors import UsageError

HOW = "write --agent command:PATH or command:'PATH ARGS'"


class Command(Agent):
    name = "command"
    kind = "outside"
    summary = "any executable, copied into the box and run in /workspace, the prompt on stdin and in PROMPT.md"
    needs = "command:PATH[ ARGS], an executable"

    def version(self) -> str | None:
        return None

    def check(self, argument: str | None) -> None:
        program, _ = split(argument)
        if not _is_file(program):
            raise UsageError(f"{program} is not a file", HOW)
        if not os.access(program, os.X_OK):
            raise UsageError(f"{program} cannot be executed", f"chmod +x {shlex.quote(str(program))}")

    def launch(self, sitting: Sitting) -> Launch:
        program, arguments = split(sitting.spec.agent.argument)
        return Launch(
            argv=(f"{sitting.paths.agent}/{program.name}", *arguments),
            stdin=sitting.prompt.encode(),
            files={program.name: program.read_bytes()},
            executable=frozenset({program.name}),
        )


def split(argument: str | None) -> tuple[Path, list[str]]:
    """The program and its arguments. A path with spaces needs no quoting if the whole text names a file."""
    try:
        words = shlex.split(argument or "")
        whole = Path(argument or "").expanduser()
        program = Path(words[0]).expanduser() if words else Path()
    except (ValueError, RuntimeError) as error:  # an open quote; a ~name without a home folder
        raise UsageError(f"command:{argument} cannot be read: {error}", HOW) from None
    if not words:
        raise UsageError("command needs a program", HOW)
    if _is_file(whole):
        return whole.resolve(), []
    if "/" not in words[0] and not _is_file(program) and (found := shutil.which(words[0])):
        program = Path(found)
    return program.resolve(), words[1:]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a long command line is no file name
        return False


AGENT = Command()
