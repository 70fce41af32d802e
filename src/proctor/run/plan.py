"""Planning: tasks x agents x repeats become run specifications in an experiment folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from proctor.agents.registry import parse_agent
from proctor.box.registry import get_kind
from proctor.box.runtime import runtime_of
from proctor.data.assets import data_state
from proctor.data.seeds import resolve_seed
from proctor.errors import InfrastructureError, UsageError
from proctor.gpu import list_gpus
from proctor.hardware import usable_memory
from proctor.jsonio import write_json
from proctor.run.folder import RunFolder
from proctor.spec import SCHEMA, AgentSpec, Limits, Protocol, RunSpec
from proctor.tasks.base import Task
from proctor.tasks.registry import get_task, suite_tasks

MEMORY_SHARE = 0.8
"""Share of the machine's memory that one box may use: the rest keeps the harness and the machine alive."""
GRACE_S = {Protocol.SEALED: 5.0, Protocol.PUBLISHED: 30.0}
MAX_BUDGET_S = 30 * 24 * 3600.0
MAX_SEED = 1 << 31
"""What random generators accept, with room for the repeat's number."""
MAX_SILENT = 1000


@dataclass(frozen=True)
class Order:
    """What a user asked for.

    Attributes are those of `proctor run`; see its help.
    """

    tasks: Sequence[str] = ()
    suite: str | None = None
    agents: Sequence[str] = ()
    repeats: int = 1
    tier: str = "mini"
    budget_s: float | None = None
    protocol: Protocol = Protocol.SEALED
    data_seed: str = "release"
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    box: str = "bwrap"
    silent_snapshots: int = 12
    python: str | None = None
    out: Path | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Experiment:
    """A planned experiment on disk."""

    folder: Path
    runs: tuple[RunFolder, ...]

    @property
    def name(self) -> str:
        return self.folder.name


def parse_budget(text: str) -> float:
    """`90s`, `40m`, `8h` or plain seconds, as seconds."""
    match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(s|sec|m|min|h)?\s*", text, re.ASCII)
    if not match or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is not a budget", "write 90s, 40m or 8h")
    seconds = float(match[1]) * {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, None: 1}[match[2]]
    if seconds > MAX_BUDGET_S:
        raise UsageError(f"a budget of {text.strip()} is too long", f"at most {MAX_BUDGET_S / 3600:g}h")
    return seconds


def plan(order: Order, now: datetime) -> Experiment:
    """Check everything that can be checked before a clock runs, and write the experiment folder.

    Raises:
        UsageError: With what was wrong and what to give instead; nothing has been written.
    """
    tasks = [*map(get_task, order.tasks), *(suite_tasks(order.suite) if order.suite else [])]
    tasks = list(dict.fromkeys(tasks))
    if not tasks:
        raise UsageError("no task was named", "give --task NAME[,NAME] or --suite NAME")
    agents = [parse_agent(text) for text in order.agents]
    if not agents:
        raise UsageError("no agent was named", "give --agent NAME[,NAME]; `proctor agents` lists them")
    _check_numbers(order)
    resolve_seed(order.data_seed)
    if order.data_seed == "fresh":
        # One secret seed for the whole experiment, so that its runs compare and its artefacts can be scored again.
        order = replace(order, data_seed=str(secrets.randbits(62)))
    get_kind(order.box)
    _check_python(order.python)
    for task in tasks:
        _check_tier(task, order)
    folder = _experiment_folder(order.out, now)
    runs = []
    for task in tasks:
        for agent in agents:
            for repeat in range(order.repeats):
                spec = _spec(order, task, agent, repeat, folder.name)
                runs.append((RunFolder(folder / "runs" / spec.run_id), spec))
    if len({spec.run_id for _, spec in runs}) != len(runs):
        raise UsageError("the same agent was named twice", "name each agent once; use --repeats for more runs")
    _create(folder, runs, now)
    return Experiment(folder, tuple(run for run, _ in runs))


def _check_numbers(order: Order) -> None:
    for option, value, low, high in (
        ("--repeats", order.repeats, 1, 10_000),
        ("--seed", order.seed, 0, MAX_SEED),
        ("--silent-snapshots", order.silent_snapshots, 0, MAX_SILENT),
    ):
        if not low <= value <= high:
            raise UsageError(f"{option} is {value}", f"give a whole number from {low} to {high}")


