"""Planning: what is refused before anything starts, and what is written if nothing is."""

from __future__ import annotations

import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.errors import UsageError
from proctor.run.plan import MAX_BUDGET_S, Order, open_experiment, parse_budget, plan
from proctor.spec import AgentSpec, Protocol

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def order(root: Path, **changes: Any) -> Order:
    return Order(**{"tasks": ["toy"], "agents": ["starter"], "out": root / "out", **changes})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("40m", 2400),
        ("8h", 28800),
        ("1.5h", 5400),
        ("12", 12),
        (" 2 min ", 120),
        ("0.5s", 0.5),
        ("10sec", 10),
    ],
)
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "0", "0s", "-5s", "s", "5 x", "1e3s", "nan", "inf", "5d", "1h30m", "٣s", "9" * 400, "721h", "1,5h", "0x10"],
)
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(UsageError):
        parse_budget(text)


@given(st.text(max_size=12) | st.from_regex(r"\A[0-9.]{1,10} ?(s|m|h|min|sec)?\Z"))
def test_any_text_is_a_sane_budget_or_a_usage_error(text: str) -> None:
    try:
        seconds = parse_budget(text)
    except UsageError:
        return
    assert math.isfinite(seconds) and 0 < seconds <= MAX_BUDGET_S


def test_a_plan_is_tasks_by_agents_by_repeats(tmp_path: Path) -> None:
    made = plan(
        order(tmp_path, tasks=["toy", "tests/toy_timed", "toy"], agents=["starter", "reference"], repeats=2), NOW
    )
    ids = [run.spec().run_id for run in made.runs]
    assert ids == [
        f"{task}-mini-{agent}-r{repeat}"
        for task in ("toy", "toy_timed")
        for agent in ("starter", "reference")
        for repeat in (0, 1)
    ]
    assert json.loads((made.folder / "experiment.json").read_text())["runs"] == ids
    assert [run.root for run in open_experiment(made.folder).runs] == [run.root for run in made.runs]
    spec = made.runs[1].spec()
    assert (spec.repeat, spec.budget_s, spec.device, spec.gpus, spec.protocol) == (1, 30.0, "cpu", 0, Protocol.SEALED)
    assert spec.limits.memory_bytes, "there is always a limit of memory"


def test_a_suite_is_its_tasks(tmp_path: Path) -> None:
    made = plan(order(tmp_path, tasks=[], suite="tests"), NOW)
    assert {run.spec().task for run in made.runs} >= {"toy", "toy_timed", "toy_blind"}
    assert {run.spec().suite for run in made.runs} == {"tests"}


def test_agents_that_differ_only_in_odd_letters_have_folders_of_their_own(tmp_path: Path) -> None:
    agents = []
    for name in ("a b.sh", "a+b.sh", "a-b.sh", "ä.sh"):
        path = tmp_path / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        agents.append(f"command:{path}")
    made = plan(order(tmp_path, agents=agents), NOW)
    names = [run.root.name for run in made.runs]
    assert len(set(names)) == 4 and all(name.isascii() and "/" not in name and " " not in name for name in names)
    assert [run.spec().agent for run in made.runs] == [AgentSpec(name="command", argument=a[8:]) for a in agents]


def test_a_fresh_seed_is_one_secret_for_the_whole_experiment(tmp_path: Path) -> None:
    seeds = set()
    for i in range(2):
        made = plan(order(tmp_path, data_seed="fresh", repeats=3, out=tmp_path / str(i)), NOW)
        (seed,) = {run.spec().data_seed for run in made.runs}
        seeds.add(seed)
    assert len(seeds) == 2 and all(seed.isdigit() for seed in seeds)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no task": ({"tasks": []}, "no task was named", "--suite"),
    "a typo in a task": ({"tasks": ["toi"]}, "no task 'toi'", "did you mean 'toy'"),
    "a typo in a suite": ({"tasks": [], "suite": "onecards"}, "no suite 'onecards'", "onecard"),
    "no agent": ({"agents": []}, "no agent was named", "proctor agents"),
    "a typo in an agent": ({"agents": ["startr"]}, "no agent 'startr'", "did you mean 'starter'"),
    "an argument too many": ({"agents": ["starter:x"]}, "takes nothing after a colon", ""),
    "the same agent twice": ({"agents": ["starter", "starter"]}, "named twice", "--repeats"),
    "a typo in a tier": ({"tier": "maxi"}, "no tier 'maxi'", "mini, full"),
    "a typo in a box": ({"box": "dockr"}, "dockr", "bwrap"),
    "no repeats": ({"repeats": 0}, "--repeats is 0", "1 to"),
    "a negative seed": ({"seed": -1}, "--seed is -1", "0 to"),
    "a huge seed": ({"seed": 1 << 40}, "--seed is", "0 to"),
    "silent snapshots below zero": ({"silent_snapshots": -1}, "--silent-snapshots is -1", "0 to"),
    "a data seed that is none": ({"data_seed": "frsh"}, "'frsh' is not a data seed", "release"),
    "an interpreter that is none": ({"python": "/no/python"}, "/no/python does not answer", "--python"),
    "a GPU that is not there": ({"tier": "full"}, "needs 1 GPU and this machine has 0", "--tier mini"),
    "a GPU asked for": ({"device": "cuda"}, "needs 1 GPU and this machine has 0", "--device cpu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_a_way_out(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.run.plan.list_gpus", lambda: NoGpus())
    changes, message, hint = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        plan(order(tmp_path, **changes), NOW)
    assert message in caught.value.message and hint in caught.value.hint
    assert not (tmp_path / "out").exists(), "nothing has been written"


class NoGpus(list[object]):
    reason = "no driver"


def test_a_full_tier_may_be_run_on_the_cpu_on_demand(tmp_path: Path) -> None:
    (run,) = plan(order(tmp_path, tier="full", device="cpu"), NOW).runs
    assert (run.spec().device, run.spec().gpus) == ("cpu", 0)


def test_a_folder_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="exists and is not empty"):
        plan(order(tmp_path), NOW)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="exists and is not empty"):
        plan(order(tmp_path, out=tmp_path / "file"), NOW)
    assert os.listdir(tmp_path / "out") == ["notes.txt"]


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("/proc/nowhere/out", "cannot be written"),
        ("x" * 300, "File name too long"),
        ("file/out", "Not a directory"),
        ("bad\udcffname", "not UTF-8"),
    ],
)
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, out: str, words: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError) as caught:
        plan(order(tmp_path, out=tmp_path / out), NOW)
    assert words in caught.value.message and "--out" in caught.value.hint


def test_an_experiment_without_a_name_gets_one_under_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {plan(order(tmp_path, out=None), NOW).folder for _ in range(3)}
    assert len(folders) == 3 and {f.parent for f in folders} == {tmp_path / "runs"}
    assert all(f.name.startswith("20261130-120000-") for f in folders)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"runs": 5}', "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b'{"schema": 2, "runs": []}', "schema 2"),
        (b'{"schema": "x", "runs": []}', "schema x"),
        (b'{"runs": ["../../elsewhere"]}', "outside of its folder"),
        (b'{"runs": [".."]}', "outside of its folder"),
    ],
)
def test_a_folder_that_is_no_experiment_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "experiment.json").write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        open_experiment(tmp_path)
    assert caught.value.hint
