"""`command:PATH[ ARGS]`: any executable, copied into the box and run in /workspace, the prompt on standard input."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from proctor.agents.base import Agent, Launch, Sitting
from proctor.errors import UsageError


class Command(Agent):
    name = "command"
    kind = "outside"
    summary = "any executable, copied into the box and run in /workspace, the prompt on stdin and in PROMPT.md"
    needs = "command:PATH[ ARGS], an executable"

    def version(self) -> str | None:
        return None

    def check(self, argument: str | None) -> None:
        program, _ = split(argument)
        if not program.is_file():
            raise UsageError(f"{program} is not a file", "write --agent command:PATH or command:'PATH ARGS'")
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
    if not argument:
        raise UsageError("command needs a program", "write --agent command:PATH or command:'PATH ARGS'")
    whole = Path(argument).expanduser()
    if whole.is_file():
        return whole.resolve(), []
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"command:{argument} cannot be read: {error}") from None
    program = Path(words[0]).expanduser()
    if not program.exists() and "/" not in words[0] and (found := shutil.which(words[0])):
        program = Path(found)
    return program.resolve(), words[1:]


AGENT = Command()
