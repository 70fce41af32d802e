"""How long a box takes to start: from the call on the host to the first instruction of the command inside.

    python benchmarks/box_start.py [--runs 50] [--json]

Both sides read CLOCK_MONOTONIC, which is the same inside and outside. The box is an agent's: workspace, data, tools,
a locked file, the Python runtime. Three figures, in milliseconds:

    set up         from the call until everything is built and the command is released
    first          until the first instruction of a small native program (needs gcc)
    first Python   until the first line of a Python program, the interpreter's own start included

Target: median to the first instruction under 50 ms. Exit code 1 if it is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proctor.box.base import Bind, BoxSpec
from proctor.box.registry import get_kind
from proctor.box.runtime import default_python
from proctor.inbox import BIN
from proctor.spec import GIB, Limits

TARGET_S = 0.05
NATIVE = r"""
#include <stdio.h>
#include <time.h>
int main(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%ld.%09ld\n", (long)now.tv_sec, now.tv_nsec);
    return 0;
}
"""
PYTHON = "import time; print(repr(time.monotonic()))"


class Starter:
    """Starts boxes like an agent's in a folder, one after another."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kind = get_kind("bwrap")
        self._kind.capabilities()  # probing this machine is done once in a process, and is not what is measured
        for name in ("data", "workspace"):
            (root / name).mkdir()
        for name in ("locked.py", "workspace/locked.py"):
            (root / name).write_text("")

    def spec(self, *argv: str) -> BoxSpec:
        """An agent's box that runs a command."""
        python = default_python()
        return BoxSpec(
            name="benchmark",
            argv=argv,
            cwd="/workspace",
            env={"PATH": f"/opt/proctor/bin:{os.path.dirname(python)}:/usr/bin:/bin", "HOME": "/home/agent"},
            binds=(
                Bind(self._root / "workspace", "/workspace", writable=True),
                Bind(self._root / "data", "/data"),
                Bind(BIN, "/opt/proctor/bin"),
                Bind(self._root / "locked.py", "/workspace/locked.py"),
            ),
            stdout=self._root / "out",
            stderr=self._root / "err",
            python=python,
            limits=Limits(memory_bytes=4 * GIB),
        )

    def once(self, *argv: str) -> tuple[float, float]:
        """Seconds until the box is set up, and until the time that the command prints."""
        spec = self.spec(*argv)
        spec.stdout.unlink(missing_ok=True)
        began = time.monotonic()
        box = self._kind.start(spec)
        set_up = time.monotonic() - began
        box.wait(30.0)
        box.close()
        return set_up, float(spec.stdout.read_text()) - began


def build_native(workspace: Path) -> str | None:
    """Compile the native program into the workspace; its path inside, or None without a compiler."""
    if shutil.which("gcc") is None:
        return None
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", workspace / "first"], input=NATIVE.encode(), check=True)
    return "/workspace/first"


def measure(runs: int, root: Path) -> dict[str, list[float]]:
    """Seconds of each figure; native and Python starts alternate, so that both see the same machine."""
    starter = Starter(root)
    native = build_native(root / "workspace")
    found: dict[str, list[float]] = {"set_up": [], "first": [], "first_python": []}
    for _ in range(runs):
        if native:
            set_up, first = starter.once(native)
            found["first"].append(first)
            found["set_up"].append(set_up)
        set_up, first = starter.once(default_python(), "-I", "-S", "-c", PYTHON)
        found["first_python"].append(first)
        if not native:
            found["set_up"].append(set_up)
    return {name: values for name, values in found.items() if values}


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Median, ninth decile and largest, in seconds."""
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p90": ordered[max(0, -(-9 * len(ordered) // 10) - 1)],
        "max": ordered[-1],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proctor-start-") as folder:
        summary = {name: summarise(values) for name, values in measure(options.runs, Path(folder)).items()}
    first = summary.get("first", summary["first_python"])
    met = first["median"] < TARGET_S
    load = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"runs": options.runs, "met": met, "load": load, **summary}))
        return 0 if met else 1
    print(f"start of a box, {options.runs} runs, milliseconds; load {load:.1f}")
    table = Table(box=None)
    for name in ("", "median", "p90", "max"):
        table.add_column(name, justify="right" if name else "left")
    for name, figures in summary.items():
        table.add_row(name.replace("_", " "), *(f"{1000 * value:.1f}" for value in figures.values()))
    Console(width=100).print(table)
    print(f"target: median to the first instruction < {1000 * TARGET_S:.0f} ms: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
