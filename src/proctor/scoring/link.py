"""The host's end of the line to a candidate: operations out, checked plain arrays back, every failure in words.

A candidate may hang, die, flood, lie about shapes or return NaN. Each of these ends as `InvalidSubmission` with a
message that its author can act on; none of them is an error of ours.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from proctor.errors import InvalidSubmission
from proctor.inbox.lib import wire
from proctor.tasks.base import Array, ArraySpec, Reply

SMALL_REPLY = 1 << 20
"""Array bytes accepted from an operation that is expected to return none."""


class Handle(Protocol):
    """The processes at the other end of the line."""

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout_s: float) -> int | None:
        """Exit status once the candidate has ended (negative: the signal), None if it has not within the limit."""
        ...

    def limit_hit(self) -> str | None:
        """Which limit of the box ended it ("memory: ..."), if one did."""
        ...

    def stderr_tail(self) -> str: ...


class CandidateLink:
    """A `Candidate` over a connected socket and a process handle."""

    def __init__(self, sock: socket.socket, handle: Handle) -> None:
        self._sock = sock
        self._handle = handle
        self.compute_s = 0.0
        """Host-clock seconds spent waiting for the candidate, over all calls."""

    def wait_ready(self, timeout_s: float) -> None:
        """Wait for the driver's greeting (runtime imported, no submission loaded yet)."""
        self._exchange(None, {}, (), SMALL_REPLY, time.monotonic() + timeout_s, timeout_s, "start")

    def call(
        self,
        op: str,
        arrays: Mapping[str, Array] | None = None,
        meta: Mapping[str, Any] | None = None,
        *,
        expect: Mapping[str, ArraySpec] | None = None,
        fds: Sequence[int] = (),
        timeout_s: float = 60.0,
    ) -> Reply:
        """See `proctor.tasks.base.Candidate.call`."""
        wanted = dict(expect or {})
        room = max(SMALL_REPLY, 2 * sum(spec.nbytes for spec in wanted.values()))
        header = {"op": op, "meta": dict(meta or {})}
        reply = self._exchange(header, dict(arrays or {}), fds, room, time.monotonic() + timeout_s, timeout_s, op)
        for name, spec in wanted.items():
            check_array(name, reply.arrays.get(name), spec)
        return reply

    def freeze(self) -> None:
        self._handle.freeze()

    def thaw(self) -> None:
        self._handle.thaw()

    def kill(self) -> None:
        self._handle.kill()

    def close(self) -> None:
        self._sock.close()

    def _exchange(
        self,
        header: dict[str, Any] | None,
        arrays: dict[str, Array],
        fds: Sequence[int],
        room: int,
        deadline: float,
        timeout_s: float,
        op: str,
    ) -> Reply:
        sent = started = time.monotonic()
        try:
            if header is not None:
                self._refuse_early_answer(op)
                wire.send(self._sock, header, arrays, fds, deadline)
                sent = time.monotonic()
            answer, out, got_fds = wire.receive(self._sock, room, deadline)
            seconds = time.monotonic() - sent
        except TimeoutError:
            self.kill()
            raise InvalidSubmission(f"the submission did not answer within {timeout_s:g} s ({op})") from None
        except wire.WireClosed:
            raise InvalidSubmission(self._death(op)) from None
        except wire.WireError as error:
            self.kill()
            raise InvalidSubmission(f"the submission's answer cannot be used ({op}): {error}") from None
        except OSError:
            raise InvalidSubmission(self._death(op)) from None
        finally:
            self.compute_s += time.monotonic() - started
        for fd in got_fds:  # nothing of ours ever asks for descriptors
            socket.close(fd)
        meta = answer.get("meta")
        meta = meta if isinstance(meta, dict) else {}
        if answer.get("ok") is not True:
            raise InvalidSubmission(
                f"{op} failed in the submission: {str(meta.get('error', 'no reason given'))[:6000]}"
            )
        return Reply(meta, out, seconds)

    def _refuse_early_answer(self, op: str) -> None:
        """An answer that lies ready before the question was forged, and would look infinitely fast."""
        self._sock.setblocking(False)
        try:
            early = self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        if early:
            self.kill()
            raise InvalidSubmission(f"the submission sent data to the scorer before it was asked to ({op})")

    def _death(self, op: str) -> str:
        status = self._handle.wait(5.0)
        limit = self._handle.limit_hit()
        if limit:
            return f"the submission was stopped at a limit of its box during {op}: {limit}"
        tail = self._handle.stderr_tail().strip()
        shown = f"; the end of its output:\n{tail[-1500:]}" if tail else ""
        if status is None:
            self.kill()
            return f"the submission closed its line to the scorer during {op}{shown}"
        if status < 0 or status > 128:
            number = -status if status < 0 else status - 128
            try:
                name = signal.Signals(number).name
            except ValueError:
                name = "unknown"
            return f"the submission was ended by signal {number} ({name}) during {op}{shown}"
        return f"the submission's process ended with exit code {status} during {op}{shown}"


def check_array(name: str, value: Array | None, spec: ArraySpec) -> None:
    """Refuse an array that is missing, of the wrong kind, of the wrong shape, or not finite."""
    if value is None:
        raise InvalidSubmission(f"the submission returned no array {name!r}")
    if str(value.dtype) != spec.dtype:
        raise InvalidSubmission(f"{name} has dtype {value.dtype}; {spec.dtype} was expected")
    if value.shape != spec.shape:
        rows = ""
        if value.ndim and len(spec.shape) and value.shape[0] < spec.shape[0]:
            rows = f" (only {value.shape[0]} of {spec.shape[0]} rows)"
        raise InvalidSubmission(f"{name} has shape {value.shape}; {spec.shape} was expected{rows}")
    if spec.finite and np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
        bad = int(np.size(value) - np.count_nonzero(np.isfinite(value)))
        raise InvalidSubmission(f"{name} holds {bad} values that are NaN or infinite")
