"""`proctor run` and `proctor status`."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.live import Live

from proctor.cli import EXIT_INFRASTRUCTURE, EXIT_INTERRUPTED, app
from proctor.cli.display import Display
from proctor.cli.terminal import console, say
from proctor.clock import SystemClock
from proctor.errors import ProctorError, UsageError
from proctor.executors.local import LocalPool
from proctor.jsonio import to_json
from proctor.report import load, terminal_table
from proctor.run.index import rebuild
from proctor.run.plan import Experiment, Order, open_experiment, parse_budget, plan
from proctor.run.recover import close_dead
from proctor.spec import GIB, MIB, Ended, Limits, Protocol

PLAIN_INTERVAL_S = 10.0
MAX_GIB = 1 << 20


def split_list(values: list[str]) -> list[str]:
    """`a,b` and repeated options alike. A comma inside an agent's argument is kept if what follows names no agent."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def split_agents(values: list[str]) -> list[str]:
    """Agents are separated by commas, but a path or a command line may hold commas of its own."""
    from proctor.agents.registry import all_agents

    found: list[str] = []
    for value in values:
        for part in value.split(","):
            name = part.partition(":")[0].strip()
            if found and name not in all_agents() and ":" in found[-1]:
                found[-1] += f",{part}"
            elif part.strip():
                found.append(part.strip())
    return found


def gib(option: str, value: float) -> int:
    """A size given in GiB, as bytes."""
    if not MIB <= value * GIB <= MAX_GIB * GIB:  # also refuses NaN
        raise UsageError(f"{option} is {value:g} GiB", f"give between {1 / 1024:.4f} (one MiB) and {MAX_GIB}")
    return int(value * GIB)


