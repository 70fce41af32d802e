"""The summary in sentences."""

from __future__ import annotations

from pathlib import Path

from proctor.report import RunRecord, load
from proctor.report.prose import summary, warn
from proctor.report.standings import standings
from proctor.report.tables import exams
from proctor.spec import AgentSpec, Ended
from tests.support.results import a_result, a_spec, an_experiment, write_experiment


def told(records: list[RunRecord]) -> list[str]:
    return summary(records, standings(exams(records)))


def test_one_and_many_are_told_apart(tmp_path: Path) -> None:
    broken = a_result(ended=Ended.INFRASTRUCTURE)
    one = load([write_experiment(tmp_path, "one", [(a_spec(), broken, ())])])
    assert told(one)[0] == (
        "1 run was planned, on 1 task with 1 agent: 1 was lost to a fault of the machine or of Proctor."
    )
    runs = [(a_spec(run_id=f"r{i}"), broken.model_copy(update={"run_id": f"r{i}"}), ()) for i in range(3)]
    runs.append((a_spec(run_id="r3"), a_result(run_id="r3"), ()))
    assert told(load([write_experiment(tmp_path, "many", runs)]))[0] == (
        "4 runs were planned, on 1 task with 1 agent: "
        "1 has a valid score and 3 were lost to faults of the machine or of Proctor."
    )


def test_what_is_not_known_is_said_to_be_so(tmp_path: Path) -> None:
    records = load([write_experiment(tmp_path, "unit", [(a_spec(), a_result(start_score=None), ())])])
    assert told(records)[1] == (
        "On onecard (full tier, sealed protocol), Agg, the mean relative gain over the starting solutions, "
        "is not known for any agent: no task counts (see the standings)."
    )


def test_many_agents_are_cut_short(tmp_path: Path) -> None:
    runs = []
    for i in range(7):
        agent = AgentSpec(name=f"a{i}")
        valid = {"raw_score": 2.0 + i / 10} if i < 6 else {"raw_score": None, "valid": False}
        runs.append((a_spec(run_id=f"r{i}", agent=agent), a_result(run_id=f"r{i}", agent=agent.label, **valid), ()))
    sentence = told(load([write_experiment(tmp_path, "unit", runs)]))[1]
    assert "+0.418 for a0 (1 of 1 task)" in sentence
    assert sentence.endswith("lower for 2 more agents (see the standings) and not known for 1 agent.")
    assert "a4" not in sentence


def test_warnings_are_loud_and_absent_without_cause(tmp_path: Path) -> None:
    records = load([an_experiment(tmp_path)])
    assert warn(records, exams(records))[0] == "NO BOX: 1 run had no sandbox, and nothing was enforced for it."
    clean = [record for record in records if record.box != "none"]
    assert warn(clean, exams(clean)) == []