def _check_python(python: str | None) -> None:
    """Refuse an interpreter that does not answer before anything is planned with it."""
    if python is None:
        return
    try:
        runtime_of(python)
    except InfrastructureError as error:
        raise UsageError(error.message, error.hint) from None


def _check_tier(task: Task, order: Order) -> None:
    if order.tier not in task.tiers:
        raise UsageError(f"{task.id} has no tier {order.tier!r}", f"its tiers: {', '.join(task.tiers)}")
    if data_state(task, order.tier) == "missing":
        raise UsageError(
            f"the data of {task.id} ({order.tier}) is not on this machine",
            f"proctor fetch {task.id}, or proctor fetch {task.id} --from DIR",
        )
    need = max(task.tiers[order.tier].gpus, int(order.device == "cuda"))
    if need and order.device != "cpu":
        gpus = list_gpus()
        if len(gpus) < need:
            raise UsageError(
                f"{task.id} ({order.tier}) needs {need} GPU{'s' * (need > 1)} and this machine has {len(gpus)}"
                + (f": {gpus.reason}" if gpus.reason else ""),
                "use --tier mini, or --device cpu to run it on the CPU all the same (timings then mean little)",
            )


def _experiment_folder(out: Path | None, now: datetime) -> Path:
    if out is None:
        return Path("runs").absolute() / f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    folder = Path(os.path.normpath(out.absolute()))
    try:
        folder.name.encode()
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except UnicodeEncodeError:
        raise UsageError(f"the name {str(folder)!r} is not UTF-8", "name another folder with --out") from None
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror}", "name another folder with --out") from None
    if taken:
        raise UsageError(f"{folder} exists and is not empty", "name a new folder with --out; nothing is overwritten")
    return folder


def _spec(order: Order, task: Task, agent: AgentSpec, repeat: int, experiment: str) -> RunSpec:
    tier = task.tiers[order.tier]
    use_gpu = order.device != "cpu" and (tier.gpus > 0 or order.device == "cuda")
    limits = order.limits
    if limits.memory_bytes is None:
        limits = limits.model_copy(update={"memory_bytes": int(MEMORY_SHARE * usable_memory())})
    return RunSpec(
        run_id=f"{task.id}-{order.tier}-{_slug(agent.label)}-r{repeat}",
        experiment=experiment,
        suite=task.suite,
        task=task.id,
        tier=order.tier,
        protocol=order.protocol,
        agent=agent,
        repeat=repeat,
        seed=order.seed,
        budget_s=order.budget_s or tier.budget_s,
        grace_s=GRACE_S[order.protocol],
        gpus=max(1, tier.gpus) if use_gpu else 0,
        device="cuda" if use_gpu else "cpu",
        data_seed=order.data_seed,
        box=order.box,
        limits=limits,
        silent_snapshots=order.silent_snapshots,
        python=order.python,
    )


def _slug(label: str) -> str:
    """An agent's label as part of a folder name."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.")
    if plain == label:
        return plain
    # Different labels must not share a folder because they differ only in what was replaced.
    return f"{plain[-40:]}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"


def _create(folder: Path, runs: list[tuple[RunFolder, RunSpec]], now: datetime) -> None:
    """Write the plan. `experiment.json` comes last: a folder that has it is whole."""
    about = {
        "schema": SCHEMA,
        "experiment": folder.name,
        "created_at": now.isoformat(),
        "runs": [spec.run_id for _, spec in runs],
    }
    try:
        for run, spec in runs:
            run.write_spec(spec)
        write_json(folder / "experiment.json", about)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", "name another folder with --out") from None


def open_experiment(folder: Path) -> Experiment:
    """An existing experiment folder.

    Raises:
        UsageError: It is none.
    """
    place = folder / "experiment.json"
    try:
        data = json.loads(place.read_bytes())
        names = [str(name) for name in data["runs"]]
        schema = data.get("schema", SCHEMA)
    except OSError as error:
        raise UsageError(
            f"{folder} is not an experiment folder: {place.name} cannot be read ({error.strerror})",
            "give the folder that `proctor run` printed",
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{place} is damaged: {error}", "restore it, or run `proctor report` on its runs") from None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise UsageError(f"{place} has schema {schema}; this Proctor reads {SCHEMA}", "use a newer Proctor")
    if any("/" in name or name in ("", ".", "..") for name in names):
        raise UsageError(f"{place} names runs outside of its folder", "restore it from where it came")
    return Experiment(folder.absolute(), tuple(RunFolder(folder.absolute() / "runs" / name) for name in names))
