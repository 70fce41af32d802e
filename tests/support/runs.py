"""Whole runs of the toy task, in this process or as workers. For tests of running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from proctor.jsonio import read_lines
from proctor.run.folder import RunFolder
from proctor.run.plan import Order, plan
from proctor.run.worker import work
from proctor.scoring.scorelog import read_scores
from proctor.spec import GIB, MIB, Limits, Result, ScoreEntry

LIMITS = Limits(memory_bytes=GIB, tmp_bytes=64 * MIB)
NOW = datetime(2026, 11, 30, tzinfo=UTC)


def script(folder: Path, text: str, name: str = "agent.sh") -> str:
    """An executable shell script, as `--agent` names it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"command:{path}"


def planned(root: Path, agent: str, task: str = "toy", **order: Any) -> RunFolder:
    """One planned run; `agent` as on the command line, or the text of a shell script."""
    named = agent.split(":")[0] in ("starter", "reference", "tuner", "command", "files")
    values: dict[str, Any] = {
        "tasks": [task],
        "agents": [agent if named else script(root / "agents", agent)],
        "budget_s": 20.0,
        "silent_snapshots": 0,
        "limits": LIMITS,
        "out": root / "experiment",
        **order,
    }
    (run,) = plan(Order(**values), NOW).runs
    return run


def ran(root: Path, agent: str, task: str = "toy", **order: Any) -> tuple[RunFolder, Result]:
    """One run, done."""
    run = planned(root, agent, task, **order)
    return run, work(run)


def entries(run: RunFolder) -> list[ScoreEntry]:
    return read_scores(run.scores)


def events(run: RunFolder) -> list[str]:
    return [str(line["event"]) for line in read_lines(run.events)]


def answers(run: RunFolder) -> list[dict[str, Any]]:
    """What the agent's tools printed."""
    return [json.loads(line) for line in run.stdout.read_text().splitlines() if line.startswith("{")]


def worker(run: RunFolder, parent: int | None = None, **environment: str) -> subprocess.Popen[bytes]:
    """The run's worker as a process of its own, as an executor starts it."""
    more = ["--parent", str(parent)] if parent is not None else []
    with run.worker_log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "proctor", "worker", str(run.root), *more],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **environment},
        )


def wait_for(what: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something is true, or fail."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)
