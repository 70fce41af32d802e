"""Laying out what the agent finds in its box: the workspace, the locked files, the tools, the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from proctor.agents.base import Launch
from proctor.box.base import Bind, BoxKind, BoxPaths, BoxSpec
from proctor.data.assets import Assets, cache_root
from proctor.errors import InfrastructureError, UsageError
from proctor.inbox import BIN
from proctor.run.folder import RunFolder
from proctor.spec import Protocol, RunSpec
from proctor.tasks.base import Task

RESERVED = ("PROMPT.md", "program.md")
GPU_CHECK_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Room:
    """What boxes of a run have in common.

    Attributes:
        python: Interpreter of the runtime.
        devices: Device nodes of the lease.
        env: Environment that the task and the lease ask for.
        hidden: Host paths that no box may see.
    """

    kind: BoxKind
    python: str
    devices: tuple[str, ...]
    env: Mapping[str, str]
    hidden: tuple[Path, ...]


def write_files(folder: Path, files: Mapping[str, bytes], executable: frozenset[str] = frozenset()) -> None:
    """Write files by relative path; anything that would leave the folder is refused."""
    for name, content in files.items():
        plain = PurePosixPath(name)
        if plain.is_absolute() or ".." in plain.parts:
            raise UsageError(f"{name!r} would lie outside of the workspace")
        path = folder / plain
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if name in executable:
            path.chmod(0o755)


def lay_out(folder: RunFolder, spec: RunSpec, task: Task, launch: Launch, prompt: str) -> Path:
    """Fill the workspace; the host folder with the agent's own files is returned.

    The agent's files (`files:DIR`, the reference) lie over the starting solution, but never over a locked file.
    """
    folder.workspace.mkdir()
    start = task.start_files(spec.tier)
    program = task.program(spec.tier, Protocol(spec.protocol), spec.budget_s)
    write_files(folder.workspace, start)
    kept_out = (*task.locked, *RESERVED)
    write_files(folder.workspace, {k: v for k, v in launch.workspace.items() if k not in kept_out})
    write_files(folder.workspace, {"program.md": program.encode(), "PROMPT.md": prompt.encode()})
    locked = folder.scratch / "locked"
    write_files(locked, {name: start[name] for name in task.locked})
    agent = folder.scratch / "agent"
    agent.mkdir(parents=True, exist_ok=True)
    write_files(agent, launch.files, launch.executable)
    return agent


def agent_box(
    folder: RunFolder, spec: RunSpec, task: Task, assets: Assets, room: Room, launch: Launch, agent: Path
) -> BoxSpec:
    """The agent's box."""
    paths: BoxPaths = room.kind.paths(folder.root)
    home = os.path.dirname(room.python)
    env = {
        "PATH": f"{paths.tools}:{home}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/home/agent" if room.kind.name != "none" else str(folder.scratch / "home"),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "PYTHONUNBUFFERED": "1",
        "PROCTOR_TASK": task.full_id,
        "PROCTOR_TIER": spec.tier,
        "PROCTOR_DEADLINE_S": f"{spec.budget_s:g}",
        "PROCTOR_DATA": paths.data,
        "PROCTOR_SOCKET": paths.socket,
        "PROCTOR_SEED": str(spec.seed + spec.repeat),
        **room.env,
        **launch.env,
    }
    binds = [
        Bind(folder.workspace, paths.workspace, writable=True),
        Bind(assets.public, paths.data),
        Bind(BIN, paths.tools),
        Bind(agent, paths.agent),
        Bind(folder.socket, paths.socket, writable=True),
        *(Bind(folder.scratch / "locked" / name, f"{paths.workspace}/{name}") for name in task.locked),
    ]
    return BoxSpec(
        name="agent",
        argv=launch.argv,
        cwd=paths.workspace,
        env=env,
        binds=tuple(binds),
        stdout=folder.stdout,
        stderr=folder.stderr,
        python=room.python,
        hidden=room.hidden,
        devices=room.devices,
        limits=spec.limits,
        stdin=launch.stdin,
    )


GPU_CHECK = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int(-1)
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
print(f"{code} {count.value}")
"""


def check_gpu(room: Room, folder: RunFolder, count: int) -> None:
    """See that the leased GPUs, and no others, can be used inside a box, before any budget is spent.

    Raises:
        InfrastructureError: They cannot.
    """
    out, err = folder.scratch / "gpu.out", folder.scratch / "gpu.err"
    spec = BoxSpec(
        name="gpu-check",
        argv=(room.python, "-I", "-c", GPU_CHECK),
        cwd="/tmp",
        env={"PATH": "/usr/bin:/bin", **room.env},
        binds=(),
        stdout=out,
        stderr=err,
        python=room.python,
        hidden=room.hidden,
        devices=room.devices,
    )
    box = room.kind.start(spec)
    box.wait(GPU_CHECK_TIMEOUT_S)
    box.close()
    said = out.read_text(errors="replace").strip()
    if said != f"0 {count}":
        tail = err.read_text(errors="replace").strip()[-300:]
        raise InfrastructureError(
            f"inside a box CUDA answers {said or 'nothing'!r} where '0 {count}' (no error, {count} GPUs) was expected"
            + (f": {tail}" if tail else ""),
            "`proctor doctor` shows the devices; is the driver's library in a system folder (ldconfig -p | grep cuda)?",
        )


def hidden_paths(folder: RunFolder) -> tuple[Path, ...]:
    """Host paths that must stay out of sight even if they lie inside the runtime's folders."""
    experiment = folder.root.parent.parent
    return tuple(path for path in (cache_root(), experiment) if path.exists())
