"""What of the host a box may see: system folders, a few files of /etc, and one Python runtime, all read-only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import proctor
from proctor.errors import InfrastructureError

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "localtime",
    "timezone",
    "mime.types",
    "ssl/certs",
    "ssl/openssl.cnf",
    "OpenCL",
)
SYS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""Processor topology, which OpenMP and CUDA read; nothing else of /sys is shown."""


@dataclass(frozen=True)
class Runtime:
    """An interpreter and the folders that it needs, at their own paths.

    Attributes:
        python: Absolute path of the interpreter.
        roots: Folders to show: the environment's prefix and its base prefix.
        site: The environment's site-packages folders.
    """

    python: str
    roots: tuple[Path, ...]
    site: tuple[Path, ...]


@cache
def runtime_of(python: str) -> Runtime:
    """Ask an interpreter where it lives.

    Raises:
        InfrastructureError: There is no such interpreter, or it does not answer.
    """
    code = (
        "import json,sys,sysconfig;print(json.dumps([sys.executable,sys.prefix,sys.base_prefix,sys.exec_prefix,"
        "sys.base_exec_prefix,sysconfig.get_path('purelib'),sysconfig.get_path('platlib')]))"
    )
    try:
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True)
        executable, *places = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InfrastructureError(
            f"the interpreter {python} does not answer: {error}", "name another one with --python"
        ) from None
    prefixes = [Path(p) for p in places[:4]]
    # A venv's interpreter is a chain of links; each link's folder must exist in the box for the chain to hold.
    link = Path(executable)
    while link.is_symlink():
        link = Path(os.path.normpath(link.parent / os.readlink(link)))
        prefixes.append(link.parent.parent)
    site = tuple(dict.fromkeys(Path(p) for p in places[4:]))
    roots = tuple(p for p in dict.fromkeys(prefixes) if p != Path("/") and p.is_dir())
    return Runtime(executable, _outermost(roots), site)


def _outermost(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Without the folders that lie inside another one of the list or inside the system folders."""
    system = tuple(Path(s) for s in SYSTEM)
    return tuple(
        p
        for p in paths
        if not any(p != q and p.is_relative_to(q) for q in paths) and not any(p.is_relative_to(s) for s in system)
    )


def own_paths(runtime: Runtime) -> tuple[Path, ...]:
    """Where Proctor itself lies on this host: its package, its metadata, and where an editable install points."""
    found = [Path(proctor.__file__).resolve().parent]
    for site in runtime.site:
        found += [site / "proctor", *site.glob("proctor-*.dist-info"), *site.glob("__editable__*proctor*")]
    return tuple(p for p in dict.fromkeys(found) if p.exists())


def default_python() -> str:
    """The interpreter whose runtime boxes get unless a run names another."""
    return os.environ.get("PROCTOR_PYTHON") or sys.executable
