"""Scoring a run: every outcome a line, time booked where it belongs, faults of ours apart from the agent's."""

from __future__ import annotations

import math
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proctor.clock import BudgetClock, ManualClock
from proctor.data.assets import Assets
from proctor.errors import InfrastructureError, InvalidSubmission
from proctor.events import EventLog
from proctor.jsonio import read_lines
from proctor.machine_locks import try_lock
from proctor.scoring.scorelog import ScoreLog, read_scores
from proctor.scoring.service import ScoringService
from proctor.scoring.snapshot import Snapshots
from proctor.spec import Finding, Metric
from proctor.tasks.base import Evaluation, EvaluationContext, ScorePolicy
from tests.box.support import needs_box
from tests.support.stand import spec_of, stand
from tests.support.toy.task import TASK, Toy

TIMED = ScorePolicy(freeze_while_scoring=True)


class Box:
    """The agent's box: each freeze takes a tenth of a second."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.frozen = False
        self.history: list[str] = []

    def freeze(self) -> None:
        self.frozen = True
        self.history.append("freeze")
        self._clock.advance(0.1)

    def thaw(self) -> None:
        self.frozen = False
        self.history.append("thaw")


class Pool:
    """No candidates: the task of these tests needs none."""

    def fill(self) -> None: ...

    def kill_in_use(self) -> None: ...


class Desk:
    """A scoring service on a clock moved by hand, with an evaluation that does what the test says."""

    def __init__(self, root: Path, policy: ScorePolicy) -> None:
        self.clock = ManualClock(1000.0)
        self.result: Callable[[EvaluationContext], Evaluation] = lambda _: Evaluation(2.0, "scored")
        desk = self

        class Told(Toy):
            metric = Metric(name="MAE", direction=TASK.metric.direction, low=0.0, high=100.0)

            def evaluate(self, context: EvaluationContext) -> Evaluation:
                return desk.result(context)

        Told.policy = policy
        task = Told()
        self.workspace = root / "workspace"
        self.workspace.mkdir()
        (self.workspace / "answer.json").write_text("{}")
        self.scores, self.events = root / "scores.jsonl", root / "events.jsonl"
        self.budget = BudgetClock(60.0, self.clock)
        self.box = Box(self.clock)
        self.drain: Callable[[], bool] = lambda: True
        self.service = ScoringService(
            spec_of(task, budget_s=60.0),
            task,
            Assets(root, root, "digest", "release"),
            Pool(),  # type: ignore[arg-type]
            Snapshots(self.workspace, root / "snapshots", task.artefact, frozenset()),
            ScoreLog(self.scores),
            self.budget,
            self.clock,
            EventLog(self.events, self.clock, self.budget),
            lambda: self.drain(),
            (),
            "",
        )
        self.budget.start()
        self.service.attach(self.box)  # type: ignore[arg-type]

    def takes(self, seconds: float) -> None:
        def evaluate(_: EvaluationContext) -> Evaluation:
            self.clock.advance(seconds)
            return Evaluation(2.0)

        self.result = evaluate

    def booked(self) -> tuple[float, float]:
        return round(self.budget.booked("scoring"), 6), round(self.budget.booked("frozen"), 6)

    def told(self, event: str) -> list[dict[str, Any]]:
        return [line for line in read_lines(self.events) if line["event"] == event]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, ScorePolicy())


@contextmanager
def timed(root: Path) -> Iterator[Desk]:
    yield Desk(root, TIMED)


# Where time goes


def test_a_scoring_is_booked_and_the_agent_works_on_meanwhile(desk: Desk) -> None:
    desk.takes(3.0)
    desk.clock.advance(5.0)
    entry = desk.service.score("agent")
    assert (entry.elapsed_s, entry.scoring_s, entry.frozen_s) == (5.1, 3.1, 0.1)
    assert desk.booked() == (3.1, 0.1)
    assert desk.budget.elapsed() == pytest.approx(8.1), "scoring that the agent asked for is on its clock"


def test_a_timed_scoring_keeps_the_agent_frozen_to_the_end(tmp_path: Path) -> None:
    with timed(tmp_path) as desk:
        seen = []

        def evaluate(_: EvaluationContext) -> Evaluation:
            seen.append(desk.box.frozen)
            desk.clock.advance(3.0)
            return Evaluation(2.0)

        desk.result = evaluate
        entry = desk.service.score("agent")
        assert seen == [True] and not desk.box.frozen
        assert (entry.scoring_s, entry.frozen_s) == (3.1, 3.1)
        assert desk.booked() == (3.1, 3.1)


def test_only_what_lay_on_the_agents_clock_is_booked(desk: Desk) -> None:
    """A scoring in flight at the deadline goes on; what comes after the end is not the agent's time."""

    def evaluate(_: EvaluationContext) -> Evaluation:
        desk.clock.advance(2.0)
        desk.budget.stop()
        desk.clock.advance(30.0)
        return Evaluation(2.0)

    desk.result = evaluate
    entry = desk.service.score("agent")
    assert (entry.status, entry.elapsed_s, entry.scoring_s) == ("scored", 0.1, 32.1)
    assert desk.booked() == (2.1, 0.1)


