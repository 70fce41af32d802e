"""What the host makes of a candidate's answers, without a box: a socket pair and a handle that plays dead."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from proctor.errors import InvalidSubmission
from proctor.inbox.lib import wire
from proctor.scoring.link import CandidateLink, check_array
from proctor.tasks.base import ArraySpec


@dataclass
class Handle:
    """A candidate's processes, as told by the test."""

    status: int | None = None
    limit: str | None = None
    stderr: str = ""
    calls: list[str] = field(default_factory=list)

    def freeze(self) -> None:
        self.calls.append("freeze")

    def thaw(self) -> None:
        self.calls.append("thaw")

    def kill(self) -> None:
        self.calls.append("kill")

    def wait(self, timeout_s: float) -> int | None:
        return self.status

    def limit_hit(self) -> str | None:
        return self.limit

    def stderr_tail(self) -> str:
        return self.stderr


class Line:
    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.handle = Handle()
        self.link = CandidateLink(self.ours, self.handle)

    def answering(self, answer: Callable[[], None]) -> None:
        """Answer the next request."""

        def serve() -> None:
            wire.receive(self.theirs, 1 << 30)
            answer()

        threading.Thread(target=serve, daemon=True).start()

    def failure(self, **how: Any) -> str:
        with pytest.raises(InvalidSubmission) as caught:
            self.link.call("predict", **{"timeout_s": 5.0, **how})
        return str(caught.value)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.link.close()
    made.theirs.close()


def test_an_answer_comes_back_checked_and_timed(line: Line) -> None:
    line.answering(lambda: wire.send(line.theirs, {"ok": True, "meta": {"a": 1}}, {"y": np.ones(3, "float32")}))
    reply = line.link.call("predict", {"x": np.zeros(3, "float32")}, expect={"y": ArraySpec((3,))}, timeout_s=5)
    assert reply.meta == {"a": 1} and reply.arrays["y"].tolist() == [1, 1, 1]
    assert 0 < reply.seconds <= line.link.compute_s < 5


def test_an_error_of_the_submission_is_told(line: Line) -> None:
    line.answering(lambda: wire.send(line.theirs, {"ok": False, "meta": {"error": "KeyError: 'w'"}}))
    assert line.failure() == "predict failed in the submission: KeyError: 'w'"


@pytest.mark.parametrize("header", [{}, {"ok": 1}, {"ok": "true", "meta": []}, {"ok": False, "meta": None}])
def test_anything_but_ok_true_is_a_failure(line: Line, header: dict[str, Any]) -> None:
    line.answering(lambda: wire.send(line.theirs, header))
    assert line.failure() == "predict failed in the submission: no reason given"


def test_silence_is_killed_at_the_limit(line: Line) -> None:
    assert line.failure(timeout_s=0.2) == "the submission did not answer within 0.2 s (predict)"
    assert line.handle.calls == ["kill"]


def test_an_answer_before_the_question_is_killed(line: Line) -> None:
    wire.send(line.theirs, {"ok": True, "meta": {}})
    assert "before it was asked" in line.failure()
    assert line.handle.calls == ["kill"]


def test_garbage_is_killed(line: Line) -> None:
    line.answering(lambda: line.theirs.sendall(b"\xff" * 100))
    assert "cannot be used" in line.failure()
    assert line.handle.calls == ["kill"]


@pytest.mark.parametrize(
    ("status", "limit", "stderr", "words"),
    [
        (0, None, "", "ended with exit code 0 during predict"),
        (3, None, "Traceback: boom", "exit code 3 during predict; the end of its output:\nTraceback: boom"),
        (-11, None, "", "ended by signal 11 (SIGSEGV)"),
        (137, None, "", "ended by signal 9 (SIGKILL)"),
        (-77, None, "", "ended by signal 77 (unknown)"),
        (137, "memory: more than 64 MiB", "", "stopped at a limit of its box during predict: memory: more than 64 MiB"),
        (None, None, "", "closed its line to the scorer during predict"),
    ],
)
def test_every_death_has_its_own_words(
    line: Line, status: int | None, limit: str | None, stderr: str, words: str
) -> None:
    line.handle.status, line.handle.limit, line.handle.stderr = status, limit, stderr
    line.theirs.close()
    assert words in line.failure()


@pytest.mark.usefixtures("no_leftovers")
def test_descriptors_that_come_with_an_answer_are_closed() -> None:
    line = Line()
    with open(os.devnull) as null:
        line.answering(lambda: wire.send(line.theirs, {"ok": True, "meta": {}}, fds=[null.fileno()] * 5))
        line.link.call("predict", timeout_s=5)
    line.link.close()
    line.theirs.close()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "no array 'y'"),
        (np.zeros(4, "float64"), "y has dtype float64; float32 was expected"),
        (np.zeros((4, 1), "float32"), "y has shape (4, 1); (4,) was expected"),
        (np.zeros(3, "float32"), "(only 3 of 4 rows)"),
        (np.zeros((), "float32"), "y has shape (); (4,) was expected"),
        (np.array([0, np.nan, np.inf, -np.inf], "float32"), "y holds 3 values that are NaN or infinite"),
    ],
)
def test_arrays_that_are_not_what_was_asked_for(value: np.ndarray[Any, Any] | None, words: str) -> None:
    with pytest.raises(InvalidSubmission) as caught:
        check_array("y", value, ArraySpec((4,)))
    assert words in str(caught.value)


def test_arrays_that_are_what_was_asked_for() -> None:
    check_array("y", np.zeros(4, "float32"), ArraySpec((4,)))
    check_array("y", np.array([np.nan], "float64"), ArraySpec((1,), "float64", finite=False))
    check_array("y", np.array([1], "int64"), ArraySpec((1,), "int64"))
    assert ArraySpec((2, 0, 3)).nbytes == 0 and ArraySpec(()).nbytes == 4
