"""`proctor run`, `status`, `score` and `report` on whole experiments."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from proctor.cli.run import split_agents
from proctor.jsonio import write_json
from proctor.run.plan import open_experiment
from proctor.run.recover import close_dead
from tests.box.support import needs_box
from tests.conftest import CommandLine
from tests.support.runs import planned, script, wait_for, worker
from tests.support.toy.task import ToyFaulty

pytestmark = [needs_box, pytest.mark.usefixtures("no_leftovers")]
QUICK = ("--budget", "20s", "--silent-snapshots", "0", "--memory", "1")
FIXED = """schema run_id experiment suite task tier protocol agent agent_version model repeat seed started_at ended
exit_code valid raw_score direction start_score reference_score relative_gain normalised_score
visible_best sealed_score optimism budget_s used_s scoring_s frozen_s model_s rate_limit_s
gpu_busy_fraction score_calls scripts_launched tokens cost_usd integrity enforced hardware versions
artefact_sha256"""
ANSWER = "echo '{\"slope\": 2.5}' > answer.json; score; submit"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: one with a score, one without."""
    from proctor.cli.run import execute
    from proctor.run.plan import Order, plan
    from tests.support.runs import LIMITS, NOW

    root = tmp_path_factory.mktemp("experiment")
    agents = [script(root / "agents", ANSWER, "good.sh"), script(root / "agents", "exit 3", "idle.sh")]
    order = Order(tasks=["toy"], agents=agents, budget_s=20.0, silent_snapshots=0, limits=LIMITS, out=root / "out")
    assert execute(plan(order, NOW), 2, False) == 0
    return root / "out"


@pytest.fixture
def copy(experiment: Path, tmp_path: Path) -> Path:
    shutil.copytree(experiment, tmp_path / "out")
    return tmp_path / "out"


def run_of(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"runs/*{name}*")
    return found


@pytest.mark.slow
def test_run_for_programs(command_line: CommandLine, tmp_path: Path) -> None:
    agents = f"{script(tmp_path, ANSWER)},starter"
    answer = command_line(
        "run", "-t", "toy", "-a", agents, "-n", "2", "-j", "2", "-o", tmp_path / "out", "--json", *QUICK
    )
    assert answer.code == 0 and answer.out.count("\n") == 1
    told = json.loads(answer.out)
    assert told.keys() == {"experiment", "runs"} and told["experiment"] == str(tmp_path / "out")
    assert len(told["runs"]) == 4 and all(r["valid"] and r["ended"] == "submitted" for r in told["runs"])
    on_disk = [json.loads((run.root / "result.json").read_text()) for run in open_experiment(tmp_path / "out").runs]
    assert told["runs"] == on_disk
    assert set(FIXED.split()) <= on_disk[0].keys()
    assert on_disk[0]["tokens"].keys() == {"input", "cached_input", "output"}
    assert on_disk[0]["enforced"].keys() == {"network", "filesystem", "process_tree", "memory", "pids", "gpu"}
    assert "experiment " in answer.err and answer.err.count("submitted after") == 4


def test_run_for_people(command_line: CommandLine, tmp_path: Path) -> None:
    out = tmp_path / "my results, ü"
    answer = command_line("run", "-t", "toy", "-a", "starter", "-o", out, *QUICK)
    assert answer.code == 0
    assert "starter" in answer.out and "MAE" in answer.out
    assert f"proctor report '{out}' -o report.html" in answer.err


