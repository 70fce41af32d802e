"""Score solutions of prefix_sum on a GPU, without boxes: the starting solution, references, and cheats.

    PYTHONPATH=src python benchmarks/prefix_sum_gpu.py [--out DIR] [--only NAME,NAME] [--limit-s 540]

Prints a table and writes prefix_sum_gpu.json into DIR (or $OUT), after every row. A row that fails does not stop the
others. Unless --no-sweep is given, prefix_sum_sweep.py runs last and times the references' constants by events.
With --device cpu and a small --n it is a dry run of the same procedure with the arrays in shared memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.support.local import local_candidate  # noqa: E402

from proctor.errors import InvalidSubmission, ProctorError  # noqa: E402
from proctor.tasks.base import with_constants  # noqa: E402
from proctor.tasks.rebench.prefix_sum import timing  # noqa: E402
from proctor.tasks.rebench.prefix_sum.gpu import JudgeBuffers  # noqa: E402
from proctor.tasks.rebench.prefix_sum.session import Plan, Session, Voided  # noqa: E402
from proctor.tasks.rebench.prefix_sum.task import PLANS, TASK, score  # noqa: E402

START = TASK.start_files("full")["solution.py"].decode()
REFERENCE = TASK.reference_files("full")
HONEST = START.replace("def prefix_sum(", "def honest(") + "\nimport candidate\n"
RETURNS = """
import torch

def plain(x):
    positive = (x > 0).to(torch.int32)
    before = torch.cumsum(positive, 0, dtype=torch.int32) - positive
    return torch.cumsum(x * (before % 2), 0, dtype=torch.int32)

"""
UNSYNCHRONISED = 'candidate.SUBMISSION["synchronise"] = lambda: None\ntorch.cuda.synchronize = lambda *a: None\n'


@dataclass(frozen=True)
class Variant:
    """One submission. `check` False: only its time is taken, since its values are wrong on purpose."""

    name: str
    files: Mapping[str, bytes]
    check: bool = True


def source(name: str, text: str, check: bool = True) -> Variant:
    return Variant(name, {"solution.py": text.encode()}, check)


def reference(name: str, **constants: object) -> Variant:
    """The reference with other constants in its solution.py."""
    text = with_constants(REFERENCE["solution.py"].decode(), constants)
    return Variant(name, {**REFERENCE, "solution.py": text.encode()})


def variants(repeats: int, n: int) -> list[Variant]:
    """All submissions, the ones that matter most first."""
    big = n // 2  # the cheats are honest on small arrays
    return [
        *(source(f"start {i}", START) for i in range(repeats)),
        *(reference(f"reference {i}") for i in range(repeats)),
        source("plain copy (time only)", "def prefix_sum(x, out):\n    out.copy_(x)\n", check=False),
        source(
            "one int32 cumsum (time only)",
            "import torch\ndef prefix_sum(x, out):\n    torch.cumsum(x, 0, dtype=torch.int32, out=out)\n",
            check=False,
        ),
        source("cheat: no synchronise", HONEST + UNSYNCHRONISED + "prefix_sum = honest\n"),
        source(
            "cheat: second stream",
            HONEST + f"{UNSYNCHRONISED}side = torch.cuda.Stream()\n"
            f"def prefix_sum(x, out):\n    if len(x) < {big}: return honest(x, out)\n"
            "    with torch.cuda.stream(side): honest(x, out)\n",
        ),
        source(
            "cheat: second stream, driver synchronises",
            HONEST + f"side = torch.cuda.Stream()\ndef prefix_sum(x, out):\n"
            f"    if len(x) < {big}: return honest(x, out)\n    with torch.cuda.stream(side): honest(x, out)\n",
        ),
        source(
            "cheat: never computes",
            HONEST + f"def prefix_sum(x, out):\n    if len(x) < {big}: honest(x, out)\n",
        ),
        source(
            "cheat: GPU kept busy between calls",
            HONEST + f"{UNSYNCHRONISED}side = torch.cuda.Stream()\n"
            f"def prefix_sum(x, out):\n    honest(x, out)\n    torch.cuda.current_stream().synchronize()\n"
            f"    if len(x) > {big} and side.query():\n"
            "        with torch.cuda.stream(side): torch.cuda._sleep(2_000_000_000)\n",
        ),
        source("cheat: patched clock", HONEST + "import time\nreal = time.perf_counter\n"
               "time.perf_counter = lambda: real() / 1000\nprefix_sum = honest\n"),
        source("start, returning a tensor", RETURNS + "prefix_sum = plain\n"),
        source("start under torch.compile", RETURNS + "prefix_sum = torch.compile(plain)\n"),
        source("start, chunks of 4 Mi", with_constants(START, {"CHUNK": 1 << 22})),
        reference("reference in Triton", IMPLEMENTATION="triton_scan"),
    ]  # fmt: skip


@dataclass
class Row:
    """What came of a variant."""

    name: str
    status: str
    ms: float | None = None
    score: float | None = None
    findings: list[dict[str, str]] = field(default_factory=list)
    message: str = ""
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        time_ms = "" if self.ms is None else f"{self.ms:.4f}"
        said = ", ".join(f["rule"] for f in self.findings) or ("" if self.status == "scored" else self.message[:90])
        spread = f"iqr {self.details['iqr_ms']:.4f}" if "iqr_ms" in self.details else ""
        return f"{self.name:42s} {self.status:9s} {time_ms:>9s} ms  {spread:12s} {self.seconds:5.1f} s  {said}"


def run_variant(variant: Variant, buffers: JudgeBuffers, plan: Plan) -> Row:
    """Score one variant; its failures become rows, the judge's propagate."""
    rng = np.random.default_rng()
    with tempfile.TemporaryDirectory() as folder:
        for name, content in variant.files.items():
            (Path(folder) / name).write_bytes(content)
        env = {name: value for name, value in os.environ.items() if name != "OUT"}
        with local_candidate(TASK.folder / "candidate.py", Path(folder), env) as candidate:
            if not variant.check:
                return time_only(variant, Session(candidate, buffers, plan, rng))
            evaluation = score(candidate, buffers, plan, rng)
    return Row(
        variant.name,
        "scored" if evaluation.score is not None else "void",
        evaluation.details.get("median_ms"),
        evaluation.score,
        [finding.model_dump() for finding in evaluation.findings],
        evaluation.message,
        details=evaluation.details,
    )


