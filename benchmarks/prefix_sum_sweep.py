"""Time the GPU references of prefix_sum for many values of their constants, by events, beside a plain copy.

    PYTHONPATH=src python benchmarks/prefix_sum_sweep.py [--out DIR] [--kind cuda|triton]

Each kind runs in a process of its own with a time limit, so that a kernel that hangs costs only what is left of its
kind. Prints a table and writes prefix_sum_sweep.json into DIR (or $OUT). Outputs are checked against torch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]
LIMIT_S = {"cuda": 150.0, "triton": 100.0}
N = 100_000_000
PAIRS = 8  # rotated, so that nothing stays in a cache

CUDA = [
    dict(zip(("THREADS", "SEGMENTS", "BLOCKS", "LOOK", "TICKETS"), values, strict=True))
    for values in (
        (256, 16, 3, 1, 1),
        (256, 16, 3, 1, 0),
        (256, 16, 3, 2, 1),
        (256, 16, 4, 1, 1),
        (256, 14, 3, 1, 1),
        (256, 18, 3, 1, 1),
        (256, 20, 3, 1, 1),
        (256, 20, 3, 1, 0),
        (256, 20, 2, 1, 1),
        (256, 24, 2, 1, 1),
        (256, 24, 3, 1, 1),
        (192, 16, 4, 1, 1),
        (192, 16, 5, 1, 1),
        (192, 20, 4, 1, 1),
        (192, 24, 3, 1, 1),
        (192, 24, 4, 1, 1),
        (320, 16, 2, 1, 1),
        (320, 16, 3, 1, 1),
        (384, 16, 2, 1, 1),
        (512, 16, 2, 1, 1),
        (128, 20, 6, 1, 1),
        (128, 24, 6, 1, 1),
        (256, 8, 4, 1, 1),
        (256, 12, 3, 1, 1),
        (256, 12, 4, 1, 1),
        (512, 8, 2, 1, 1),
        (1024, 8, 1, 1, 1),
    )
]
TRITON = [dict(zip(("TILE", "WARPS"), values, strict=True)) for values in ((2048, 4), (4096, 4), (4096, 8), (8192, 8))]


def variants(kind: str) -> tuple[str, list[dict[str, int]]]:
    return ("cuda_scan", CUDA) if kind == "cuda" else ("triton_scan", TRITON)


def measure(kind: str) -> None:
    """Print one JSON line for the plain copy and one for each choice of constants."""
    import torch

    from proctor.tasks.base import with_constants
    from proctor.tasks.rebench.prefix_sum.task import TASK

    files = TASK.reference_files("full")
    module, choices = variants(kind)
    xs = [torch.randint(-10, 10, (N,), dtype=torch.int32, device="cuda") for _ in range(PAIRS)]
    ys = [torch.empty_like(x) for x in xs]
    positive = (xs[0] > 0).to(torch.int32)
    before = torch.cumsum(positive, 0, dtype=torch.int32) - positive
    right = torch.cumsum(xs[0] * (before & 1), 0, dtype=torch.int32)

    def median_ms(function: Callable[[Any, Any], object], repeats: int = 15) -> tuple[float, float]:
        for x, y in zip(xs, ys, strict=True):
            function(x, y)
        times = []
        for _ in range(repeats):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            for x, y in zip(xs, ys, strict=True):
                function(x, y)
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last) / PAIRS)
        times.sort()
        return times[len(times) // 2], times[0]

    def report(name: str, constants: Mapping[str, int], ms: tuple[float, float] | None, said: str) -> None:
        row = {"name": name, "constants": dict(constants), "ms": ms and ms[0], "least_ms": ms and ms[1], "said": said}
        print(json.dumps(row), flush=True)

    report("copy", {}, median_ms(lambda x, y: y.copy_(x)), "")
    for constants in choices:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                text = with_constants(content.decode(), constants) if name == f"{module}.py" else content.decode()
                (Path(folder) / name).write_text(text)
            sys.path.insert(0, folder)
            sys.modules.pop(module, None)
            importlib.invalidate_caches()
            try:
                function = importlib.import_module(module).prefix_sum
                ys[0].fill_(-(2**30))
                function(xs[0], ys[0])
                wrong = int((ys[0] != right).count_nonzero())
                report(module, constants, median_ms(function), f"{wrong} wrong values" if wrong else "right")
            except (RuntimeError, ValueError, TypeError, KeyError, OSError, AttributeError) as error:
                report(module, constants, None, f"{type(error).__name__}: {str(error)[:300]}")
            finally:
                sys.path.remove(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--kind", choices=("cuda", "triton"), help="one kind only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        measure(args.kind)
        return
    rows: list[dict[str, Any]] = []
    for kind in [args.kind] if args.kind else ["cuda", "triton"]:
        with tempfile.TemporaryFile("w+") as sink:
            command = [sys.executable, __file__, "--child", "--kind", kind]
            child = subprocess.Popen(command, stdout=sink, stderr=subprocess.PIPE, text=True)
            try:
                _, errors = child.communicate(timeout=LIMIT_S[kind])
            except subprocess.TimeoutExpired:
                child.kill()
                _, errors = child.communicate()
                print(f"{kind}: stopped after {LIMIT_S[kind]:g} s")
            sink.seek(0)
            rows += [json.loads(line) for line in sink if line.startswith("{")]
        if child.returncode:
            print(f"{kind}: exit code {child.returncode}: {errors[-1500:]}")
    for row in sorted(rows, key=lambda row: row["ms"] or 1e9):
        constants = " ".join(f"{name}={value}" for name, value in row["constants"].items())
        shown = "failed" if row["ms"] is None else f"{row['ms']:.4f} ms (least {row['least_ms']:.4f})"
        print(f"{row['name']:12s} {constants:50s} {shown}  {row['said']}")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "prefix_sum_sweep.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
