"""A candidate without a box: the same driver and line, as a plain child process. For tests of a task's evaluation."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proctor.inbox import LIB
from proctor.scoring.link import CandidateLink


class LocalHandle:
    def __init__(self, process: subprocess.Popen[bytes], stderr: Path) -> None:
        self.process = process
        self._stderr = stderr

    def freeze(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def limit_hit(self) -> str | None:
        return None

    def stderr_tail(self) -> str:
        return self._stderr.read_text(errors="replace")


@contextmanager
def local_candidate(candidate_py: Path, workspace: Path, env: dict[str, str] | None = None) -> Iterator[CandidateLink]:
    """Start the driver on `workspace` (the frozen submission) with the task's candidate.py."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with tempfile.TemporaryDirectory() as scratch, ours:
        stderr = Path(scratch) / "stderr"
        with stderr.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-I", str(LIB / "driver.py"), str(theirs.fileno()), str(candidate_py)],
                cwd=workspace,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                env={"PATH": os.environ["PATH"], **(env or {})},
            )
        theirs.close()
        handle = LocalHandle(process, stderr)
        link = CandidateLink(ours, handle)
        try:
            link.wait_ready(120.0)
            yield link
        finally:
            handle.kill()
            process.wait()
