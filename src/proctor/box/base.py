"""The box: what untrusted code lives in, and the protocol that every kind of box fulfils.

A kind declares its capabilities, so that what a run needs is checked before it starts and what a host cannot enforce
stands in the result.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from proctor.spec import Enforced, Limits


@dataclass(frozen=True)
class Bind:
    """A host path shown in the box; read-only unless `writable`."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class BoxPaths:
    """Where things lie for whoever is inside. A kind without a mount namespace has the host's own paths here."""

    workspace: str = "/workspace"
    data: str = "/data"
    agent: str = "/opt/agent"
    tools: str = "/opt/proctor/bin"
    lib: str = "/opt/proctor/lib"
    candidate: str = "/opt/proctor/candidate"
    socket: str = "/run/proctor/broker.sock"


@dataclass(frozen=True)
class BoxSpec:
    """One box to start.

    Attributes:
        name: Short name for events and groups ("agent", "candidate").
        argv: The command, found through PATH of `env` if not absolute.
        cwd: Working directory inside.
        env: The whole environment; nothing of the host's is added.
        binds: What is visible beside the system and the runtime.
        hidden: Host paths that must not be visible even where a bound folder contains them.
        devices: Device nodes to show (`/dev/nvidia0`).
        limits: What it may use.
        fds: Descriptors to leave open in the box.
        stdin: What the command reads from standard input.
        stdout, stderr: Files that take its output, by bytes, up to `limits.output_bytes` each.
        python: Interpreter whose runtime is shown.
        mute: Whether what is inside sees hidden inputs, and must not be able to signal to other boxes through files
            that they share.
    """

    name: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    binds: tuple[Bind, ...]
    stdout: Path
    stderr: Path
    python: str
    hidden: tuple[Path, ...] = ()
    devices: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    fds: tuple[int, ...] = ()
    mute: bool = False
    stdin: bytes = b""


@dataclass(frozen=True)
class Capabilities:
    """What a kind of box can do on this host, found by probing.

    Attributes:
        isolated: Whether anything is kept from the code inside at all.
        enforced: How each limit is held, in words; None where it is not.
        problems: What a person should know or mend, one sentence each.
        usable: Whether a box can be started.
    """

    usable: bool
    isolated: bool
    enforced: Enforced
    problems: tuple[str, ...] = field(default=())


class Box(Protocol):
    """A running box. All methods may be called from any thread, and on a box that has ended."""

    @property
    def name(self) -> str: ...

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Exit status of the command (negative or 128+n: a signal); None if it still runs after `timeout_s`."""
        ...

    def pids(self) -> list[int]:
        """Host pids of every process inside, the box's own helper processes left out."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to every process inside."""
        ...

    def freeze(self) -> None:
        """Stop every process inside; returns when they are stopped.

        Raises:
            InfrastructureError: They could not be stopped; they run on.
        """
        ...

    def thaw(self) -> None: ...

    def kill(self) -> bool:
        """Kill everything inside; whether the process tree was then seen to be empty."""
        ...

    def limit_hit(self) -> str | None:
        """Which limit fired ("memory: ..."), if one did."""
        ...

    def close(self) -> None:
        """Kill what is left, finish the output files, remove what the box left on the host."""
        ...


class BoxKind(Protocol):
    """A way to build boxes."""

    @property
    def name(self) -> str: ...

    def capabilities(self) -> Capabilities:
        """Probe this host (cached)."""
        ...

    def paths(self, root: Path) -> BoxPaths:
        """Where things lie inside. `root` is a host folder of the run that a kind without mounts may use."""
        ...

    def start(self, spec: BoxSpec) -> Box:
        """Start a box.

        Raises:
            InfrastructureError: The box could not be built; nothing of the command has run.
        """
        ...


Process = subprocess.Popen[bytes]
