"""Arrays on a GPU, kept by a trusted process of ours (`judge.py`) and shared with the candidate by descriptor.

This process never touches the GPU; it starts the judge, passes its descriptors on, and asks it to fill, look, verify.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from proctor.errors import InfrastructureError
from proctor.inbox.lib import wire
from proctor.tasks.rebench.prefix_sum.buffers import FirstWrong, Order, Verdict
from proctor.tasks.rebench.prefix_sum.data import Recipe

JUDGE = Path(__file__).with_name("judge.py")
START_TIMEOUT_S = 180.0
CALL_TIMEOUT_S = 120.0
REPLY_BYTES = 1 << 16


class JudgeBuffers:
    """`proctor.tasks.rebench.prefix_sum.buffers.Buffers` kept by a judge process.

    Args:
        n: Elements of each array.
        pairs: The most inputs, and outputs, to hold; the judge takes fewer where the GPU's memory is short.
        rng: Where seeds come from.
        python: Interpreter that has torch.
        device: `cuda`, or `cpu` to keep the arrays in memfds instead, by the same protocol.
        gpu_uuid: Which GPU; None for the first visible one.

    Raises:
        InfrastructureError: The judge does not start, or the GPU has not enough memory left.
    """

    def __init__(
        self,
        n: int,
        pairs: int,
        rng: np.random.Generator,
        python: str,
        device: Literal["cpu", "cuda"] = "cuda",
        gpu_uuid: str | None = None,
    ) -> None:
        self.n = n
        self.device = device
        self._rng = rng
        self._fds: list[int] = []
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        env = {**os.environ, **({"CUDA_VISIBLE_DEVICES": gpu_uuid} if gpu_uuid else {})}
        with theirs:
            self._process = subprocess.Popen(
                [python, "-I", str(JUDGE), str(theirs.fileno()), device],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                env=env,
            )
        try:
            self._mapping, fds = self._ask("allocate", {"n": n, "pairs": pairs}, START_TIMEOUT_S)
        except InfrastructureError:
            self.close()
            raise
        self._fds = fds
        self.pairs = int(self._mapping["pairs"])

    def mapping(self) -> dict[str, Any]:
        return {name: self._mapping[name] for name in ("kind", "n", "bytes", "pairs")}

    def hardware(self) -> dict[str, Any]:
        """The GPU as the judge sees it: its name, its memory, torch's version."""
        return {name: self._mapping[name] for name in ("gpu", "gpu_memory", "torch")}

    def descriptors(self) -> list[int]:
        return list(self._fds)

    def fill(self, order: Order, recipes: Sequence[Recipe]) -> float:
        meta = {
            "order": [list(pair) for pair in order],
            "recipes": [[r.seed, r.low, r.high] for r in recipes],
            "seed": int(self._rng.integers(0, 2**63)),
        }
        return float(self._ask("fill", meta)[0]["seconds"])

    def look(self) -> float:
        return float(self._ask("look")[0]["seconds"])

    def verify(self) -> Verdict:
        meta, _ = self._ask("verify")
        first = meta["first"]
        return Verdict(
            int(meta["wrong"]),
            int(meta["spots_wrong"]),
            int(meta["mutated"]),
            int(meta["unwritten"]),
            FirstWrong(*(int(v) for v in first)) if first else None,
        )

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self._sock.close()
        self._process.kill()
        self._process.wait()
        self._stderr.close()

    def _ask(
        self, op: str, meta: Mapping[str, Any] | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> tuple[dict[str, Any], list[int]]:
        """One operation of the judge: its answer's data and descriptors."""
        deadline = time.monotonic() + timeout_s
        try:
            wire.send(self._sock, {"op": op, "meta": dict(meta or {})}, deadline=deadline)
            answer, _, fds = wire.receive(self._sock, REPLY_BYTES, deadline)
        except TimeoutError:
            raise InfrastructureError(f"the judge of prefix_sum did not answer within {timeout_s:g} s ({op})") from None
        except (wire.WireError, OSError) as error:
            raise InfrastructureError(
                f"the judge of prefix_sum ended during {op} ({error}); the end of its output:\n{self._output()}"
            ) from None
        if answer.get("ok") is not True:
            raise InfrastructureError(f"the judge of prefix_sum failed in {op}: {answer['meta']['error']}")
        return answer["meta"], fds

    def _output(self) -> str:
        fd = self._stderr.fileno()
        at = max(0, os.fstat(fd).st_size - 2000)
        return os.pread(fd, 2000, at).decode(errors="replace")  # the judge writes at the offset that a read would move
