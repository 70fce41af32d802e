"""Shared by all tests: caches and locks of their own, the toy task, and a look at what was left behind."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
TOYS = ("TASK", "TIMED", "BLIND", "CAPPED", "FAULTY")
SERVICE_THREADS = ("broker", "request", "refill", "retire", "silent", "disk", "exit", "output", "limits")


@pytest.fixture(scope="session", autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test touches the user's cache or the machine's locks; the toy tasks are known here and in subprocesses."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    settings = {
        "PROCTOR_CACHE": str(shared / "proctor-cache"),
        "PROCTOR_LOCKS": str(shared / "proctor-locks"),
        "PROCTOR_TASKS": ",".join(f"tests.support.toy.task:{name}" for name in TOYS),
        "PYTHONPATH": python_path,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        patch.delenv("COLUMNS", raising=False)
        yield


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A temporary folder that other users can reach; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="proctor-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    """Fails a test that leaves a process, a thread of a run, a descriptor or a cgroup behind."""
    me = psutil.Process()
    before = _alive(me)
    yield
    until = time.monotonic() + 5.0
    while (left := _alive(me) - before) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left, f"left behind: {dict(left)}"


def _alive(me: psutil.Process) -> Counter[str]:
    """What this process holds, counted."""
    found: Counter[str] = Counter()
    for process in me.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue  # it has ended: while a box of kind `none` is there, orphans of others become ours as well
            found[f"process {process.pid} {process.name()} {' '.join(process.cmdline())[:200]}"] += 1
    found.update(f"thread {t.name}" for t in threading.enumerate() if t.name.split("-")[0] in SERVICE_THREADS)
    with suppress(FileNotFoundError):  # going at this very moment
        found.update(f"cgroup {path.name}" for path in Path("/sys/fs/cgroup").glob(f"**/proctor-{os.getpid()}-*"))
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            # "pipe:[4711]" without its number: one pipe is as good as another.
            found[f"descriptor {os.readlink(f'/proc/self/fd/{name}').split(':[')[0]}"] += 1
    return found


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """`proctor ...` in this process."""
    return CommandLine(monkeypatch, capfd)


class CommandLine:
    """Calls the console script's function; what it printed and how it exited."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture

    def __call__(self, *arguments: object) -> Said:
        from proctor.cli import main

        self._patch.setattr(sys, "argv", ["proctor", *map(str, arguments)])
        self._capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capture.readouterr()
        return Said(int(ended.value.code or 0), out, err)


class Said:
    """What a command came to."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"
