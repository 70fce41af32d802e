"""The agent's counter: a Unix socket in the box on which `score`, `score-log`, `clock` and `submit` are asked for.

What comes over it is untrusted. A request is one JSON line of bounded length; scorings wait in a bounded queue; a
connection that says nothing is dropped. Nothing that is said here can change a score, a clock or a file of the host.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from proctor.clock import BudgetClock
from proctor.events import EventLog
from proctor.jsonio import to_json
from proctor.scoring.service import ScoringService
from proctor.spec import ScoreEntry
from proctor.tasks.base import Task

MAX_REQUEST = 64 * 1024
MAX_CONNECTIONS = 32
MAX_WAITING = 4
READ_TIMEOUT_S = 10.0


class Broker:
    """Serves one run's socket until closed."""

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
        self._last_call_s: float | None = None
        self._closed = False
        self._refused = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        _bind(self._socket, path)
        os.chmod(path, 0o666)
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._accept, name="broker", daemon=True)
        self._thread.start()

    @property
    def calls(self) -> int:
        """Scorings that the agent asked for and was given."""
        return self._calls

    def close(self) -> None:
        """Stop taking requests; a scoring that is running goes on."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(2.0)
        if self._refused:
            self._events.write("requests_refused", count=self._refused)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._open.acquire(blocking=False):
                self._refused += 1
                with suppress(OSError):
                    connection.send(b'{"status":"error","message":"too many requests at once"}\n')
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="request", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                answer, after = self._answer(_read_request(connection))
                with suppress(OSError):
                    connection.settimeout(READ_TIMEOUT_S)
                    connection.sendall((to_json(answer) + "\n").encode())
                if after:
                    after()
        finally:
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
        policy = self._task.policy
        if not self._waiting.acquire(blocking=False):
            self._refused += 1
            return self._time({"status": "error", "message": f"{MAX_WAITING} scorings are waiting already; try later"})
        try:
            with self._gate:
                if policy.max_calls is not None and self._calls >= policy.max_calls:
                    return self._time({"status": "error", "message": f"all {policy.max_calls} scorings are used up"})
                now = self._budget.elapsed()
                if self._last_call_s is not None and now - self._last_call_s < policy.cooldown_s:
                    wait = policy.cooldown_s - (now - self._last_call_s)
                    return self._time({"status": "error", "message": f"the next scoring is possible in {wait:.0f} s"})
                if self._budget.expired() or self._closed:
                    return self._time({"status": "error", "message": "the time is up"})
                self._calls += 1
                self._last_call_s = now
            target = request.get("target")
            entry = self._service.score(
                "agent", target if isinstance(target, str) else None, _text(request.get("note"))
            )
            return self._time(self._shown(entry))
        finally:
            self._waiting.release()

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
            shown.update(status="hidden", score=None)
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
    connection.settimeout(READ_TIMEOUT_S)
    data = b""
    try:
        while b"\n" not in data and len(data) <= MAX_REQUEST:
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
