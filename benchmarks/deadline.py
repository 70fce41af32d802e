"""How hard the deadline is: what an agent that will not go costs, from the deadline to its empty process tree.

    python benchmarks/deadline.py [--runs 50] [--budget 0.3] [--grace 0.2] [--json]

The agent ignores SIGTERM, starts a daemon in a session of its own by a double fork, and has a grandchild that holds
the output pipe open and writes to it. For each run, in milliseconds:

    late       from the deadline until it is noticed
    kill       from the end of the grace until no process of the agent is left
    over       from the deadline plus the grace until no process is left: late and kill together

Target: over below 500 ms in every run, and no process left, as seen by a look at the kernel's list of processes after
the fact. Exit code 1 if it is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proctor.box.base import Bind, BoxSpec
from proctor.box.registry import get_kind
from proctor.box.runtime import default_python
from proctor.box.tree import state
from proctor.clock import BudgetClock, SystemClock
from proctor.events import EventLog
from proctor.run.supervise import Supervisor
from proctor.spec import Ended

TARGET_S = 0.5
AGENT = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:                # a daemon: its own session, its parent gone
    os.setsid()
    if os.fork() == 0:
        open("daemon", "w").close()
        time.sleep(600)
    os._exit(0)
if os.fork() == 0:
    if os.fork() == 0:            # a grandchild that holds the output and floods it
        open("grandchild", "w").close()
        while True:
            os.write(1, b"still here\\n" * 1000)
    os.wait()
open("agent", "w").close()
while True:
    time.sleep(600)
"""
PARTS = ("agent", "daemon", "grandchild")


@dataclass(frozen=True)
class Run:
    """One deadline; seconds."""

    late: float
    kill: float
    survivors: int

    @property
    def over(self) -> float:
        return self.late + self.kill


def once(root: Path, budget_s: float, grace_s: float) -> Run:
    """Let one agent run into its deadline."""
    workspace = root / "workspace"
    workspace.mkdir(parents=True)
    kind = get_kind("bwrap")
    python = default_python()
    box = kind.start(
        BoxSpec(
            name="benchmark",
            argv=(python, "-I", "-S", "-c", AGENT),
            cwd="/workspace",
            env={"PATH": "/usr/bin:/bin"},
            binds=(Bind(workspace, "/workspace", writable=True),),
            stdout=root / "out",
            stderr=root / "err",
            python=python,
        )
    )
    while not all((workspace / part).exists() for part in PARTS):
        time.sleep(0.001)
    pids = box.pids()
    clock = BudgetClock(budget_s, SystemClock())
    supervisor = Supervisor(box, clock, EventLog(root / "events.jsonl", SystemClock()), grace_s, lambda: None)
    clock.start()
    ending = supervisor.watch()
    survivors = [pid for pid in pids if state(pid) not in ("", "Z")]
    total = clock.elapsed()
    box.close()
    if ending.ended is not Ended.DEADLINE or len(pids) < len(PARTS):
        raise SystemExit(f"not the run that was to be measured: {ending}, {len(pids)} processes")
    return Run(
        late=total - ending.kill_s - budget_s,
        kill=ending.kill_s - grace_s,
        survivors=len(survivors) + (not ending.tree_empty),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--budget", type=float, default=0.3, help="seconds")
    parser.add_argument("--grace", type=float, default=0.2, help="seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proctor-deadline-") as folder:
        runs = [once(Path(folder, str(i)), options.budget, options.grace) for i in range(options.runs)]
    within = sum(run.over < TARGET_S and not run.survivors for run in runs)
    summary = {
        name: {"median": statistics.median(values), "max": max(values)}
        for name in ("late", "kill", "over")
        for values in [[getattr(run, name) for run in runs]]
    }
    met = within == len(runs)
    load = os.getloadavg()[0]
    if options.json:
        survivors = sum(run.survivors for run in runs)
        about = {"runs": len(runs), "within": within, "survivors": survivors, "met": met, "load": load}
        print(json.dumps({**about, **summary}))
        return 0 if met else 1
    print(f"deadline to empty process tree, {len(runs)} runs, milliseconds; load {load:.1f}")
    table = Table(box=None)
    for name in ("", "median", "max"):
        table.add_column(name, justify="right" if name else "left")
    for name, figures in summary.items():
        table.add_row(name, *(f"{1000 * value:.1f}" for value in figures.values()))
    Console(width=100).print(table)
    print(f"target: < {1000 * TARGET_S:.0f} ms and nothing left: {within} of {len(runs)}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
