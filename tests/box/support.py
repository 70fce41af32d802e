"""Starting a box for a test, and seeing that nothing of it stays behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from proctor.box.base import Bind, Box, BoxSpec
from proctor.box.bwrap import bwrap_path, probed
from proctor.box.cgroup import find_base
from proctor.box.registry import get_kind
from proctor.box.runtime import default_python
from proctor.box.tree import descendants, state

SYSTEM_PYTHON = "/usr/bin/python3"
STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
def daemon(name):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(name, "w").write(str(os.getpid()))
            while True:          # holds the output pipe, and writes to it
                time.sleep(0.05); os.write(1, b"still here\\n")
        os._exit(0)
for i in range(3):
    daemon(f"daemon{i}")
time.sleep(0.1 if "leave" in sys.argv else 600)
"""


def box_problem() -> str | None:
    """Why there are no boxes on this machine, or None."""
    if bwrap_path() is None:
        return "there is no bwrap"
    probe = probed()
    return None if probe.identity else "; ".join(probe.capabilities.problems)


needs_box = pytest.mark.skipif(box_problem() is not None, reason=f"no boxes here: {box_problem()}")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has another account for boxes")


@dataclass
class Ended:
    """What a box came to."""

    status: int | None
    out: str
    err: str
    limit: str | None


class Room:
    """Starts boxes in one folder: `workspace/` is writable inside."""

    def __init__(self, root: Path, kind: str = "bwrap") -> None:
        self.root = root
        self.kind = get_kind(kind)
        self.workspace = root / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.out, self.err = root / "out", root / "err"

    def spec(self, *argv: str, **changes: Any) -> BoxSpec:
        for path in (self.out, self.err):
            path.unlink(missing_ok=True)
        inside = self.kind.paths(self.root).workspace
        spec = BoxSpec(
            name="test",
            argv=argv,
            cwd=inside,
            env={"PATH": "/usr/bin:/bin"},
            binds=(Bind(self.workspace, inside, writable=True),),
            stdout=self.out,
            stderr=self.err,
            python=default_python(),
        )
        return replace(spec, **changes)

    def start(self, *argv: str, **changes: Any) -> Box:
        return self.kind.start(self.spec(*argv, **changes))

    def run(self, *argv: str, timeout_s: float = 30.0, **changes: Any) -> Ended:
        """Start a box, wait for its command, close it."""
        return self.finish(self.start(*argv, **changes), timeout_s)

    def finish(self, box: Box, timeout_s: float = 30.0) -> Ended:
        status = box.wait(timeout_s)
        limit = box.limit_hit()
        box.close()
        return Ended(
            status, self.out.read_text(errors="backslashreplace"), self.err.read_text(errors="backslashreplace"), limit
        )

    def shell(self, script: str, **changes: Any) -> Ended:
        return self.run("/bin/sh", "-c", script, **changes)

    def python(self, code: str, **changes: Any) -> Ended:
        return self.run(default_python(), "-I", "-c", code, **changes)


def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Wait for something that another process does."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def own_groups() -> set[str]:
    """This process's control groups."""
    base = find_base()
    return {path.name for path in base.path.glob(f"proctor-{os.getpid()}-*")} if base else set()


def descriptors() -> dict[int, str]:
    """What this process has open; the folder that is being listed is left out."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def living_below() -> set[int]:
    """Processes that descend from this one and live."""
    return {pid for pid in descendants(os.getpid()) if state(pid) not in ("", "Z")}
