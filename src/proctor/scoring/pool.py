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
from proctor.errors import InfrastructureError, InvalidSubmission
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
    discarded: bool = False
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
    """Starts candidate boxes ahead of need and hands each out once.

    Until a box is handed out nothing of a submission is in it: whatever goes wrong before that is a fault of ours.

    Args:
        setup: What the boxes have in common.
        warm: How many to keep waiting.
        quiet: Nothing of an earlier box may run beside a later one (timing). Otherwise an answer does not wait for the
            used box to be taken down: giving back a large process's memory takes longer than many a scoring.
    """

    def __init__(self, setup: CandidateSetup, warm: int, *, quiet: bool = True) -> None:
        self._setup = setup
        self._wanted = warm
        self._quiet = quiet
        self._waiting: list[_Warm] = []
        self._in_use: list[_Warm] = []
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._filling = threading.Lock()
        self._busy = 0
        self._count = 0
        self._closed = False

    def fill(self, *, wait: bool = False) -> None:
        """Start boxes until enough are waiting; with `wait`, return when they have imported the runtime.

        Raises:
            InfrastructureError: A box cannot be started, or the runtime cannot be imported in it.
        """
        while True:
            with self._filling, self._starting_one() as number:
                if number is None or len(self._waiting) >= self._wanted:
                    break
                started = self._build(number)
                with self._lock:
                    self._waiting.append(started)
        if wait:
            for warm in list(self._waiting):
                self._await(warm)

    @contextmanager
    def _starting_one(self) -> Iterator[int | None]:
        """A number for a box that is about to be started; None if the pool is closed. `close` waits for the end."""
        with self._lock:
            number = None if self._closed else self._count
            self._count += 1
            self._busy += 1
        try:
            yield number
        finally:
            self._done()

    def _done(self) -> None:
        """One start or one taking down less that `close` waits for."""
        with self._lock:
            self._busy -= 1
            self._idle.notify_all()

    def _build(self, number: int) -> _Warm:
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
            mute=True,
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
        if warm.ready:
            return
        try:
            warm.link.wait_ready(WARM_TIMEOUT_S)
        except InvalidSubmission as error:
            raise InfrastructureError(f"the candidate's box did not get ready: {error}") from None
        warm.link.compute_s = 0.0
        warm.ready = True

    def _take(self) -> _Warm:
        """A box that lives and is ready. One that died while it waited is nobody's fault: the next one is taken."""
        while True:
            with self._lock:
                warm = self._waiting.pop(0) if self._waiting else None
                if warm is not None:
                    self._in_use.append(warm)
            if warm is None:
                break
            if warm.box.wait(0.0) is None:
                return warm
            self._discard(warm)
        with self._starting_one() as number:
            if number is None:
                raise InfrastructureError("the run is over: no more candidates are started")
            fresh = self._build(number)
            with self._lock:
                self._in_use.append(fresh)
            return fresh

    @contextmanager
    def open(
        self, snapshot: Snapshot, on_close: Callable[[CandidateLink], None] | None = None
    ) -> Iterator[CandidateLink]:
        """A fresh candidate that sees `snapshot`, and nothing else of the run, as its /workspace.

        Raises:
            InfrastructureError: No box can be had.
        """
        warm = self._take()
        try:
            self._await(warm)
            show(snapshot.files, warm.slot)
            yield warm.link
        finally:
            if on_close:
                on_close(warm.link)
            self._retire(warm)

    def _retire(self, warm: _Warm) -> None:
        """Take down a used box: at once, or beside what comes next."""
        if self._quiet:
            self._discard(warm)
            return

        def discard() -> None:
            try:
                self._discard(warm)
            finally:
                self._done()

        with self._lock:
            self._busy += 1
        try:
            threading.Thread(target=discard, name="retire", daemon=True).start()
        except RuntimeError:  # no more threads for the moment
            discard()

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
            if warm.discarded:
                return
            warm.discarded = True
        warm.link.close()
        warm.box.close()
        shutil.rmtree(warm.slot.parent, ignore_errors=True)

    def close(self) -> None:
        """End every box; when this returns none is left, none is being started, and none will be."""
        with self._lock:
            self._closed = True
            self._idle.wait_for(lambda: self._busy == 0)
            left = [*self._waiting, *self._in_use]
            self._waiting.clear()
        for warm in left:
            self._discard(warm)
        with self._lock:
            self._idle.wait_for(lambda: self._busy == 0)


def show(files: Path, slot: Path) -> None:
    """Copy a snapshot's files into a slot, for one candidate alone.

    Copies, not links: candidates that shared a file's pages could tell each other what they have read, and the audits
    rest on their not being able to.

    Raises:
        InfrastructureError: They cannot be laid out; the snapshot was already copied once, so that is the disk's doing.
    """
    try:
        shutil.copytree(files, slot, copy_function=shutil.copyfile, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise InfrastructureError(f"the frozen submission could not be laid out: {error}") from error
