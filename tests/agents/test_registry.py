"""Finding agents, and reading what follows the colon."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from proctor.agents import registry
from proctor.agents.base import Agent, Launch, Sitting
from proctor.agents.registry import all_agents, get_agent, parse_agent
from proctor.box.base import BoxPaths
from proctor.errors import UsageError
from proctor.spec import AgentSpec
from tests.support.stand import spec_of
from tests.support.toy.task import TASK


class Outside(Agent):
    name = "outside"
    kind = "outside"
    summary = "a plug-in"

    def launch(self, sitting: Sitting) -> Launch:
        return Launch(argv=("true",))


AGENT = Outside()
NOT_AN_AGENT = "text"


def test_the_agents_that_ship() -> None:
    assert {"starter", "reference", "tuner", "command", "files"} <= set(all_agents())
    for name, agent in all_agents().items():
        assert agent.name == name and agent.summary and agent.kind in ("control", "search", "outside")


def test_plug_ins_are_found_and_broken_ones_do_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "tests.agents.test_registry"
    points = [
        EntryPoint("outside", f"{here}:AGENT", "proctor.agents"),
        EntryPoint("gone", "no_such_module:AGENT", "proctor.agents"),
        EntryPoint("lost", f"{here}:NOWHERE", "proctor.agents"),
        EntryPoint("text", f"{here}:NOT_AN_AGENT", "proctor.agents"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    registry._found.cache_clear()
    try:
        assert get_agent("outside").name == "outside" and "starter" in all_agents()
        assert set(registry.broken_agents()) == {"gone", "lost", "text"}
        with pytest.raises(UsageError, match="no_such_module"):
            get_agent("gone")
    finally:
        monkeypatch.undo()
        registry._found.cache_clear()
    assert "outside" not in all_agents()


def test_a_typo_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="no agent 'tunr'") as caught:
        parse_agent("tunr")
    assert caught.value.hint == "did you mean 'tuner'? `proctor agents` lists them all"


@pytest.mark.parametrize(
    "text", ["starter:", "starter:x", "reference:1", "files", "files:", "command", "command:", "command:  ", ":", ""]
)
def test_arguments_that_cannot_work_are_refused_before_anything_starts(text: str) -> None:
    with pytest.raises(UsageError):
        parse_agent(text)


def test_starter_and_reference_lay_down_their_files_and_submit() -> None:
    sitting = Sitting(spec_of(TASK), TASK, BoxPaths(), "prompt", "/usr/bin/python3")
    starter, reference = get_agent("starter").launch(sitting), get_agent("reference").launch(sitting)
    assert starter.workspace == {} and reference.workspace == TASK.reference_files("mini")
    for launch in (starter, reference):
        assert launch.argv[-1].splitlines()[-1] == "submit" and "sh start.sh" in launch.argv[-1]


def test_a_missing_optimiser_makes_the_tuner_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(get_agent("tuner")), "version", lambda _: None)
    with pytest.raises(UsageError, match="optuna is not installed"):
        parse_agent("tuner")


def test_labels_are_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    spec = parse_agent(f"files:{tmp_path}")
    assert spec == AgentSpec(name="files", argument=str(tmp_path)) and spec.label == f"files:{tmp_path}"
