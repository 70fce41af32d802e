"""Runs in a candidate's box: waits for operations, runs them beside the submission, sends plain arrays back.

Started as `python -I driver.py FD CANDIDATE_PY`. The task's candidate.py defines

    OPS = {"load": load, ...}    each  op(meta: dict, arrays: dict[str, ndarray], fds: list[int])
                                       -> (meta: dict, arrays: dict[str, ndarray])
    def warm() -> None           imports the runtime (torch) before any submission has arrived

The submission is in /workspace, the working directory. It is not on sys.path until candidate.py puts it there (in its
`load`), so that until then no code of the submission has run and the process can be used to calibrate. Nothing that is
said from here is trusted: the host checks shapes and values, takes the time, and computes the score.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import traceback

LIB = os.path.dirname(os.path.abspath(__file__))
CANDIDATE_PY = sys.argv[2]  # kept: a submission sees, and may change, sys.argv
sys.path.insert(0, LIB)

import wire  # noqa: E402


def tell(error: BaseException) -> str:
    """The exception as a submission's author wants to see it: its own frames, without ours."""
    if isinstance(error, SystemExit):
        return f"the submission called sys.exit({error.code!r})"
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__}, whose text cannot be had"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((LIB, os.path.dirname(CANDIDATE_PY), "<frozen"))]
    where = "".join(f"\n  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in own[-6:])
    return text[:4000] + where[:4000]


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(sock.fileno(), False)
    spec = importlib.util.spec_from_file_location("candidate", CANDIDATE_PY)
    assert spec is not None and spec.loader is not None
    candidate = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = candidate
    spec.loader.exec_module(candidate)
    if hasattr(candidate, "warm"):
        candidate.warm()
    wire.send(sock, {"ok": True, "meta": {"pid": os.getpid()}})
    while True:
        try:
            header, arrays, fds = wire.receive(sock, 1 << 40)
        except wire.WireClosed:
            return
        try:
            meta, out = candidate.OPS[header["op"]](header["meta"], arrays, fds)
            wire.send(sock, {"ok": True, "meta": meta}, out)
        except BaseException as error:
            wire.send(sock, {"ok": False, "meta": {"error": tell(error)}})


main()
