"""What a run had under it: the machine's facts and the software's versions, for `result.json`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from proctor import __version__
from proctor.errors import InfrastructureError
from proctor.nvml import Gpu, Nvml, system_nvml

PACKAGES = ("torch", "numpy", "triton")
_ASK = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def hardware(gpus: Sequence[Gpu] = (), nvml: Nvml | None = None) -> dict[str, Any]:
    """The machine as this process may use it.

    Args:
        gpus: The GPUs of the run's lease.
        nvml: The driver; the machine's own if None. Asked only if there are GPUs.

    Returns:
        `cpu` (model), `cores` (usable: affinity and cgroup quota, may be fractional), `memory_bytes` (of the machine
        or its cgroup, the less), `kernel`, `python`, `gpus` (list of `name`, `memory_bytes`), `driver`. None where
        unknown.
    """
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": usable_memory(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in gpus],
        "driver": (nvml or system_nvml()).driver() if gpus else None,
    }


@cache
def _versions(python: str) -> tuple[tuple[str, str], ...]:
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK, *PACKAGES],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InfrastructureError(
            f"the Python interpreter {python} does not run: {error}", "name one that does, with the tasks' packages"
        ) from error
    return tuple(found.items())


def versions(python: str) -> dict[str, str]:
    """Versions of Proctor, of an interpreter, and of the packages in it that scores depend on.

    They are read from installed metadata; nothing is imported. A package that is not there has no entry.

    Args:
        python: Path of the interpreter in which task code runs.

    Raises:
        InfrastructureError: The interpreter does not run.
    """
    return {"proctor": __version__, **dict(_versions(python))}


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The processor's name."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    # ARM kernels give no model name.
    return fields.get("model name") or fields.get("Model") or platform.processor() or platform.machine() or None


def usable_cores(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float:
    """Cores that this process may keep busy: its affinity, or the tightest quota of its cgroups if that is less."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    for folder in _groups(root, membership, "cpu"):
        both = _read(folder / "cpu.max").split() or [
            _read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        ]
        quota, period = both[:2]
        if quota.isdigit() and period.isdigit() and int(period):  # "max" and -1 mean no quota
            cores = min(cores, int(quota) / int(period))
    return cores


def usable_memory(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of memory: the machine's, or the tightest limit of this process's cgroups if that is less."""
    memory = int(psutil.virtual_memory().total)
    for folder in _groups(root, membership, "memory"):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if limit.isdigit():
            memory = min(memory, int(limit))
    return memory


def _groups(root: Path, membership: Path, controller: str) -> Iterable[Path]:
    """Folders of this process's cgroup and of its ancestors, in version 2 and in version 1's tree of a controller."""
    for line in _read(membership).splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            tops = [root, root / "unified"]
        elif controller in controllers.split(","):
            tops = [root / controller, root / controllers]
        else:
            continue
        relative = Path(path.lstrip("/"))
        # Inside a container the tree is often mounted at the container's own group: then only the top is there.
        for below in [relative, *relative.parents]:
            yield from (top / below for top in tops)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