def test_a_run_that_this_machine_failed_is_2(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_FAULTS", "99")
    answer = command_line("run", "-t", "toy_faulty", "-a", "starter", "-o", tmp_path / "out", "--json", *QUICK)
    assert answer.code == 2 and "BadZipFile" in answer.err and "Traceback" not in answer.err
    assert json.loads(answer.out)["runs"][0]["ended"] == "infrastructure"
    assert ToyFaulty.faults == 0, "it failed in the worker, not here"


def test_a_cache_that_cannot_be_written_is_2_and_says_so(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCTOR_CACHE", "/proc/nowhere")
    answer = command_line("run", "-t", "toy", "-a", "starter", "-o", tmp_path / "out", *QUICK)
    assert answer.code == 2 and "/proc/nowhere" in answer.err and "Traceback" not in answer.err


@pytest.mark.slow
def test_results_that_are_damaged_meanwhile_are_2_and_the_others_are_told(
    command_line: CommandLine, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def damage() -> None:
        wait_for(lambda: any(out.glob("runs/*r1/worker.lock")))
        next(out.glob("runs/*r0/result.json")).write_text("{")

    vandal = threading.Thread(target=damage)
    vandal.start()
    answer = command_line("run", "-t", "toy", "-a", "starter", "-n", "2", "-o", out, "--json", *QUICK)
    vandal.join()
    assert answer.code == 2 and "result.json is not a result" in answer.err and "Traceback" not in answer.err
    assert [r["repeat"] for r in json.loads(answer.out)["runs"]] == [1]


@pytest.mark.parametrize(
    ("given", "agents"),
    [
        (["starter,tuner"], ["starter", "tuner"]),
        (["starter", "tuner"], ["starter", "tuner"]),
        ([" starter , tuner ,"], ["starter", "tuner"]),
        (["command:/a/b c.sh -x"], ["command:/a/b c.sh -x"]),
        (["command:/a,b/c.sh,starter"], ["command:/a,b/c.sh", "starter"]),
        (["command:x --list=1,2,3,files:/d,e"], ["command:x --list=1,2,3", "files:/d,e"]),
        (["files:/a,starter,b"], ["files:/a", "starter", "b"]),
        (["starter,tunr"], ["starter", "tunr"]),
        ([""], []),
    ],
)
def test_commas_separate_agents_and_may_stand_in_arguments(given: list[str], agents: list[str]) -> None:
    assert split_agents(given) == agents


# status


def test_status_for_programs_and_people(command_line: CommandLine, experiment: Path) -> None:
    told = json.loads(command_line("status", experiment, "--json").out)
    assert told["experiment"] == str(experiment)
    good, idle = told["runs"]
    assert (good["state"], good["ended"], good["valid"]) == ("ended", "submitted", True)
    assert (idle["state"], idle["ended"], idle["valid"], idle["score"]) == ("ended", "exited", False, None)
    shown = command_line("status", experiment)
    assert shown.code == 0 and good["run"] in shown.out and "invalid" in shown.out


def test_status_closes_a_run_whose_worker_was_killed(command_line: CommandLine, tmp_path: Path) -> None:
    run = planned(tmp_path, "echo '{\"slope\": 2.5}' > answer.json; score; touch ready; sleep 100")
    process = worker(run)
    try:
        wait_for((run.workspace / "ready").exists)
        alive = json.loads(command_line("status", run.root.parent.parent, "--json").out)["runs"][0]
        assert alive["state"] == "running" and alive["scorings"] in (0, 1), "a run in work is left alone"
    finally:
        process.kill()
        process.wait()
    dead = json.loads(command_line("status", run.root.parent.parent, "--json").out)["runs"][0]
    assert (dead["state"], dead["ended"], dead["scorings"]) == ("ended", "infrastructure", 1)
    assert dead["best"] is not None and dead["score"] is None


def test_status_of_a_folder_where_something_is_broken(command_line: CommandLine, copy: Path) -> None:
    good, idle = run_of(copy, "good"), run_of(copy, "idle")
    (good / "result.json").write_text("{")
    (idle / "result.json").unlink()
    (idle / "run.json").write_text('{"schema": 9}')
    answer = command_line("status", copy, "--json")
    assert answer.code == 0 and "schema 9" in answer.err
    first, second = json.loads(answer.out)["runs"]
    assert (first["ended"], first["valid"]) == ("unreadable", False) and "result.json" in first["reason"]
    assert second["state"] == "worker gone"


def test_status_of_runs_that_were_never_begun_or_are_missing(command_line: CommandLine, tmp_path: Path) -> None:
    run = planned(tmp_path, "exit 0", repeats=1)
    assert json.loads(command_line("status", run.root.parent.parent, "--json").out)["runs"][0]["state"] == "planned"
    shutil.rmtree(run.root)
    assert command_line("status", run.root.parent.parent).code == 0


# score


def test_score_for_programs(command_line: CommandLine, copy: Path) -> None:
    answer = command_line("score", run_of(copy, "good"), "--json")
    told = json.loads(answer.out)
    assert answer.code == 0 and told.keys() == {"recorded", "rescored", "equal"}
    assert told["equal"] is True and told["recorded"] == told["rescored"]


def test_score_notices_a_changed_artefact_and_a_changed_result(command_line: CommandLine, copy: Path) -> None:
    run = run_of(copy, "good")
    result = json.loads((run / "result.json").read_text())
    write_json(run / "result.json", {**result, "raw_score": 0.0})
    answer = command_line("score", run)
    assert answer.code == 3 and "NOT equal" in answer.out
    write_json(run / "result.json", result)
    (kept,) = run.glob("snapshots/*/files/answer.json")
    kept.chmod(0o644)
    kept.write_text('{"slope": 2.9}')
    answer = command_line("score", run, "--json")
    assert answer.code == 1 and "was changed since it was scored" in answer.err and answer.out == ""


def test_score_of_a_run_without_a_score(command_line: CommandLine, experiment: Path) -> None:
    answer = command_line("score", run_of(experiment, "idle"))
    assert answer.code == 1 and "no valid score to compare with" in answer.err
    assert command_line("score", experiment).code == 1


# report


@pytest.mark.parametrize("form", ["html", "md", "csv", "json"])
def test_reports_in_every_format(command_line: CommandLine, experiment: Path, tmp_path: Path, form: str) -> None:
    printed = command_line("report", experiment, "--format", form)
    assert printed.code == 0 and "toy" in printed.out
    written = command_line("report", experiment, "-o", tmp_path / f"report.{form}")
    assert written.code == 0 and written.out == "" and f"wrote {tmp_path}" in written.err
    assert "toy" in (tmp_path / f"report.{form}").read_text()
    assert command_line("report", experiment, "-o", tmp_path / "report", "--format", form).code == 0


def test_a_report_for_a_terminal_and_without_an_ending(
    command_line: CommandLine, experiment: Path, tmp_path: Path
) -> None:
    assert "MAE" in command_line("report", experiment).out
    assert command_line("report", experiment, "-o", tmp_path / "report").code == 0
    assert (tmp_path / "report").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("place", ["missing/report.html", "folder"])
def test_a_report_that_cannot_be_written(
    command_line: CommandLine, experiment: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "folder").mkdir()
    answer = command_line("report", experiment, "-o", tmp_path / place)
    assert answer.code in (1, 2) and "error: " in answer.err and "Traceback" not in answer.err


DAMAGE: dict[str, dict[str, Any]] = {
    "a damaged result": {"good/result.json": "{"},
    "a result of the future": {"good/result.json": '{"schema": 2}'},
    "a binary result": {"good/result.json": "\0\0\0"},
    "a damaged score log": {"good/scores.jsonl": '{"n": 0}\n'},
    "a missing run": {"good": None},
    "no plan": {"experiment.json": "[]"},
}


@pytest.mark.parametrize("name", DAMAGE)
def test_reports_on_damaged_folders_name_the_file(command_line: CommandLine, copy: Path, name: str) -> None:
    for place, content in DAMAGE[name].items():
        path = (
            copy / place
            if place == "experiment.json"
            else run_of(copy, "good") / place.removeprefix("good").lstrip("/")
        )
        shutil.rmtree(path) if content is None else path.write_text(content)
    answer = command_line("report", copy)
    assert answer.code == 1 and str(copy) in answer.err and "Traceback" not in answer.err


def test_a_report_closes_dead_runs_first(command_line: CommandLine, copy: Path) -> None:
    (run_of(copy, "good") / "result.json").unlink()
    answer = command_line("report", copy, "--format", "json")
    assert answer.code == 0 and (run_of(copy, "good") / "result.json").exists()
    (run,) = [r for r in open_experiment(copy).runs if "good" in r.root.name]
    assert close_dead(run) is None
