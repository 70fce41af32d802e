"""The hard clock: which end a run comes to, and that its whole tree goes with it. Time is moved by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proctor.clock import BudgetClock, ManualClock
from proctor.errors import InfrastructureError, InvalidSubmission
from proctor.events import EventLog
from proctor.jsonio import read_lines
from proctor.run import supervise
from proctor.run.supervise import DiskWatch, Ending, SilentSnapshots, Supervisor, TooDeep, disk_usage
from proctor.scoring.service import Frozen
from proctor.scoring.snapshot import Snapshot
from proctor.spec import MIB, Ended
from tests.box.support import until


@dataclass
class FakeBox:
    """A box that is told when to end, and that notes what is done to it."""

    name: str = "fake"
    obeys: bool = True
    survives_kill: bool = False
    hit: str | None = None
    done: list[str] = field(default_factory=list)
    status: int | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def exit(self, status: int) -> None:
        self.status = status if self.status is None else self.status
        self._ended.set()

    def wait(self, timeout_s: float | None = None) -> int | None:
        self._ended.wait(timeout_s)
        return self.status

    def pids(self) -> list[int]:
        return []

    def signal(self, number: int) -> None:
        self.done.append(signal.Signals(number).name)
        if self.obeys:
            self.exit(128 + number)

    def freeze(self) -> None:
        self.done.append("freeze")

    def thaw(self) -> None:
        self.done.append("thaw")

    def kill(self) -> bool:
        self.done.append("kill")
        self.exit(137)
        return not self.survives_kill

    def limit_hit(self) -> str | None:
        return self.hit

    def close(self) -> None:
        self.done.append("close")


class Exam:
    """A supervisor at work in a thread, on a clock that the test moves."""

    def __init__(self, folder: Path, budget_s: float = 10.0, grace_s: float = 0.05, **box: Any) -> None:
        self.time = ManualClock()
        self.budget = BudgetClock(budget_s, self.time)
        self.box = FakeBox(**box)
        self.log = folder / "events.jsonl"
        self.ticks = 0
        self.supervisor = Supervisor(self.box, self.budget, EventLog(self.log, self.time), grace_s, self._tick)
        self.endings: list[Ending] = []
        self._thread = threading.Thread(target=lambda: self.endings.append(self.supervisor.watch()), daemon=True)

    def _tick(self) -> None:
        self.ticks += 1

    def start(self) -> Exam:
        self.budget.start()
        self._thread.start()
        return self

    def start_watching(self) -> Ending:
        """Watch in this thread, on a clock that runs already."""
        return self.supervisor.watch()

    def ended(self) -> Ending:
        self._thread.join(10.0)
        assert self.endings, "the supervisor did not come to an end"
        return self.endings[0]

    def events(self) -> list[str]:
        return [str(line["event"]) for line in read_lines(self.log)]


@pytest.fixture
def exam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Exam]:
    monkeypatch.setattr(supervise, "TICK_S", 0.005)
    return lambda **changes: Exam(tmp_path, **changes)


def test_exit_gives_its_code_and_leaves_no_daemon(exam: Callable[..., Exam]) -> None:
    one = exam().start()
    one.box.exit(3)
    ending = one.ended()
    assert (ending.ended, ending.exit_code, ending.limit, ending.tree_empty) == (Ended.EXITED, 3, None, True)
    assert one.box.done == ["kill"]
    assert one.events() == ["exited", "tree_dead"]
    assert not one.budget.running


def test_submit_ends_the_run_at_once_without_a_grace(exam: Callable[..., Exam]) -> None:
    one = exam(grace_s=60.0).start()
    one.supervisor.submit("my best")
    ending = one.ended()
    assert (ending.ended, ending.exit_code, ending.limit) == (Ended.SUBMITTED, None, None)
    assert one.box.done == ["kill"]


def test_deadline_asks_first_and_kills_after_the_grace(exam: Callable[..., Exam]) -> None:
    one = exam(obeys=False).start()
    one.time.advance(9.9)
    assert not until(lambda: bool(one.endings), 0.05), "it ended before the deadline"
    one.time.advance(0.2)
    ending = one.ended()
    assert (ending.ended, ending.exit_code, ending.limit) == (Ended.DEADLINE, None, "time: 10 s")
    assert one.box.done == ["SIGTERM", "kill"]
    assert ending.kill_s >= 0.05


def test_agent_that_ends_within_the_grace_is_not_waited_for(exam: Callable[..., Exam]) -> None:
    one = exam(grace_s=60.0).start()
    one.time.advance(10.0)
    assert one.ended().kill_s < 5.0
    assert one.box.done == ["SIGTERM", "kill"]


def test_credit_moves_the_deadline(exam: Callable[..., Exam]) -> None:
    one = exam().start()
    one.time.advance(9.0)
    one.budget.credit(5.0)
    one.time.advance(5.0)
    assert not until(lambda: bool(one.endings), 0.05), "the credit was not given"
    one.time.advance(1.0)
    assert one.ended().ended is Ended.DEADLINE


def test_submit_in_the_last_moment_is_a_submit(exam: Callable[..., Exam]) -> None:
    """It was answered as accepted, so the record must not say that the time ran out."""
    one = exam()
    one.budget.start()
    one.time.advance(9.95)
    one.supervisor.submit("just in time")
    one.time.advance(0.2)
    assert one.start_watching().ended is Ended.SUBMITTED


def test_submit_while_the_supervisor_sleeps_through_the_deadline_is_a_submit(
    exam: Callable[..., Exam], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = exam()
    one.budget.start()
    real = one.supervisor._next

    def next_news(seconds: float) -> tuple[str, str] | None:
        if seconds > 0:  # the wait ends with nothing, and only then the submit and the deadline come
            one.time.advance(9.99)
            one.supervisor.submit("just in time")
            one.time.advance(0.02)
            return None
        return real(seconds)

    monkeypatch.setattr(one.supervisor, "_next", next_news)
    assert one.start_watching().ended is Ended.SUBMITTED


def test_submit_within_the_grace_ends_the_waiting_but_not_the_fact_of_the_deadline(exam: Callable[..., Exam]) -> None:
    one = exam(grace_s=60.0, obeys=False).start()
    one.time.advance(10.0)
    assert until(lambda: "SIGTERM" in one.box.done)
    one.supervisor.submit("late")
    assert one.ended().ended is Ended.DEADLINE


def test_limit_ends_the_run_and_is_named(exam: Callable[..., Exam]) -> None:
    one = exam().start()
    one.supervisor.limit("disk: 3 MiB of 2 MiB")
    ending = one.ended()
    assert (ending.ended, ending.limit) == (Ended.KILLED, "disk: 3 MiB of 2 MiB")
    assert one.box.done == ["SIGTERM", "kill"]


def test_limit_that_the_box_met_is_told_with_the_exit(exam: Callable[..., Exam]) -> None:
    one = exam(hit="memory: 2 GiB were used").start()
    one.box.exit(137)
    ending = one.ended()
    assert (ending.ended, ending.exit_code, ending.limit) == (Ended.EXITED, 137, "memory: 2 GiB were used")


def test_order_to_stop_gives_the_grace_and_says_killed(exam: Callable[..., Exam]) -> None:
    one = exam(obeys=False).start()
    one.supervisor.stop("SIGINT")
    ending = one.ended()
    assert (ending.ended, ending.limit) == (Ended.KILLED, None)
    assert one.box.done == ["SIGTERM", "kill"]


def test_first_of_several_ends_counts(exam: Callable[..., Exam]) -> None:
    one = exam()
    one.budget.start()
    one.supervisor.submit("first")
    one.supervisor.stop("second")
    one.supervisor.limit("third")
    assert one.start_watching().ended is Ended.SUBMITTED


def test_process_that_survives_the_kill_is_on_record(exam: Callable[..., Exam]) -> None:
    one = exam(survives_kill=True).start()
    one.box.exit(0)
    assert not one.ended().tree_empty
    assert one.events() == ["exited", "tree_not_dead"]


def test_it_ticks_while_nothing_happens(exam: Callable[..., Exam]) -> None:
    one = exam().start()
    assert until(lambda: one.ticks > 3)
    one.box.exit(0)
    one.ended()


class FakeService:
    """Takes silent snapshots that cost a second each."""

    def __init__(self, time: ManualClock, outcomes: list[Exception | None], folder: Path) -> None:
        self._time = time
        self._outcomes = outcomes
        self._folder = folder
        self.moments: list[float] = []

    def freeze_and_copy(self, target: str | None = None, *, silent: bool = False) -> Frozen:
        assert silent
        self.moments.append(self._time.monotonic())
        self._time.advance(1.0)
        outcome = self._outcomes.pop(0) if self._outcomes else None
        if outcome is not None:
            raise outcome
        return Frozen(Snapshot(self._folder / "s", "answer.json", "abc"), self.moments[-1], 1.0)


def silent_run(tmp_path: Path, outcomes: list[Exception | None]) -> tuple[FakeService, SilentSnapshots, BudgetClock]:
    time = ManualClock()
    budget = BudgetClock(40.0, time)
    service = FakeService(time, outcomes, tmp_path)
    events = EventLog(tmp_path / "events.jsonl", time)
    silent = SilentSnapshots(service, budget, 4, tmp_path / "silent.jsonl", events)  # type: ignore[arg-type]
    # A wait is over when the time has been moved by as much.
    silent._stop.wait = lambda seconds: bool(time.advance(float(seconds or 0)))  # type: ignore[method-assign]
    budget.start()
    silent.start()
    silent._thread.join(10.0)
    return service, silent, budget


def test_silent_snapshots_are_taken_at_fractions_of_the_budget_and_give_their_time_back(tmp_path: Path) -> None:
    service, silent, budget = silent_run(tmp_path, [])
    # Each second that a snapshot took moves the later ones and the deadline by a second.
    assert service.moments == pytest.approx([10.0, 21.0, 32.0])
    assert budget.elapsed() == pytest.approx(30.0)
    assert len(silent.taken) == 3
    assert [line["sha256"] for line in read_lines(tmp_path / "silent.jsonl")] == ["abc"] * 3


def test_snapshot_of_nothing_is_no_point_of_the_curve(tmp_path: Path) -> None:
    service, silent, _ = silent_run(tmp_path, [InvalidSubmission("nothing yet"), None, None])
    assert len(service.moments) == 3
    assert len(silent.taken) == 2


def test_snapshot_that_fails_through_our_fault_is_an_event_and_the_next_one_is_taken(tmp_path: Path) -> None:
    _, silent, _ = silent_run(tmp_path, [InfrastructureError("disk full"), None, None])
    assert len(silent.taken) == 2
    events = [line for line in read_lines(tmp_path / "events.jsonl") if line["event"] == "silent_snapshot_failed"]
    assert [event["error"] for event in events] == ["disk full"]


class Watched:
    """A disk watch that looks every few milliseconds."""

    def __init__(self, root: Path, quota: int, pids: Callable[[], list[int]] = list) -> None:
        self.folder = root / "workspace"
        self.folder.mkdir()
        self.log = root / "events.jsonl"
        self.over: list[str] = []
        self.warnings: list[str] = []
        events = EventLog(self.log, ManualClock())
        self.watch = DiskWatch(self.folder, quota, events, self.over.append, self.warnings, pids)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watched]:
    monkeypatch.setattr(supervise, "DISK_INTERVAL_S", 0.01)
    return lambda quota=4 * MIB, **changes: Watched(tmp_path, quota, **changes)


def test_disk_near_the_quota_warns_once_and_over_it_ends_the_run(watched: Callable[..., Watched]) -> None:
    one = watched()
    with one.watch:
        (one.folder / "a").write_bytes(b"x" * (3 * MIB))
        assert not until(lambda: bool(one.warnings or one.over), 0.1)
        (one.folder / "b").write_bytes(b"x" * (MIB * 8 // 10))
        assert until(lambda: bool(one.warnings))
        assert not until(lambda: len(one.warnings) > 1 or bool(one.over), 0.1)
        (one.folder / "c").write_bytes(b"x" * MIB)
        assert until(lambda: bool(one.over))
    assert one.over == ["disk: the workspace holds 4 MiB, 4 MiB are allowed"]
    assert "over that the run ends" in one.warnings[0]
    assert [line["event"] for line in read_lines(one.log)] == ["disk_warning"]


def test_file_that_was_deleted_but_is_open_counts(watched: Callable[..., Watched]) -> None:
    code = (
        "import os,sys,time;f=open(sys.argv[1],'wb');os.unlink(sys.argv[1]);f.write(bytes(6<<20));f.flush();"
        "print(1,flush=True);time.sleep(60)"
    )
    one = watched()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code, str(one.folder / "hidden")], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert disk_usage(one.folder).size < MIB, "it has no name any more"
        one.watch._pids = lambda: [process.pid]
        with one.watch:
            assert until(lambda: bool(one.over))
        process.kill()
    assert one.over[0].startswith("disk: the workspace holds 6 MiB")


def test_number_of_files_is_bounded(watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "MAX_FILES", 50)
    one = watched()
    for i in range(51):
        (one.folder / str(i)).touch()
    with one.watch:
        assert until(lambda: bool(one.over))
    assert one.over == ["disk: the workspace holds 51 files, 50 are allowed"]


def test_tree_that_is_too_deep_to_measure_ends_the_run(watched: Callable[..., Watched]) -> None:
    one = watched()
    here = os.open(one.folder, os.O_RDONLY)
    for _ in range(300):  # a path of 60 000 characters, longer than any call takes
        os.mkdir("d" * 200, dir_fd=here)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    with pytest.raises(TooDeep):
        disk_usage(one.folder)
    with one.watch:
        assert until(lambda: bool(one.over))
    assert one.over == ["disk: the workspace has folders more than 256 deep"]
    subprocess.run(["rm", "-rf", str(one.folder)], check=True)


def test_path_longer_than_the_system_takes_hides_nothing(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    fd = os.open("big", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(fd, b"x" * (2 * MIB))
    os.fsync(fd)
    os.close(fd)
    os.close(here)
    assert disk_usage(tmp_path).size >= 2 * MIB
    subprocess.run(["rm", "-rf", *map(str, tmp_path.iterdir())], check=True)


def test_links_are_not_followed_and_a_file_linked_twice_counts_once(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "big").write_bytes(b"x" * (5 * MIB))
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "one").write_bytes(b"x" * MIB)
    os.link(inside / "one", inside / "two")
    os.sync()
    usage = disk_usage(inside)
    assert MIB <= usage.size < 2 * MIB
    assert usage.files == 3


def test_sparse_file_counts_what_it_takes(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    assert disk_usage(tmp_path).size < MIB