def test_scorings_by_the_harness_book_nothing(desk: Desk) -> None:
    desk.takes(3.0)
    desk.service.score("final")
    desk.service.score_frozen("seal", desk.service.freeze_and_copy(), "hidden")
    assert desk.booked() == (0.0, 0.0)


def test_an_invalid_submission_books_its_freeze_too(desk: Desk) -> None:
    (desk.workspace / "answer.json").unlink()
    entry = desk.service.score("agent")
    assert (entry.status, entry.frozen_s, entry.scoring_s) == ("invalid", 0.1, 0.1)
    assert desk.booked() == (0.1, 0.1)
    assert desk.box.history == ["freeze", "thaw"]


@needs_box
def test_waiting_for_another_runs_timing_is_given_back(tmp_path: Path) -> None:
    """Nobody works meanwhile: the agent is frozen, and its clock stands still."""

    class Timed(Toy):
        policy = TIMED

        def evaluate(self, context: EvaluationContext) -> Evaluation:
            return Evaluation(1.0)

    with stand(tmp_path, Timed()) as made:
        (made.workspace / "answer.json").write_text("{}")
        other = try_lock("timing", "another run")
        assert other is not None
        done = threading.Thread(target=lambda: made.service.score("agent"))
        before = made.budget.elapsed()
        done.start()
        done.join(0.5)
        assert done.is_alive(), "it waits"
        assert made.budget.elapsed() - before < 0.3, "and its clock does not run"
        other.release()
        done.join(10)
        (entry,) = made.service.log.entries
        assert entry.status == "scored" and entry.scoring_s < 0.4 and entry.frozen_s < 0.4
        assert made.budget.booked("frozen") < 0.4


def test_a_fault_while_draining_thaws_the_agent(tmp_path: Path) -> None:
    with timed(tmp_path) as desk:

        def broken() -> bool:
            raise InfrastructureError("the driver does not answer")

        desk.drain = broken
        entry = desk.service.score("agent")
        assert entry.status == "error" and not desk.box.frozen


def test_work_of_the_gpu_that_does_not_end_is_noted(tmp_path: Path) -> None:
    with timed(tmp_path) as desk:
        desk.drain = lambda: False
        assert desk.service.score("agent").status == "scored"
        assert len(desk.told("gpu_not_drained")) == 1


# What counts


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, -0.001, 100.1, np.float32("nan")])
def test_a_number_that_the_metric_cannot_be_is_invalid(desk: Desk, score: float) -> None:
    desk.result = lambda _: Evaluation(score, "fine")
    entry = desk.service.score("agent")
    assert (entry.status, entry.score) == ("invalid", None) and "the score" in entry.message
    assert read_scores(desk.scores) == [entry]


def test_a_void_finding_takes_the_score_and_a_warning_does_not(desk: Desk) -> None:
    for severity, status in (("warning", "scored"), ("void", "invalid")):
        finding = Finding(rule="causality", severity=severity, evidence="it looks ahead")  # type: ignore[arg-type]
        desk.result = lambda _, f=finding: Evaluation(1.0, findings=(f,))  # type: ignore[misc]
        entry = desk.service.score("agent")
        assert (entry.status, entry.findings) == (status, (finding,))
        assert (entry.score is None) == (severity == "void")
    assert entry.message == "causality: it looks ahead"


def test_no_score_and_no_reason_is_invalid_and_says_so(desk: Desk) -> None:
    desk.result = lambda _: Evaluation(None)
    assert desk.service.score("agent").message == "no score was found, and the task gave no reason"


def test_what_was_left_out_is_told(desk: Desk) -> None:
    (desk.workspace / "link").symlink_to("/etc/passwd")
    assert "left out of the submission: link (a symbolic link" in desk.service.score("agent").message


def test_the_split_and_origin_of_the_lines(desk: Desk) -> None:
    seen = []

    def evaluate(context: EvaluationContext) -> Evaluation:
        seen.append((context.split, context.audit, context.target))
        return Evaluation(1.0)

    desk.result = evaluate
    desk.service.score("agent")
    copy = desk.service.freeze_and_copy(silent=True)
    desk.service.score_frozen("final", copy, "visible")
    desk.service.score_frozen("silent", copy, "hidden", audit=False)
    desk.service.score_frozen("seal", copy, "hidden")
    target = "answer.json"
    assert seen == [
        ("visible", True, target),
        ("visible", True, target),
        ("hidden", False, target),
        ("hidden", True, target),
    ]
    lines = [(e.origin, e.split) for e in desk.service.log.entries]
    assert lines == [("agent", "visible"), ("final", "visible"), ("silent", "hidden"), ("seal", "hidden")]


# Faults of ours


class PluginError(Exception):
    """Not derived from anything that a harness would foresee."""


