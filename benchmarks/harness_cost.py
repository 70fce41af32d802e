"""What sitting in the exam costs an agent that never asks for a score: its clock against the same work without exam.

    python benchmarks/harness_cost.py [--pairs 10] [--seconds 5] [--json]

One script, processor-bound and of a fixed amount of work, is run twice in each pair, in an order that alternates:

    exam    as the agent of a full run: score broker, a candidate box kept warm, silent snapshots, disk and limits
            watched. What is taken is the run's own clock (`used_s` of its result).
    bare    in the same box, started directly; from the start of its command to its end, by the host's clock.

The ratio exam : bare is taken within each pair, so that a machine that is slower for a while is so for both. Shown is
the median of the ratios with an interval for it (95 %, from order statistics, no assumption about the distribution),
and beside it the ratio of the fastest of each, which other load on the machine disturbs least.
Target: median at most 1.01. Exit code 1 if it is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
os.environ["PROCTOR_TASKS"] = "tests.support.toy.task:TASK"  # a task that needs no torch

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from proctor.agents.base import Sitting  # noqa: E402
from proctor.agents.registry import get_agent  # noqa: E402
from proctor.box.base import Bind, BoxSpec  # noqa: E402
from proctor.box.registry import get_kind  # noqa: E402
from proctor.box.runtime import default_python  # noqa: E402
from proctor.clock import SystemClock  # noqa: E402
from proctor.inbox import BIN  # noqa: E402
from proctor.run.folder import RunFolder  # noqa: E402
from proctor.run.plan import Order, plan  # noqa: E402
from proctor.run.worker import work  # noqa: E402
from proctor.spec import Ended  # noqa: E402
from proctor.tasks.registry import get_task  # noqa: E402

TARGET = 1.01
SCRIPT = """\
#!/usr/bin/env python3
with open("answer.json", "w") as stream:
    stream.write('{{"slope": 2.0}}')
total = 0
for i in range({rounds}):
    total += i * i % 7
"""


TRIAL_ROUNDS = 3_000_000


def write_script(path: Path, rounds: int) -> None:
    path.write_text(SCRIPT.format(rounds=rounds))
    path.chmod(0o755)


def planned(root: Path, script: Path, seconds: float) -> RunFolder:
    """One run with the script as its agent. The budget sets when the silent snapshots fall: all within the script."""
    order = Order(
        tasks=["toy"], agents=[f"command:{script}"], budget_s=max(20.0, 4 * seconds), silent_snapshots=48, out=root
    )
    (run,) = plan(order, SystemClock().now()).runs
    return run


def in_exam(root: Path, script: Path, seconds: float) -> tuple[float, int]:
    """The clock of a full run, and how many silent snapshots fell into it."""
    run = planned(root, script, seconds)
    result = work(run)
    if result.ended is not Ended.EXITED or result.exit_code != 0 or result.used_s is None:
        raise SystemExit(f"the run did not end as it should: {result.ended} {result.reason}")
    return result.used_s, len(run.silent.read_text().splitlines())


def bare(root: Path, script: Path) -> float:
    """The same script in the same kind of box, and nothing around it."""
    root.mkdir()
    run = planned(root / "plan", script, 5.0)
    spec, task, kind = run.spec(), get_task("toy"), get_kind("bwrap")
    paths, python = kind.paths(root), default_python()
    launch = get_agent("command").launch(Sitting(spec, task, paths, "", python))
    for name in ("workspace", "data", "agent"):
        (root / name).mkdir()
    for name, content in launch.files.items():
        (root / "agent" / name).write_bytes(content)
        (root / "agent" / name).chmod(0o755)
    box = kind.start(
        BoxSpec(
            name="bare",
            argv=launch.argv,
            cwd=paths.workspace,
            env={"PATH": f"{paths.tools}:{os.path.dirname(python)}:/usr/bin:/bin", "HOME": "/home/agent"},
            binds=(
                Bind(root / "workspace", paths.workspace, writable=True),
                Bind(root / "data", paths.data),
                Bind(BIN, paths.tools),
                Bind(root / "agent", paths.agent),
            ),
            stdout=root / "out",
            stderr=root / "err",
            python=python,
            limits=spec.limits,
            stdin=launch.stdin,
        )
    )
    began = time.monotonic()
    status = box.wait()
    seconds = time.monotonic() - began
    box.close()
    if status != 0:
        raise SystemExit(f"the script ended with status {status}: {(root / 'err').read_text()}")
    return seconds


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """An interval for the median by order statistics; the whole range where there are too few values."""
    ordered, n = sorted(values), len(values)
    below = 0.0
    for k in range(n // 2):
        below += math.comb(n, k) / 2**n
        if 2 * below > 1 - level:
            return ordered[max(0, k - 1)], ordered[n - max(1, k)]
    return ordered[0], ordered[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="of the script, about")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    snapshots = 0
    with tempfile.TemporaryDirectory(prefix="proctor-cost-") as folder:
        root = Path(folder)
        os.environ["PROCTOR_CACHE"] = str(root / "cache")
        script = root / "work.py"
        write_script(script, TRIAL_ROUNDS)
        trial = min(bare(root / f"trial{i}", script) for i in range(2))
        write_script(script, int(TRIAL_ROUNDS * options.seconds / trial))
        for i in range(options.pairs):
            alone = bare(root / f"b{i}", script) if i % 2 else None
            exam, taken = in_exam(root / f"e{i}", script, options.seconds)
            pairs.append((exam, alone if alone is not None else bare(root / f"b{i}", script)))
            snapshots += taken
    ratios = [exam / alone for exam, alone in pairs]
    median, (low, high) = statistics.median(ratios), median_interval(ratios)
    met = median <= TARGET
    about = {
        "pairs": len(pairs),
        "exam_s": statistics.median(exam for exam, _ in pairs),
        "bare_s": statistics.median(alone for _, alone in pairs),
        "ratio": median,
        "ratio_of_fastest": min(exam for exam, _ in pairs) / min(alone for _, alone in pairs),
        "interval": [low, high],
        "silent_snapshots": snapshots,
        "load": os.getloadavg()[0],
        "met": met,
    }
    if options.json:
        print(json.dumps({**about, "ratios": ratios}))
        return 0 if met else 1
    print(f"cost of the harness, {len(pairs)} pairs; load {about['load']:.1f}")
    table = Table(box=None)
    for name in ("", "median"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("exam", f"{about['exam_s']:.3f} s")
    table.add_row("bare", f"{about['bare_s']:.3f} s")
    table.add_row("ratio", f"{median:.4f} (95 % interval {low:.4f} to {high:.4f})")
    table.add_row("ratio of the fastest", f"{about['ratio_of_fastest']:.4f}")
    table.add_row("silent snapshots in all", str(snapshots))
    Console(width=100).print(table)
    print(f"target: ratio at most {TARGET}: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
