"""What an agent adapter is: how to put one kind of agent into a box and start it.

One adapter a file, found through `proctor.agents.registry` (entry-point group `proctor.agents` for plug-ins).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from proctor import __version__
from proctor.box.base import BoxPaths
from proctor.errors import UsageError
from proctor.spec import RunSpec
from proctor.tasks.base import Task


@dataclass(frozen=True)
class Sitting:
    """What an adapter knows when it prepares a run.

    Attributes:
        spec: The run.
        task: Its task.
        paths: Where things lie in the box.
        prompt: The standard prompt, the same for every agent.
        python: The interpreter of the box's runtime.
    """

    spec: RunSpec
    task: Task
    paths: BoxPaths
    prompt: str
    python: str


@dataclass(frozen=True)
class Launch:
    """How the agent is started.

    Attributes:
        argv: Command in the box, run in the workspace.
        stdin: What it reads from standard input.
        env: Further environment.
        files: Files put read-only into the box's agent folder, by relative path; those in `executable` may be run.
        workspace: Files laid over the starting solution in the workspace, by relative path.
        executable: Names in `files` that get the execute bit.
    """

    argv: tuple[str, ...]
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    workspace: Mapping[str, bytes] = field(default_factory=dict)
    executable: frozenset[str] = frozenset()


class Agent(ABC):
    """One kind of agent."""

    name: ClassVar[str]
    kind: ClassVar[Literal["control", "search", "outside"]]
    """`control`: known solutions; `search`: no language model; `outside`: the user's own program or files."""
    summary: ClassVar[str]
    needs: ClassVar[str] = ""
    """What a user must give or install, in words."""

    def version(self) -> str | None:
        """Version of the agent itself, where it has one."""
        return __version__

    def missing(self) -> str | None:
        """Why the agent cannot be used on this machine, or None."""
        return None

    def check(self, argument: str | None) -> None:
        """Refuse an argument that cannot work, before anything starts.

        Raises:
            UsageError: With what to give instead.
        """
        if argument is not None:
            raise UsageError(f"the agent {self.name} takes nothing after a colon (got {argument!r})")

    @abstractmethod
    def launch(self, sitting: Sitting) -> Launch:
        """How to start it for this run."""
