"""What is laid out for the agent, and the prompt that every agent gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from proctor.agents.base import Launch
from proctor.errors import UsageError
from proctor.run.folder import RunFolder
from proctor.run.prompt import minutes, standard_prompt
from proctor.run.workspace import hidden_paths, lay_out, write_files
from proctor.spec import Protocol
from tests.support.stand import spec_of
from tests.support.toy.task import BLIND, TASK, Toy


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", ".."])
def test_no_file_is_written_outside_of_the_workspace(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="outside of the workspace"):
        write_files(tmp_path / "in", {name: b"x"})
    assert not (tmp_path / "evil").exists()


def test_the_agents_files_lie_over_the_start_but_not_over_what_is_locked(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.root.mkdir()
    launch = Launch(
        argv=("x",),
        workspace={
            "start.sh": b"mine",
            "locked.txt": b"mine",
            "program.md": b"mine",
            "PROMPT.md": b"mine",
            "a/b": b"new",
        },
        files={"agent.sh": b"#!/bin/sh"},
        executable=frozenset({"agent.sh"}),
    )
    agent = lay_out(run, spec_of(TASK), TASK, launch, "the prompt")
    text = {p.relative_to(run.workspace).as_posix(): p.read_text() for p in run.workspace.rglob("*") if p.is_file()}
    assert text["start.sh"] == "mine" and text["a/b"] == "new"
    assert text["locked.txt"] == (run.scratch / "locked/locked.txt").read_text() == "hands off\n"
    assert text["PROMPT.md"] == "the prompt" and text["program.md"].startswith(
        "Guess the slope of the line in 0.5 minutes"
    )
    assert (agent / "agent.sh").stat().st_mode & 0o111 and [p.name for p in agent.iterdir()] == ["agent.sh"]


def test_the_cache_and_the_other_runs_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("PROCTOR_CACHE", str(tmp_path / "cache"))
    run = RunFolder(tmp_path / "experiment/runs/r0")
    run.root.mkdir(parents=True)
    assert hidden_paths(run) == (tmp_path / "cache", tmp_path / "experiment")


@pytest.mark.parametrize(
    ("task", "protocol", "words"),
    [
        (TASK, Protocol.SEALED, "the best score that you saw, scored once on a hidden split"),
        (BLIND, Protocol.SEALED, "the last valid score, scored once on a hidden split"),
        (TASK, Protocol.PUBLISHED, "the best score in your log"),
        (BLIND, Protocol.PUBLISHED, "the last valid score in your log"),
    ],
)
def test_the_prompt_says_what_counts(task: Toy, protocol: Protocol, words: str) -> None:
    prompt = standard_prompt(spec_of(task, protocol=protocol, budget_s=2400.0), task, "/workspace", "/data")
    assert words in " ".join(prompt.split()) and "You have 40 minutes of wall time" in prompt
    assert "{" not in prompt and "seed" not in prompt


@pytest.mark.parametrize(
    ("seconds", "text"), [(30, "30 seconds"), (120, "120 seconds"), (2400, "40 minutes"), (28800, "8 hours")]
)
def test_budgets_in_words(seconds: float, text: str) -> None:
    assert minutes(seconds) == text
