"""The agent's counter: a Unix socket in the box on which `score`, `score-log`, `clock` and `submit` are asked for.

What comes over it is untrusted. A request is one JSON line of bounded length, read within a bounded time; scorings wait
in a bounded queue; connections beyond a number wait to be accepted. Nothing that is said here can change a score, a
clock or a file of the host.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from proctor.clock import BudgetClock
from proctor.events import EventLog
from proctor.jsonio import to_json
from proctor.scoring.service import TIME_IS_UP, ScoringService
from proctor.spec import ScoreEntry
from proctor.tasks.base import Task

MAX_REQUEST = 64 * 1024
MAX_CONNECTIONS = 32
MAX_WAITING = 4
MAX_SCORINGS = 10_000
"""In one run, whatever came of them: each is a line in a log and in memory."""
READ_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 60.0
"""Long, since whoever asked may be frozen for the timing of another request."""
RETRY_S = 0.05
HIDDEN = "recorded; this task does not show its scores"


class Broker:
    """Serves one run's socket. It can be connected to from the start, and answers from `serve` until `close`."""

    def __init__(
        self,
        path: Path,
        task: Task,
        service: ScoringService,
        budget: BudgetClock,
        events: EventLog,
        on_submit: Callable[[str], None],
        warnings: Callable[[], list[str]] = list,
    ) -> None:
        self._task = task
        self._service = service
        self._budget = budget
        self._events = events
        self._on_submit = on_submit
        self._warnings = warnings
        self._open = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._waiting = threading.BoundedSemaphore(MAX_WAITING)
        self._gate = threading.Lock()
        self._calls = 0
        self._served = 0
        self._last_call_s: float | None = None
        self._closed = False
        self._refused = 0
        self._connections: set[socket.socket] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        _bind(self._socket, path)
        os.chmod(path, 0o666)
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._accept, name="broker", daemon=True)

    def serve(self) -> None:
        """Begin to answer, now that there is an agent's clock to answer by."""
        self._thread.start()

    def close(self) -> None:
        """Stop taking requests; a scoring that is running goes on."""
        with self._gate:
            self._closed = True
            connections = list(self._connections)
        for connection in [self._socket, *connections]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
        self._socket.close()
        if self._thread.ident is not None:
            self._thread.join(2.0)
        if self._refused:
            self._events.write("requests_refused", count=self._refused)

    def _accept(self) -> None:
        while not self._closed:
            if not self._open.acquire(timeout=1.0):
                continue
            try:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), name="request", daemon=True).start()
            except (OSError, RuntimeError):  # out of descriptors or threads for the moment, or closed
                self._open.release()
                if not self._closed:
                    time.sleep(RETRY_S)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                with self._gate:
                    if self._closed:
                        return
                    self._connections.add(connection)
                answer, after = self._answer(_read_request(connection))
                with suppress(OSError):
                    connection.settimeout(SEND_TIMEOUT_S)
                    connection.sendall((to_json(answer) + "\n").encode())
                if after:
                    after()
        finally:
            with self._gate:
                self._connections.discard(connection)
            self._open.release()

    def _answer(self, request: dict[str, Any] | None) -> tuple[dict[str, Any], Callable[[], None] | None]:
        """The answer to one request, and what to do once it has been sent."""
        if request is None:
            return self._time({"status": "error", "message": "the request is not one line of JSON"}), None
        op = request.get("op")
        if op == "clock":
            return self._time({"status": "ok", "budget_s": self._budget.budget_s, "warnings": self._warnings()}), None
        if op == "score-log":
            return self._time({"status": "ok", "entries": [self._shown(e) for e in self._own()]}), None
        if op == "score":
            return self._score(request), None
        if op == "submit":
            note = _text(request.get("note"))
            return self._time({"status": "ok", "message": "submitted; the run ends now"}), lambda: self._on_submit(note)
        return self._time({"status": "error", "message": f"there is no operation {str(op)[:40]!r}"}), None

    def _score(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self._waiting.acquire(blocking=False):
            self._refused += 1
            return self._time({"status": "error", "message": f"{MAX_WAITING} scorings are waiting already; try later"})
        try:
            with self._gate:
                before = self._last_call_s
                refusal = self._refusal()
                if refusal:
                    return self._time({"status": "error", "message": refusal})
                self._calls += 1
                self._served += 1
                self._last_call_s = self._budget.elapsed()
            target = request.get("target")
            entry = self._service.score(
                "agent", target if isinstance(target, str) else None, _text(request.get("note"))
            )
            if entry.status == "error":  # our fault: it is not one of the agent's calls
                with self._gate:
                    self._calls -= 1
                    self._last_call_s = before
            return self._time(self._shown(entry))
        finally:
            self._waiting.release()

    def _refusal(self) -> str | None:
        """Why there is no scoring now, if so."""
        policy = self._task.policy
        if self._budget.expired() or self._closed:
            return TIME_IS_UP
        if self._served >= MAX_SCORINGS:
            return f"{MAX_SCORINGS} scorings are enough"
        if policy.max_calls is not None and self._calls >= policy.max_calls:
            return f"all {policy.max_calls} scorings are used up"
        if self._last_call_s is not None:
            wait = policy.cooldown_s - (self._budget.elapsed() - self._last_call_s)
            if wait > 0:
                return f"the next scoring is possible in {math.ceil(wait)} s"
        return None

    def _own(self) -> list[ScoreEntry]:
        return [entry for entry in self._service.log.entries if entry.origin == "agent"]

    def _shown(self, entry: ScoreEntry) -> dict[str, Any]:
        """What the agent may learn of a scoring."""
        shown = {
            "status": entry.status,
            "score": entry.score,
            "message": entry.message,
            "scored_at_s": entry.elapsed_s,
            "scoring_s": entry.scoring_s,
            "note": entry.note,
        }
        if entry.status == "scored" and not self._task.visible:
            shown.update(status="hidden", score=None, message=HIDDEN)
        return shown

    def _time(self, answer: dict[str, Any]) -> dict[str, Any]:
        return {
            "score": None,
            "message": "",
            **answer,
            "elapsed_s": round(self._budget.elapsed(), 3),
            "remaining_s": round(self._budget.remaining(), 3),
        }


def _text(value: object) -> str:
    return value[:1000] if isinstance(value, str) else ""


def _read_request(connection: socket.socket) -> dict[str, Any] | None:
    """One JSON object on one line, or None."""
    until = time.monotonic() + READ_TIMEOUT_S
    data = b""
    try:
        while b"\n" not in data and len(data) <= MAX_REQUEST:
            connection.settimeout(max(0.001, until - time.monotonic()))
            part = connection.recv(4096)
            if not part:
                break
            data += part
        value = json.loads(data.split(b"\n", 1)[0])
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _bind(sock: socket.socket, path: Path) -> None:
    """Bind to a path of any length: a socket address holds only 107 bytes, a run folder may be deeper."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
