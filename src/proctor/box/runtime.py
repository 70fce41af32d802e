"""What of the host a box may see: system folders, a few files of /etc, and one Python runtime, all read-only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
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


PREFIX_PARTS = (
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libexec",
    "include",
    "share",
    "ssl",
    "pyvenv.cfg",
    "nvvm",
    "targets",
    "compiler_compat",
    "x86_64-conda-linux-gnu",
    "aarch64-conda-linux-gnu",
)
"""What an installation of Python, a virtual environment or a conda environment consists of. Only these are shown of
a prefix: it may be a source tree, or somebody's home folder, that an environment was made in."""
SHOWN_ANYWAY = (Path("/"), Path("/usr"), Path("/usr/local"))
"""Prefixes of system interpreters, which the system folders show."""
PLUGINS = ("proctor.tasks", "proctor.agents")
"""Entry-point groups whose packages hold answers."""


@dataclass(frozen=True)
class Runtime:
    """An interpreter and what it needs, at its own paths.

    Attributes:
        python: Absolute path of the interpreter.
        parts: Folders and files to show: those of the environment's prefix and of its base prefix.
        site: Every site-packages folder among them.
    """

    python: str
    parts: tuple[Path, ...]
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
    roots = [p for p in dict.fromkeys(prefixes) if p not in SHOWN_ANYWAY and p.is_dir()]
    parts = [root / name for root in roots for name in PREFIX_PARTS if (root / name).exists()]
    site = [Path(p) for p in places[4:]]
    for root in (*roots, *SHOWN_ANYWAY):
        site += [*root.glob("lib*/python3*/site-packages"), *root.glob("lib*/python3*/dist-packages")]
    return Runtime(executable, tuple(dict.fromkeys(parts)), tuple(dict.fromkeys(site)))


def own_paths(runtime: Runtime) -> tuple[Path, ...]:
    """What holds scorers, reference solutions or generators: Proctor's package and those of plug-ins, wherever they
    lie among what a runtime shows, their metadata, and the source tree that an editable install points to.
    """
    package = Path(proctor.__file__).resolve().parent
    found = [package, *_source_tree(package)]
    for name in _packages():
        found += _place(name)
        distribution = name.replace("_", "[-_]")
        for site in runtime.site:
            found += [site / name, site / f"{name}.py"]
            found += [*site.glob(f"{distribution}-*.dist-info"), *site.glob(f"{distribution}.egg-info")]
            found += [*site.glob(f"__editable__*{distribution}*"), *site.glob(f"{distribution}.egg-link")]
    return tuple(p for p in dict.fromkeys(found) if p.exists())


def _source_tree(package: Path) -> list[Path]:
    """The checkout that a package lies in, if it is not installed: its history and tests are as telling as itself."""
    return [folder for folder in package.parents if (folder / ".git").exists()][:1]


@cache
def _packages() -> tuple[str, ...]:
    """Top-level names of Proctor and of every plug-in."""
    modules = [point.module for group in PLUGINS for point in entry_points(group=group)]
    modules += [place.strip().partition(":")[0] for place in os.environ.get("PROCTOR_TASKS", "").split(",")]
    return tuple(dict.fromkeys(["proctor", *(module.split(".")[0] for module in modules if module)]))


def _place(name: str) -> list[Path]:
    """Where this interpreter would import a package from."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(place) for place in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else []


def default_python() -> str:
    """The interpreter whose runtime boxes get unless a run names another."""
    return os.environ.get("PROCTOR_PYTHON") or sys.executable
