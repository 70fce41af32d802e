"""Starting processes and carrying their output away.

`bwrap --die-with-parent` asks the kernel to kill the box when the *thread* that started it ends. So every box is
started from one thread that lives as long as this process.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")
CHUNK = 1 << 16


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
    fds: Sequence[int] = (),
    cwd: str | None = None,
    new_session: bool = True,
) -> subprocess.Popen[bytes]:
    """`subprocess.Popen`, from the long-lived thread."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            env=dict(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(fds),
            cwd=cwd,
            start_new_session=new_session,
        )

    return _SPAWNER.submit(start).result()


class OutputPump:
    """Copies a process's output to files by bytes, each up to a cap; what is over is counted and dropped.

    Reading goes on past the cap, so that a flood never blocks or kills the writer. No decoding, no lines: NUL, broken
    UTF-8, carriage returns and lines of any length are bytes like others.
    """

    def __init__(self, sinks: Mapping[int, Path], cap_bytes: int) -> None:
        self._cap = cap_bytes
        self._selector = selectors.DefaultSelector()
        self.written: dict[Path, int] = {}
        self.dropped: dict[Path, int] = {}
        self._files = {}
        for fd, path in sinks.items():
            os.set_blocking(fd, False)
            self._files[fd] = (path, path.open("ab", buffering=0))
            self.written[path] = self.dropped[path] = 0
            self._selector.register(fd, selectors.EVENT_READ)
        self._stop_r, self._stop_w = os.pipe()
        self._selector.register(self._stop_r, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        stopping = False
        while self._files:
            # After stop(), take what is already there and no more: a process may hold the pipe open for ever.
            ready = self._selector.select(0 if stopping else None)
            if stopping and not ready:
                break
            for key, _ in ready:
                if key.fd == self._stop_r:
                    stopping = True
                    self._selector.unregister(self._stop_r)
                elif not self._copy(key.fd):
                    self._selector.unregister(key.fd)
                    self._files.pop(key.fd)[1].close()
                    os.close(key.fd)
        for fd, (_, stream) in self._files.items():
            stream.close()
            os.close(fd)
        self._selector.close()

    def _copy(self, fd: int) -> bool:
        """Move what is ready; False at the end of the stream."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        path, stream = self._files[fd]
        room = max(0, self._cap - self.written[path])
        try:
            kept = stream.write(data[:room]) if room else 0
        except OSError:  # the disk is full: the agent's output is lost from here on, the run is not
            kept = 0
        self.written[path] += kept
        self.dropped[path] += len(data) - kept
        return bool(data)

    def stop(self, timeout_s: float = 2.0) -> None:
        """Take what is left in the pipes and end, even if some process still holds them open."""
        if self._thread.is_alive():
            os.write(self._stop_w, b"x")
        self._thread.join(timeout_s)
        for fd in (self._stop_r, self._stop_w):
            os.close(fd)
        for path, lost in self.dropped.items():
            if lost:
                with path.open("ab") as stream:
                    stream.write(f"\n[proctor: {lost} more bytes were dropped here, over the cap]\n".encode())
        self._stop_r = self._stop_w = -1


def stdin_from(data: bytes) -> int:
    """A descriptor from which `data` can be read to its end."""
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
