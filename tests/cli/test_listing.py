"""`proctor tasks`, `agents` and `doctor`: what programs read, and tables that fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proctor.agents import registry as agents
from proctor.box.base import Capabilities
from proctor.box.bwrap import BwrapKind
from proctor.spec import Enforced
from proctor.tasks import registry as tasks
from tests.conftest import TOYS, CommandLine


def test_tasks_for_programs(command_line: CommandLine) -> None:
    answer = command_line("tasks", "--json")
    found = json.loads(answer.out)
    assert answer.code == 0 and answer.out.count("\n") == 1
    for task in found:
        fields = {"id", "suite", "title", "metric", "direction", "visible", "aggregation", "tiers", "published"}
        assert task.keys() == fields
        assert task["direction"] in ("lower", "higher") and task["aggregation"] in ("best", "last")
        assert task["published"].keys() == {"start", "reference", "best"} and isinstance(task["visible"], bool)
        assert {"mini", "full"} <= task["tiers"].keys()
        for tier in task["tiers"].values():
            assert tier.keys() == {"budget_s", "gpus", "data_state"}
            assert tier["data_state"] in ("ready", "missing", "generated")
    ids = [task["id"] for task in found]
    assert len(set(ids)) == len(ids) and {"toy", "toy_timed"} <= set(ids)
    toy = next(task for task in found if task["id"] == "toy")
    assert toy["tiers"]["full"] == {"budget_s": 60.0, "gpus": 1, "data_state": "generated"}


def test_agents_for_programs(command_line: CommandLine) -> None:
    found = json.loads(command_line("agents", "--json").out)
    assert {"starter", "reference", "tuner", "command", "files"} <= {agent["name"] for agent in found}
    for agent in found:
        assert agent.keys() == {"name", "kind", "version", "installed", "needs"}
        assert isinstance(agent["installed"], bool) and isinstance(agent["needs"], str)


def test_a_table_has_one_line_for_each_task_where_nobody_gives_a_width(command_line: CommandLine) -> None:
    rows = command_line("tasks").out.splitlines()
    count = len(json.loads(command_line("tasks", "--json").out))
    assert len(rows) == count + 2, "a head, the tasks, and what the columns are"
    assert max(map(len, rows)) <= 140
    (toy,) = [row.split() for row in rows if row.startswith("toy ")]
    assert toy == ["toy", "tests", "MAE", "(lower)", "30", "s", "1", "min", "1", "generated"]


def test_a_narrow_table_cuts_no_name(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("proctor.cli.terminal.PLAIN_WIDTH", 80)
    shown = command_line("tasks").out
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown
    assert all(task["id"] in shown for task in json.loads(command_line("tasks", "--json").out))


def test_wide_pipes_are_used(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = command_line("agents").out
    monkeypatch.setenv("COLUMNS", "300")
    wide = command_line("agents").out
    assert len(wide.splitlines()) == 1 + len(agents.all_agents()) < len(narrow.splitlines())


def test_a_broken_plug_in_is_named_and_stops_nothing(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = ["no_such_module:TASK", "tests.support.toy.task:Toy", "tests.support.toy.task:TASK"]
    monkeypatch.setenv("PROCTOR_TASKS", ",".join(places))
    tasks._found.cache_clear()
    try:
        answer = command_line("tasks")
        assert answer.code == 0 and "toy " in answer.out
        assert "No module named 'no_such_module'" in answer.err and "is not a Task" in answer.err
    finally:
        monkeypatch.undo()
        tasks._found.cache_clear()
    assert len([task for task in tasks.all_tasks() if task.startswith("toy")]) == len(TOYS)


# doctor


def test_doctor_for_programs(command_line: CommandLine) -> None:
    answer = command_line("doctor", "--json")
    told = json.loads(answer.out)
    assert answer.code == (0 if told["ok"] else 2)
    assert {"hardware", "versions", "python", "cache", "boxes", "tasks", "advice", "ok"} <= told.keys()
    assert told["boxes"]["none"]["isolated"] is False
    assert told["tasks"]["toy (mini)"] == {"data": "generated", "gpus": 0, "runs_here": True}


def test_doctor_for_people_says_what_to_do(command_line: CommandLine) -> None:
    answer = command_line("doctor")
    for word in ("machine ", "versions ", "box bwrap", "network", "what to do", "NO isolation"):
        assert word in answer.out


def test_doctor_is_2_where_nothing_can_be_boxed(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Capabilities(False, False, Enforced(), ("user namespaces are switched off",))
    monkeypatch.setattr(BwrapKind, "capabilities", lambda _: nothing)
    answer = command_line("doctor")
    assert answer.code == 2 and "  - user namespaces are switched off" in answer.out


def test_doctor_is_2_without_torch_and_names_the_interpreter(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("proctor.cli.doctor.versions", lambda python: {"proctor": "0", "python": "3"})
    answer = command_line("doctor")
    assert answer.code == 2 and "torch is not installed in" in answer.out and "pip install" in answer.out