@pytest.mark.parametrize(
    "error", [PluginError, KeyError, ImportError, zipfile.BadZipFile, MemoryError, StopIteration, EOFError]
)
def test_a_fault_of_the_task_is_ours_and_tells_the_agent_nothing(desk: Desk, error: type[Exception]) -> None:
    def evaluate(_: EvaluationContext) -> Evaluation:
        raise error("CANARY in /host/private/hidden.npz")

    desk.result = evaluate
    entry = desk.service.score("agent")
    assert (entry.status, entry.score) == ("error", None)
    assert error.__name__ in entry.message and "CANARY" not in entry.message
    assert "CANARY" in entry.details["error"], "who reads the log learns more"
    assert "CANARY" in desk.told("scoring_error")[0]["error"]
    desk.result = lambda _: Evaluation(1.0)
    assert desk.service.score("agent").status == "scored"


def test_an_evaluation_that_returns_nonsense_is_our_fault(desk: Desk) -> None:
    for nonsense in (None, 1.0, Evaluation("1.0x"), Evaluation(1.0, findings=("void",))):  # type: ignore[arg-type]
        desk.result = lambda _, n=nonsense: n  # type: ignore[misc]
        assert desk.service.score("agent").status == "error"
    assert len(read_scores(desk.scores)) == 4


def test_odd_details_and_messages_are_written_down(desk: Desk) -> None:
    details = {"spread": np.float32(1), "times": np.ones(3), "nan": math.nan, "what": object, 5: {"x": "\ud800"}}
    desk.result = lambda _: Evaluation(1.0, "said \udcff", details)
    assert desk.service.score("agent", note="\ud800").status == "scored"
    (line,) = read_lines(desk.scores)
    assert line["details"]["spread"] == 1.0 and line["details"]["nan"] is None and line["message"] == "said ?"

    def refuse(_: EvaluationContext) -> Evaluation:
        raise InvalidSubmission("the submission said \ud800" + "x" * 100_000)

    desk.result = refuse
    entry = desk.service.score("agent")
    assert entry.status == "invalid" and len(entry.message) == 8000
    assert len(read_scores(desk.scores)) == 2


def test_a_score_that_cannot_be_written_down_does_not_count(desk: Desk) -> None:
    desk.scores.symlink_to("/dev/full")
    entry = desk.service.score("agent")
    assert (entry.status, entry.score) == ("error", None)
    assert "could not be written down (No space left on device)" in entry.message
    assert desk.service.log.entries == ()
    desk.scores.unlink()
    assert desk.service.score("agent").n == 0


def test_nothing_is_scored_before_the_start_or_after_the_end(desk: Desk) -> None:
    desk.clock.advance(60.0)
    assert desk.service.score("agent").message == "the time is up"
    desk.budget.stop()
    assert desk.service.score("agent").message == "the time is up"
    assert desk.service.log.entries == () and desk.box.history == []
    assert desk.service.score("final").status == "scored", "the harness itself may"


# What is kept


def test_copies_for_the_curve_are_kept_until_the_end(desk: Desk) -> None:
    scores = iter([5.0, 3.0, 4.0])
    desk.result = lambda _: Evaluation(next(scores))
    (desk.workspace / "answer.json").write_text("silent")
    silent = desk.service.freeze_and_copy(silent=True).snapshot
    kept = []
    for i in range(3):
        (desk.workspace / "answer.json").write_text(str(i))
        kept.append(desk.service.score("agent").artefact)
    store = silent.folder.parent
    assert {p.name for p in store.iterdir()} == {silent.name, kept[1], kept[2]}
    assert desk.service.thin(ended=True, keep=frozenset({str(kept[1])})) == 1
    assert {p.name for p in store.iterdir()} == {kept[1], kept[2]}


# With real boxes


@needs_box
def test_visible_and_hidden_scores_come_from_different_data(tmp_path: Path) -> None:
    with stand(tmp_path) as made:
        visible = made.answer(2.5)
        copy = made.service.freeze_and_copy()
        hidden = made.service.score_frozen("seal", copy, "hidden")
        again = made.service.score_frozen("seal", copy, "hidden")
    assert visible.status == hidden.status == "scored"
    assert visible.score != hidden.score and hidden.score == again.score
    assert 0 < visible.overhead_s < visible.scoring_s


@needs_box
def test_the_right_answer_scores_zero_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    with stand(tmp_path) as made:
        right, wrong = made.answer(made.slope), made.answer(made.slope + 1)
        assert right.score == pytest.approx(0, abs=1e-6)
        assert wrong.score is not None and wrong.score > 0.3


@needs_box
def test_a_candidate_that_cannot_start_is_our_fault(tmp_path: Path) -> None:
    class Broken(Toy):
        folder = tmp_path / "task"

    Broken.folder.mkdir()
    (Broken.folder / "candidate.py").write_text("import no_such_module\n")
    with stand(tmp_path / "stand", Broken()) as made:
        entry = made.answer(1.0)
        assert entry.status == "error" and "InfrastructureError" in entry.message
        assert "no_such_module" in entry.details["error"]
