"""Whatever is sent to the broker's socket: it answers, or drops the line, and goes on; nothing hidden comes back."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from proctor.clock import BudgetClock, ManualClock
from proctor.events import EventLog
from proctor.inbox import BIN
from proctor.scoring import broker as broker_module
from proctor.scoring.broker import Broker
from proctor.scoring.scorelog import ScoreLog
from proctor.spec import ScoreEntry
from proctor.tasks.base import ScorePolicy
from tests.support.toy.task import BLIND, TASK, Toy

pytestmark = pytest.mark.usefixtures("no_leftovers")
HIDDEN_SCORE = 0.123456789


def entry(**changes: Any) -> ScoreEntry:
    values: dict[str, Any] = {
        "n": 0,
        "origin": "agent",
        "split": "visible",
        "elapsed_s": 1.0,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "status": "scored",
        "score": 2.0,
        "message": "scored",
        **changes,
    }
    return ScoreEntry(**values)


class Service:
    """In the place of the scoring service: scores at once, or when let."""

    def __init__(self, path: Path) -> None:
        self.log = ScoreLog(path)
        self.asked: list[tuple[str | None, str]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.started = threading.Semaphore(0)
        self.next: ScoreEntry = entry()
        self._lock = threading.Lock()

    def score(self, origin: str, target: str | None, note: str) -> ScoreEntry:
        with self._lock:
            self.asked.append((target, note))
            self.started.release()
            assert self.may_answer.wait(20)
            return self.log.append(self.next.model_copy(update={"note": note}))


class Counter:
    """A broker with its clock, and a way to speak to it."""

    def __init__(self, root: Path, task: Toy) -> None:
        self.path = root / "broker.sock"
        self.clock = ManualClock(100.0)
        self.budget = BudgetClock(60.0, self.clock)
        self.budget.start()
        self.service = Service(root / "scores.jsonl")
        self.submitted: list[str] = []
        self.submit_seen = threading.Event()
        self.events = root / "events.jsonl"
        log = EventLog(self.events, self.clock, self.budget)
        self.broker = Broker(self.path, task, self.service, self.budget, log, self._submit)  # type: ignore[arg-type]
        self.broker.serve()

    def _submit(self, note: str) -> None:
        self.submitted.append(note)
        self.submit_seen.set()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(str(self.path))
        return connection

    def raw(self, data: bytes) -> bytes:
        """What comes back for these bytes; nothing if the line was dropped."""
        with self.connect() as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have heard enough
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            with suppress(ConnectionResetError):
                while part := connection.recv(65536):
                    answer += part
            return answer

    def ask(self, **request: Any) -> dict[str, Any]:
        answer = json.loads(self.raw(json.dumps(request).encode() + b"\n"))
        assert isinstance(answer, dict)
        return answer


@contextmanager
def counter_for(root: Path, task: Toy = TASK) -> Iterator[Counter]:
    made = Counter(root, task)
    try:
        yield made
    finally:
        made.service.may_answer.set()
        made.broker.close()


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[Counter]:
    with counter_for(tmp_path) as made:
        yield made


def test_the_answers_of_the_four_operations(counter: Counter) -> None:
    scored = counter.ask(op="score", note="first")
    assert {"status": "scored", "score": 2.0, "message": "scored"}.items() <= scored.items()
    counter.clock.advance(15)
    clock = counter.ask(op="clock")
    assert (clock["status"], clock["elapsed_s"], clock["remaining_s"], clock["warnings"]) == ("ok", 15.0, 45.0, [])
    assert [e["note"] for e in counter.ask(op="score-log")["entries"]] == ["first"]
    assert counter.ask(op="submit", note="done")["status"] == "ok"
    assert counter.submit_seen.wait(5) and counter.submitted == ["done"]


GARBAGE = {
    "nothing": b"",
    "an empty line": b"\n",
    "binary": bytes(range(256)) * 16,
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "no object": b'["score"]\n',
    "a number": b"1e999\n",
    "a huge number": b"9" * 5000 + b"\n",
    "deep nesting": b"[" * 30_000 + b"\n",
    "a giant line": b'{"op": "' + b"x" * (1 << 20) + b'"}\n',
    "half a line": b'{"op": "clo',
    "not UTF-8": b'{"op": "\xff\xfe"}\n',
    "NUL": b"\0" * 70_000,
    "no operation": b"{}\n",
    "an unknown operation": b'{"op": "shell", "command": "id"}\n',
    "an operation that is an object": b'{"op": {"op": "score"}}\n',
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_gets_an_error_and_no_scoring(counter: Counter, name: str) -> None:
    answer = counter.raw(GARBAGE[name])
    if answer:
        assert json.loads(answer)["status"] == "error"
    assert counter.service.asked == [] and counter.submitted == []
    assert counter.ask(op="clock")["status"] == "ok"


def test_random_bytes_never_stop_it(counter: Counter) -> None:
    for _ in range(50):
        counter.raw(secrets.token_bytes(200))
    assert counter.ask(op="clock")["status"] == "ok"


@pytest.mark.parametrize("note", ["\ud800", "nul\0", "\x1b[2J", "x" * 60_000, "🦊" * 3000, '"}\n{"op": "submit"}'])
def test_any_note_is_written_down_and_read_back(counter: Counter, note: str) -> None:
    answer = counter.ask(op="score", note=note)
    assert answer["status"] == "scored"
    shown = counter.ask(op="score-log")["entries"][0]["note"]
    assert shown == note[:1000].encode("utf-8", "replace").decode()
    assert counter.submitted == []


@pytest.mark.parametrize("value", [None, 5, ["a"], {"a": 1}, True])
def test_fields_of_the_wrong_kind_count_as_absent(counter: Counter, value: object) -> None:
    assert counter.ask(op="score", note=value, target=value)["status"] == "scored"
    assert counter.service.asked == [(None, "")]


def test_a_thousand_scorings_at_once_are_bounded_and_all_answered(counter: Counter) -> None:
    counter.service.may_answer.clear()
    with ThreadPoolExecutor(64) as crowd:
        answers = [crowd.submit(counter.ask, op="score") for _ in range(1000)]
        assert counter.service.started.acquire(timeout=10)
        assert counter.ask(op="clock")["status"] == "ok", "the clock is told while scorings wait"
        counter.service.may_answer.set()
        got = [answer.result(timeout=30) for answer in answers]
    kinds = {answer["status"] for answer in got}
    assert len(got) == 1000 and kinds <= {"scored", "error"} and "scored" in kinds
    refused = [a["message"] for a in got if a["status"] == "error"]
    assert set(refused) <= {f"{broker_module.MAX_WAITING} scorings are waiting already; try later"}
    assert len(counter.service.log.entries) == 1000 - len(refused)


def test_idle_connections_do_not_shut_others_out_for_ever(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "READ_TIMEOUT_S", 0.3)
    idle = [counter.connect() for _ in range(broker_module.MAX_CONNECTIONS + 8)]
    try:
        assert counter.ask(op="clock")["status"] == "ok"
    finally:
        for connection in idle:
            connection.close()


def test_a_request_that_drips_is_cut_off(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "READ_TIMEOUT_S", 0.3)
    began = time.monotonic()
    with counter.connect() as connection, suppress(BrokenPipeError, ConnectionResetError):
        while time.monotonic() - began < 20:
            connection.sendall(b" ")  # each byte well within any limit for silence
            time.sleep(0.05)
    assert time.monotonic() - began < 10


def test_a_client_that_leaves_costs_nothing(counter: Counter) -> None:
    counter.service.may_answer.clear()
    with counter.connect() as connection:
        connection.sendall(b'{"op": "score"}\n')
        assert counter.service.started.acquire(timeout=5)
    counter.service.may_answer.set()
    assert counter.ask(op="clock")["status"] == "ok"


def test_descriptors_and_credentials_sent_along_are_dropped(counter: Counter) -> None:
    """`no_leftovers` sees to it that none stays open here."""
    with counter.connect() as connection, open(os.devnull) as null:
        socket.send_fds(connection, [b'{"op": "clock"}\n'], [null.fileno()] * 100)
        connection.shutdown(socket.SHUT_WR)
        assert json.loads(connection.recv(65536))["status"] == "ok"


# The agent's own limits


class Capped(Toy):
    policy = ScorePolicy(max_calls=2, cooldown_s=10.0)


def test_the_cap_and_the_pause_between_calls(tmp_path: Path) -> None:
    with counter_for(tmp_path, Capped()) as counter:
        assert counter.ask(op="score")["status"] == "scored"
        counter.clock.advance(4)
        early = counter.ask(op="score")
        assert (early["status"], early["message"]) == ("error", "the next scoring is possible in 6 s")
        counter.clock.advance(6)
        assert counter.ask(op="score")["status"] == "scored"
        counter.clock.advance(20)
        assert counter.ask(op="score")["message"] == "all 2 scorings are used up"
        assert len(counter.service.asked) == 2


def test_the_cap_holds_for_calls_at_the_same_moment(tmp_path: Path) -> None:
    class Twice(Toy):
        policy = ScorePolicy(max_calls=2)

    with counter_for(tmp_path, Twice()) as counter, ThreadPoolExecutor(32) as crowd:
        list(crowd.map(lambda _: counter.ask(op="score"), range(100)))
        assert len(counter.service.asked) == 2


def test_a_fault_of_ours_uses_up_no_call(tmp_path: Path) -> None:
    with counter_for(tmp_path, Capped()) as counter:
        counter.service.next = entry(status="error", score=None, message="scoring failed on our side (KeyError)")
        for _ in range(5):
            assert counter.ask(op="score")["status"] == "error"
        counter.service.next = entry()
        assert counter.ask(op="score")["status"] == "scored"


def test_no_run_fills_the_hosts_disk_with_scorings(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "MAX_SCORINGS", 3)
    for status in ("scored", "error", "invalid"):
        counter.service.next = entry(status=status, score=1.0 if status == "scored" else None)
        assert counter.ask(op="score")["status"] == status
    assert counter.ask(op="score")["message"] == "3 scorings are enough"
    assert len(counter.service.asked) == 3


def test_after_the_deadline_nothing_is_scored(counter: Counter) -> None:
    counter.clock.advance(60)
    answer = counter.ask(op="score")
    assert (answer["status"], answer["message"], answer["remaining_s"]) == ("error", "the time is up", 0.0)
    assert counter.service.asked == []


def test_after_the_end_nobody_answers(counter: Counter) -> None:
    counter.broker.close()
    with pytest.raises(OSError, match=r"refused|reset|Broken"):
        counter.ask(op="clock")


def test_closing_ends_idle_connections_and_lets_a_running_scoring_answer(counter: Counter) -> None:
    counter.service.may_answer.clear()
    idle = counter.connect()
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(counter.ask, op="score")
        assert counter.service.started.acquire(timeout=5)
        counter.broker.close()
        counter.service.may_answer.set()
        assert answer.result(timeout=10)["status"] == "scored"
    idle.settimeout(5)
    with suppress(ConnectionResetError):
        assert json.loads(idle.recv(4096) or b'{"status": "error"}')["status"] == "error"
    idle.close()


def test_requests_wait_until_the_agents_clock_runs(tmp_path: Path) -> None:
    """A submit in the first instant of a run is not lost: nothing is answered before there is somebody to tell."""
    clock = ManualClock()
    budget = BudgetClock(60.0, clock)
    told = threading.Event()
    log = EventLog(tmp_path / "events.jsonl", clock)
    early = Broker(tmp_path / "s", TASK, Service(tmp_path / "l"), budget, log, lambda _: told.set())  # type: ignore[arg-type]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "s"))
        connection.sendall(b'{"op": "submit"}\n')
        assert not told.wait(0.2)
        budget.start()
        early.serve()
        assert told.wait(5)
    early.close()


# What the agent may see


def test_the_agent_sees_its_own_scorings_and_no_hidden_one(counter: Counter) -> None:
    counter.ask(op="score", note="mine")
    for origin in ("final", "silent", "seal"):
        counter.service.log.append(entry(origin=origin, split="hidden", score=HIDDEN_SCORE, message=f"{HIDDEN_SCORE}"))
    everything = [counter.raw(json.dumps({"op": op}).encode() + b"\n") for op in ("score-log", "clock", "score")]
    assert not any(str(HIDDEN_SCORE).encode() in answer for answer in everything)
    assert [e["note"] for e in json.loads(everything[0])["entries"]] == ["mine"]


def test_a_task_without_visible_scores_shows_none_not_even_in_words(tmp_path: Path) -> None:
    with counter_for(tmp_path, BLIND) as counter:
        counter.service.next = entry(score=HIDDEN_SCORE, message=f"scored {HIDDEN_SCORE}", details={"x": HIDDEN_SCORE})
        answers = [counter.raw(b'{"op": "score"}\n'), counter.raw(b'{"op": "score-log"}\n')]
        assert json.loads(answers[0])["status"] == "hidden" and json.loads(answers[0])["score"] is None
        assert json.loads(answers[1])["entries"][0]["status"] == "hidden"
        assert not any(str(HIDDEN_SCORE).encode() in answer for answer in answers)
        counter.service.next = entry(status="invalid", score=None, message="answer.json lacks 'slope'")
        assert counter.ask(op="score")["message"] == "answer.json lacks 'slope'", "what to mend is told"


def test_details_of_a_scoring_stay_on_the_host(counter: Counter) -> None:
    counter.service.next = entry(status="error", score=None, message="our fault", details={"error": "/host/secret"})
    assert b"/host/secret" not in counter.raw(b'{"op": "score"}\n') + counter.raw(b'{"op": "score-log"}\n')


# The tools


def tool(counter: Counter, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-IS", str(BIN / "client.py"), *arguments],
        env={"PROCTOR_SOCKET": str(counter.path), **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.count("\n") <= 1
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def test_exit_codes_of_the_tools(counter: Counter) -> None:
    assert tool(counter, "score", "answer.json", "--note", "a note")[0] == 0
    assert counter.service.asked == [("answer.json", "a note")]
    counter.service.next = entry(status="invalid", score=None)
    assert tool(counter, "score")[0] == 3
    counter.service.next = entry(status="error", score=None)
    assert tool(counter, "score")[0] == 4
    assert tool(counter, "clock")[1]["remaining_s"] == 60.0
    assert tool(counter, "score", "--nope")[0] == 2
    assert tool(counter, "clock", "extra")[0] == 2
    assert counter.submitted == []


def test_the_tools_say_when_nobody_answers(counter: Counter) -> None:
    counter.broker.close()
    code, answer = tool(counter, "score")
    assert code == 4 and answer["status"] == "error" and "does not answer" in answer["message"]
    assert answer["remaining_s"] is None


@pytest.mark.parametrize("name", ["score", "score-log", "clock", "submit"])
def test_the_tools_do_not_care_for_the_agents_environment(counter: Counter, tmp_path: Path, name: str) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    for module in ("json.py", "socket.py", "sitecustomize.py", "usercustomize.py"):
        (evil / module).write_text("raise SystemExit(99)")
    done = subprocess.run(
        [str(BIN / name)],
        cwd=evil,
        env={"PROCTOR_SOCKET": str(counter.path), "PYTHONPATH": str(evil), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done


def test_a_socket_path_longer_than_an_address(tmp_path: Path) -> None:
    deep = tmp_path / ("long folder name ü " * 5) / ("d" * 100)
    deep.mkdir(parents=True)
    assert len(str(deep)) > 107
    with counter_for(deep) as counter:
        assert tool(counter, "clock")[1]["status"] == "ok"