@app.command("run")
def run_command(
    task: Annotated[list[str], typer.Option("--task", "-t", help="Task, or several with commas.")] = [],  # noqa: B006
    suite: Annotated[str | None, typer.Option(help="Every task of a suite: onecard or rebench.")] = None,
    agent: Annotated[list[str], typer.Option("--agent", "-a", help="Agent[:argument], or several with commas.")] = [],  # noqa: B006
    repeats: Annotated[int, typer.Option("--repeats", "-n", help="Runs of each task and agent.")] = 1,
    tier: Annotated[str, typer.Option(help="mini or full.")] = "mini",
    budget: Annotated[str | None, typer.Option(help="Wall budget: 90s, 40m, 8h. The tier's own by default.")] = None,
    protocol: Annotated[Protocol, typer.Option(help="sealed: a hidden split counts. published: as in the papers.")] = (
        Protocol.SEALED
    ),
    data_seed: Annotated[str, typer.Option(help="Of generated data: release, fresh or a number.")] = "release",
    seed: Annotated[int, typer.Option(help="Given to the agent as PROCTOR_SEED, plus the repeat's number.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    executor: Annotated[str, typer.Option(help="How workers are launched: local.")] = "local",
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Runs at a time.")] = 1,
    box: Annotated[str, typer.Option(help="bwrap, or none (no isolation at all; labelled in every result).")] = "bwrap",
    silent: Annotated[int, typer.Option("--silent-snapshots", help="Hidden points of the score-over-time curve.")] = 12,
    memory: Annotated[float | None, typer.Option(help="Memory of a box in GiB; 80 % of the machine's.")] = None,
    disk: Annotated[float, typer.Option(help="Size of a workspace in GiB.")] = 20.0,
    python: Annotated[str | None, typer.Option(help="Interpreter whose packages boxes get.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="New experiment folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Run agents on tasks, and report."""
    if executor != "local":
        raise UsageError(f"there is no executor {executor!r}", "executors: local")
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"there is no device {device!r}", "devices: auto, cpu, cuda")
    if jobs < 1:
        raise UsageError(f"--jobs is {jobs}", "give 1 or more")
    chosen: Literal["auto", "cpu", "cuda"] = "cpu" if device == "cpu" else "cuda" if device == "cuda" else "auto"
    order = Order(
        tasks=split_list(task),
        suite=suite,
        agents=split_agents(agent),
        repeats=repeats,
        tier=tier,
        budget_s=parse_budget(budget) if budget else None,
        protocol=protocol,
        data_seed=data_seed,
        seed=seed,
        device=chosen,
        box=box,
        silent_snapshots=silent,
        python=python,
        out=out,
        limits=Limits(
            memory_bytes=gib("--memory", memory) if memory is not None else None, workspace_bytes=gib("--disk", disk)
        ),
    )
    experiment = plan(order, SystemClock().now())
    raise typer.Exit(execute(experiment, jobs, as_json))


def execute(experiment: Experiment, jobs: int, as_json: bool) -> int:
    """Run a planned experiment to its end; the exit code."""
    stderr = console(stderr=True)
    count = len(experiment.runs)
    say(stderr, f"experiment {experiment.folder}: {count} run{'s' * (count != 1)}")
    progress = Progress(Display(experiment), stderr)
    pool = LocalPool(experiment.runs, jobs, progress.tick)

    # A handler interrupts anything, printing included: it gives orders and leaves the words to the next tick.
    def on_interrupt(_: int, __: FrameType | None) -> None:
        progress.interrupts += 1
        if progress.interrupts == 1:
            pool.stop()
        else:
            pool.kill()

    before = {n: signal.signal(n, on_interrupt) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        with progress.live or nullcontext():
            pool.run()
        progress.tick()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return _conclude(experiment, pool, stderr, as_json, interrupted=progress.interrupts > 0)


class Progress:
    """What is said on stderr while runs go on: a live table on a terminal, lines elsewhere."""

    WORDS = (
        "stopping: no new runs, ending the running ones cleanly; Ctrl-C again kills them at once",
        "killing the running ones; everything logged so far is kept",
    )

    def __init__(self, display: Display, stderr: Console) -> None:
        self._display = display
        self._stderr = stderr
        self._last_summary = time.monotonic()
        self._said = 0
        self.interrupts = 0
        self.live = Live(display, console=stderr, refresh_per_second=2, transient=True) if stderr.is_terminal else None

    def tick(self) -> None:
        """Say what is new."""
        self._display.refresh()
        lines = list(self.WORDS[self._said : self.interrupts])
        self._said = max(self._said, min(self.interrupts, len(self.WORDS)))
        lines += self._display.changes()
        if self.live is None and time.monotonic() - self._last_summary > PLAIN_INTERVAL_S:
            self._last_summary = time.monotonic()
            lines.append(self._display.summary())
        for line in lines:
            say(self._stderr, line)


def _conclude(experiment: Experiment, pool: LocalPool, stderr: Console, as_json: bool, *, interrupted: bool) -> int:
    rebuild(experiment)
    results = []
    for run in experiment.runs:
        try:
            result = run.result()
        except ProctorError as error:
            pool.failures[run.root.name] = str(error)
            continue
        if result is not None:
            results.append(result)
    for name, why in pool.failures.items():
        say(stderr, f"{name}: {why}", style="red")
    if as_json:
        plain = [result.model_dump(mode="json", by_alias=True) for result in results]
        sys.stdout.write(to_json({"experiment": str(experiment.folder), "runs": plain}) + "\n")
    else:
        try:
            console().print(terminal_table(load([experiment.folder])))
        except ProctorError as error:
            say(stderr, f"no summary: {error}", style="red")
        say(stderr, f"proctor report {shlex.quote(str(experiment.folder))} -o report.html")
    if interrupted:
        return EXIT_INTERRUPTED
    broken = [r for r in results if r.ended is Ended.INFRASTRUCTURE]
    for result in broken:
        say(stderr, f"{result.run_id}: {result.reason}", style="red")
    return EXIT_INFRASTRUCTURE if broken or len(results) < len(experiment.runs) else 0


@app.command("status")
def status_command(
    folder: Annotated[Path, typer.Argument(help="Experiment folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """How the runs of an experiment stand; closes those whose worker is gone."""
    experiment = open_experiment(folder)
    for run in experiment.runs:
        try:
            close_dead(run)
        except ProctorError as error:
            say(console(stderr=True), f"{run.root.name}: {error}", style="red")
    rebuild(experiment)
    display = Display(experiment, probe=True)
    display.refresh()
    if as_json:
        sys.stdout.write(to_json({"experiment": str(experiment.folder), "runs": display.rows()}) + "\n")
    else:
        console().print(display)
