"""Candidate boxes, kept warm: the runtime is imported before a submission arrives, which is then shown read-only."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from proctor.box.base import Bind, Box, BoxKind, BoxSpec
from proctor.errors import InvalidSubmission
from proctor.inbox import LIB
from proctor.scoring.link import CandidateLink
from proctor.scoring.snapshot import Snapshot
from proctor.spec import MIB, Limits

WARM_TIMEOUT_S = 120.0
OUTPUT_BYTES = 1 * MIB


@dataclass(frozen=True)
class CandidateSetup:
    """What every candidate box of a run has in common."""

    kind: BoxKind
    candidate: tuple[Path, ...]
    """Files shown beside the driver; the first is the candidate.py that it loads."""
    public: Path
    python: str
    env: Mapping[str, str]
    devices: tuple[str, ...]
    hidden: tuple[Path, ...]
    limits: Limits
    root: Path
    """Host folder of the run under which slots are made; removed with the pool."""


@dataclass
class _Warm:
    """One candidate box and the folder that it sees as /workspace."""

    slot: Path
    box: Box
    link: CandidateLink
    ready: bool = False
    stderr: Path = field(default=Path())

    def freeze(self) -> None:
        self.box.freeze()

    def thaw(self) -> None:
        self.box.thaw()

    def kill(self) -> None:
        self.box.kill()

    def wait(self, timeout_s: float) -> int | None:
        return self.box.wait(timeout_s)

    def limit_hit(self) -> str | None:
        return self.box.limit_hit()

    def stderr_tail(self) -> str:
        try:
            with self.stderr.open("rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4000))
                return stream.read().decode(errors="replace")
        except OSError:
            return ""


class CandidatePool:
    """Starts candidate boxes ahead of need and hands each out once."""

    def __init__(self, setup: CandidateSetup, warm: int) -> None:
        self._setup = setup
        self._wanted = warm
        self._waiting: list[_Warm] = []
        self._in_use: list[_Warm] = []
        self._lock = threading.Lock()
        self._count = 0
        self._closed = False

    def fill(self, *, wait: bool = False) -> None:
        """Start boxes until enough are waiting; with `wait`, return when they have imported the runtime."""
        while (number := self._next_missing()) is not None:
            started = self._start(number)
            if not self._keep(started):
                self._discard(started)
        if wait:
            for warm in list(self._waiting):
                self._await(warm)

    def _next_missing(self) -> int | None:
        """A number for one more box, or None if enough are waiting or the pool is closed."""
        with self._lock:
            if self._closed or len(self._waiting) >= self._wanted:
                return None
            self._count += 1
            return self._count

    def _keep(self, warm: _Warm) -> bool:
        """Let a box wait for its submission; False if the pool was closed in the meantime."""
        with self._lock:
            if not self._closed:
                self._waiting.append(warm)
            return not self._closed

    def _start(self, number: int) -> _Warm:
        setup = self._setup
        root = setup.root / f"slot{number}"
        slot = root / "workspace"
        slot.mkdir(parents=True)
        paths = setup.kind.paths(root)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        stderr = root / "stderr"
        python_home = os.path.dirname(setup.python)
        spec = BoxSpec(
            name="candidate",
            argv=(
                setup.python,
                "-I",
                f"{paths.lib}/driver.py",
                str(theirs.fileno()),
                f"{paths.candidate}/{setup.candidate[0].name}",
            ),
            cwd=paths.workspace,
            env={"PATH": f"{python_home}:/usr/local/bin:/usr/bin:/bin", "HOME": "/home/agent", **setup.env},
            binds=(
                Bind(slot, paths.workspace),
                Bind(setup.public, paths.data),
                Bind(LIB, paths.lib),
                *(Bind(file, f"{paths.candidate}/{file.name}") for file in setup.candidate),
            ),
            stdout=root / "stdout",
            stderr=stderr,
            python=setup.python,
            hidden=setup.hidden,
            devices=setup.devices,
            limits=setup.limits.model_copy(update={"output_bytes": OUTPUT_BYTES}),
            fds=(theirs.fileno(),),
        )
        try:
            box = setup.kind.start(spec)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        warm = _Warm(slot, box, link=None, stderr=stderr)  # type: ignore[arg-type]
        warm.link = CandidateLink(ours, warm)
        return warm

    @staticmethod
    def _await(warm: _Warm) -> None:
        if not warm.ready:
            warm.link.wait_ready(WARM_TIMEOUT_S)
            warm.link.compute_s = 0.0
            warm.ready = True

    @contextmanager
    def open(
        self, snapshot: Snapshot, on_close: Callable[[CandidateLink], None] | None = None
    ) -> Iterator[CandidateLink]:
        """A fresh candidate that sees `snapshot`, and nothing else of the run, as its /workspace."""
        with self._lock:
            warm = self._waiting.pop(0) if self._waiting else None
        if warm is None:
            with self._lock:
                self._count += 1
                number = self._count
            warm = self._start(number)
        with self._lock:
            self._in_use.append(warm)
        try:
            self._await(warm)
            show(snapshot.files, warm.slot)
            yield warm.link
        finally:
            if on_close:
                on_close(warm.link)
            self._discard(warm)

    def kill_in_use(self) -> None:
        """End every candidate that is being scored (its scoring then fails)."""
        with self._lock:
            busy = list(self._in_use)
        for warm in busy:
            warm.kill()

    def _discard(self, warm: _Warm) -> None:
        with self._lock:
            if warm in self._in_use:
                self._in_use.remove(warm)
        warm.link.close()
        warm.box.close()
        shutil.rmtree(warm.slot.parent, ignore_errors=True)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            left = [*self._waiting, *self._in_use]
            self._waiting.clear()
        for warm in left:
            self._discard(warm)


def show(files: Path, slot: Path) -> None:
    """Put a snapshot's files into a slot: hard links where possible (the box sees them read-only), copies elsewhere."""
    try:
        shutil.copytree(files, slot, copy_function=_link, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise InvalidSubmission(f"the frozen submission could not be laid out: {error}") from error


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target
