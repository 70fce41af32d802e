"""`proctor score RUN_DIR`: the kept artefact scores the same again, or it is said why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from proctor.errors import InfrastructureError, ProctorError, UsageError
from proctor.jsonio import write_json
from proctor.run.folder import RunFolder
from proctor.run.rescore import rescore
from proctor.scoring.snapshot import _digest
from proctor.spec import Protocol
from tests.box.support import needs_box
from tests.support.runs import ran
from tests.support.toy.task import ToyFaulty

pytestmark = [needs_box, pytest.mark.usefixtures("no_leftovers")]
AGENT = "echo '{\"slope\": 2.5}' > answer.json; score; submit"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return ran(tmp_path_factory.mktemp("done"), AGENT)[0]


@pytest.fixture
def run(tmp_path: Path, done: RunFolder) -> RunFolder:
    shutil.copytree(done.root, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def test_a_kept_artefact_scores_the_same_again(run: RunFolder) -> None:
    before = sorted(run.root.rglob("*"))
    again = rescore(run)
    assert again["equal"] is True and again["recorded"] == again["rescored"] == run.result().raw_score  # type: ignore[union-attr]
    assert sorted(run.root.rglob("*")) == before, "the run folder is not written to"


@pytest.mark.parametrize("settings", [{"protocol": Protocol.PUBLISHED}, {"data_seed": "fresh"}, {"task": "toy_timed"}])
def test_other_protocols_seeds_and_timed_tasks_too(tmp_path: Path, settings: dict[str, object]) -> None:
    run, _ = ran(tmp_path, AGENT, **settings)  # type: ignore[arg-type]
    assert rescore(run)["equal"] is True


def test_a_recorded_score_that_was_changed_is_noticed(run: RunFolder) -> None:
    result = json.loads(run.result_file.read_text())
    write_json(run.result_file, {**result, "raw_score": result["raw_score"] - 0.5})
    again = rescore(run)
    assert again["equal"] is False and again["rescored"] == result["raw_score"]


def artefact(run: RunFolder) -> Path:
    result = run.result()
    assert result is not None
    return run.snapshots / str(result.artefact)


def better_answer(run: RunFolder) -> None:
    path = artefact(run) / "files/answer.json"
    path.chmod(0o644)
    path.write_text('{"slope": 2.0}')


def better_answer_with_a_matching_hash(run: RunFolder) -> None:
    better_answer(run)
    import hashlib

    files = artefact(run) / "files"
    contents = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files.iterdir()}
    meta = json.loads((artefact(run) / "snapshot.json").read_text())
    write_json(artefact(run) / "snapshot.json", {**meta, "sha256": _digest(contents, meta["target"])})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (better_answer, "was changed since it was scored"),
        (better_answer_with_a_matching_hash, "is not the artefact that was scored"),
        (lambda run: shutil.rmtree(artefact(run)), "cannot be read"),
        (lambda run: run.result_file.unlink(), "has no result yet"),
        (lambda run: run.spec_file.unlink(), "is not a run folder"),
    ],
)
def test_an_artefact_that_was_changed_is_refused(
    run: RunFolder, change: Callable[[RunFolder], object], words: str
) -> None:
    change(run)
    with pytest.raises(ProctorError, match=words) as caught:
        rescore(run)
    assert caught.value.hint


def test_a_run_without_a_score_says_why(tmp_path: Path) -> None:
    run, _ = ran(tmp_path, "exit 0")
    with pytest.raises(UsageError, match="no valid score to compare with: there is nothing to score"):
        rescore(run)


def test_other_data_than_the_runs_is_refused(run: RunFolder) -> None:
    result = json.loads(run.result_file.read_text())
    write_json(run.result_file, {**result, "data": {"seed": "release", "digest": "0" * 64}})
    with pytest.raises(ProctorError, match="have changed since they were built"):
        rescore(run)


def test_a_fault_of_ours_is_no_disagreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyFaulty, "faults", 99)
    run, _ = ran(tmp_path, AGENT, task="toy_faulty")
    monkeypatch.setattr(ToyFaulty, "faults", 0)
    with pytest.raises(InfrastructureError, match="failed on our side"):
        rescore(run)
