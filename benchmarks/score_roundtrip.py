"""How long an agent waits for `score`, beyond what its own model needs: measured from inside a real run.

    python benchmarks/score_roundtrip.py [--task forecasting] [--calls 20] [--pause 4] [--json]

The agent runs the starting solution once, then calls `score` again and again, with pauses in which the next candidate
boxes get warm. For each call:

    round trip     from the start of the `score` command to its end, on the agent's own clock
    candidate      host seconds spent waiting for the candidate's operations
    beyond         round trip less candidate: what the exam adds (target: median under 300 ms)
    broker's own   freeze, copy, checks, metric and log (target: median under 50 ms)

Exit code 1 if a target is missed, or if a scoring failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from proctor.clock import SystemClock
from proctor.errors import InfrastructureError
from proctor.run.folder import RunFolder
from proctor.run.plan import Order, plan
from proctor.run.worker import work
from proctor.scoring.scorelog import read_scores
from proctor.spec import ScoreEntry
from proctor.tasks.registry import get_task

TARGET_BEYOND_S = 0.3
TARGET_OWN_S = 0.05
AGENT = """\
#!/usr/bin/env python3
import json, subprocess, sys, time
command, calls, pause = {command!r}, {calls}, {pause}
if command:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
for _ in range(calls):
    time.sleep(pause)
    began = time.perf_counter()
    done = subprocess.run(["score"], stdout=subprocess.PIPE)
    seconds = time.perf_counter() - began
    print(json.dumps({{"round_trip_s": seconds, "status": json.loads(done.stdout)["status"]}}), flush=True)
subprocess.run(["submit"], stdout=subprocess.DEVNULL)
"""


@dataclass(frozen=True)
class Call:
    """One call of `score`; seconds."""

    round_trip: float
    candidate: float
    own: float

    @property
    def beyond(self) -> float:
        return self.round_trip - self.candidate


def measure(task_id: str, calls: int, pause: float, root: Path) -> list[Call]:
    """Run the agent and put its own times beside those of the score log.

    Raises:
        InfrastructureError: A scoring failed, so that there is nothing to measure.
    """
    task = get_task(task_id)
    agent = root / "agent.py"
    agent.write_text(AGENT.format(command=list(task.start_command or ()), calls=calls, pause=pause))
    agent.chmod(0o755)
    budget = task.tiers["mini"].budget_s + calls * (pause + 10.0)
    order = Order(
        tasks=[task_id], agents=[f"command:{agent}"], budget_s=budget, silent_snapshots=0, out=root / "experiment"
    )
    (run,) = plan(order, SystemClock().now()).runs
    result = work(run)
    told = [json.loads(line) for line in run.stdout.read_text().splitlines()]
    logged = [entry for entry in read_scores(run.scores) if entry.origin == "agent"]
    if [line["status"] for line in told] != ["scored"] * calls or len(logged) != calls:
        raise InfrastructureError(f"not every call was scored: {result.reason or _last_message(run)}")
    return [_call(line, entry) for line, entry in zip(told, logged, strict=True)]


def _call(told: dict[str, Any], entry: ScoreEntry) -> Call:
    return Call(told["round_trip_s"], entry.scoring_s - entry.overhead_s, entry.overhead_s)


def _last_message(run: RunFolder) -> str:
    entries = read_scores(run.scores)
    return entries[-1].message if entries else run.stderr.read_text()[-500:]


def summarise(calls: list[Call]) -> dict[str, dict[str, float]]:
    """Median, ninth decile and largest of each quantity, in seconds."""
    found = {}
    for name in ("round_trip", "candidate", "beyond", "own"):
        values = sorted(getattr(call, name) for call in calls)
        decile = values[max(0, -(-9 * len(values) // 10) - 1)]
        found[name] = {"median": statistics.median(values), "p90": decile, "max": values[-1]}
    return found


def show(task: str, calls: list[Call], summary: dict[str, dict[str, float]]) -> Table:
    """The summary as a table, in milliseconds."""
    targets = {"beyond": TARGET_BEYOND_S, "own": TARGET_OWN_S}
    table = Table(title=f"score on {task} (mini), {len(calls)} calls, milliseconds", box=None, title_justify="left")
    for name in ("", "median", "p90", "max", "target of the median"):
        table.add_column(name, justify="left" if not name else "right")
    for name, figures in summary.items():
        target = targets.get(name)
        verdict = ""
        if target is not None:
            verdict = f"< {1000 * target:.0f}: {'met' if figures['median'] < target else 'MISSED'}"
        table.add_row(name.replace("_", " "), *(f"{1000 * value:.1f}" for value in figures.values()), verdict)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="forecasting", help="any task; its starting solution is what is scored")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between two calls")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proctor-roundtrip-") as folder:
        try:
            calls = measure(options.task, options.calls, options.pause, Path(folder))
        except InfrastructureError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    summary = summarise(calls)
    met = summary["beyond"]["median"] < TARGET_BEYOND_S and summary["own"]["median"] < TARGET_OWN_S
    if options.json:
        print(json.dumps({"task": options.task, "calls": len(calls), "met": met, **summary}))
    else:
        Console(width=100).print(show(options.task, calls, summary))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