def time_only(variant: Variant, session: Session) -> Row:
    """The time of a submission whose values nobody looks at."""
    session.connect()
    copies = session.calibrate()
    session.load()
    batches = [session.batch("run", 60.0) for _ in range(8)][1:]
    figures = timing.analyse(copies, batches)
    details = timing.describe(figures, copies, batches)
    return Row(variant.name, "timed", details["median_ms"], details=details)


def run_all(chosen: list[Variant], plan: Plan, device: str, limit_s: float, out: Path) -> list[Row]:
    """Every variant in turn, on one judge as long as it lives."""
    rows: list[Row] = []
    buffers: JudgeBuffers | None = None
    began = time.monotonic()
    for variant in chosen:
        if time.monotonic() - began > limit_s:
            print(f"{limit_s:g} s are over; left out from here: {variant.name}", flush=True)
            break
        started = time.monotonic()
        try:
            if buffers is None:
                where = "cpu" if device == "cpu" else "cuda"
                buffers = JudgeBuffers(plan.n, plan.pairs, np.random.default_rng(), sys.executable, device=where)  # type: ignore[arg-type]
                print(f"judge ready in {time.monotonic() - started:.1f} s: {buffers.pairs} pairs, "
                      f"{buffers.hardware()}", flush=True)  # fmt: skip
            row = run_variant(variant, buffers, plan)
        except (InvalidSubmission, Voided) as error:
            row = Row(variant.name, "invalid", message=str(error))
        except (ProctorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            row = Row(variant.name, "error", message=f"{type(error).__name__}: {error}")
            if buffers is not None:
                buffers.close()
                buffers = None
        row.seconds = round(time.monotonic() - started, 2)
        rows.append(row)
        print(row.line(), flush=True)
        write(out, plan, rows)
    if buffers is not None:
        buffers.close()
    return rows


def write(out: Path, plan: Plan, rows: list[Row]) -> None:
    text = json.dumps({"plan": asdict(plan), "rows": [asdict(row) for row in rows]}, indent=1)
    (out / "prefix_sum_gpu.json").write_text(text)


def summary(rows: list[Row]) -> None:
    """Mean and spread of the repeated variants' scores."""
    for name in ("start", "reference"):
        scores = [r.score for r in rows if r.name.rsplit(" ", 1)[0] == name and r.score is not None]
        if scores:
            spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan
            print(f"{name}: ln(ms) {np.mean(scores):.4f}, std {spread:.4f} over {len(scores)} scorings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--only", default="", help="comma-separated beginnings of names")
    parser.add_argument("--repeats", type=int, default=3, help="scorings of the start and the reference")
    parser.add_argument("--n", type=int, default=PLANS["full"].n)
    parser.add_argument("--pairs", type=int, default=PLANS["full"].pairs)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit-s", type=float, default=400.0)
    parser.add_argument("--no-sweep", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    plan = replace(PLANS["full"], n=args.n, pairs=args.pairs)
    beginnings = tuple(part for part in args.only.split(",") if part)
    chosen = [v for v in variants(args.repeats, args.n) if not beginnings or v.name.startswith(beginnings)]
    rows = run_all(chosen, plan, args.device, args.limit_s, args.out)
    summary(rows)
    if not args.no_sweep and args.device == "cuda":
        sweep = Path(__file__).with_name("prefix_sum_sweep.py")
        subprocess.run([sys.executable, str(sweep), "--out", str(args.out)], check=False)


if __name__ == "__main__":
    main()
