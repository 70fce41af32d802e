"""No box at all: the command runs as the user, on the host. For machines where nothing else works, and labelled so.

The process tree is still ended whole (by cgroup where there is one, else as adopted descendants of this process), and
limits are still watched; nothing is hidden and the network is open.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from proctor.box.base import BoxPaths, BoxSpec, Capabilities
from proctor.box.cgroup import Cgroup, find_base
from proctor.box.spawn import OutputPump, sealed_file, spawn, was_spawned
from proctor.box.tree import ProcessTree, children, descendants, process_name, state
from proctor.box.warden import WARDEN
from proctor.box.watch import LimitWatch
from proctor.errors import InfrastructureError
from proctor.inbox import BIN, LIB
from proctor.spec import Enforced

PR_SET_CHILD_SUBREAPER = 36
KILL_TIMEOUT_S = 10.0


class _Adoption:
    """Orphans of running commands become children of this process, so that none can leave its tree."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0

    def change(self, by: int) -> None:
        """One box more or less wants it."""
        with self._lock:
            self._wanted += by
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(self._wanted > 0), 0, 0, 0)


_ADOPTION = _Adoption()


class NoneKind:
    """Runs commands on the bare host."""

    name = "none"

    def paths(self, root: Path) -> BoxPaths:
        return BoxPaths(
            workspace=str(root / "workspace"),
            data=str(root / "data"),
            agent=str(root / "agent"),
            tools=str(BIN),
            lib=str(LIB),
            candidate=str(root / "candidate"),
            socket=str(root / "broker.sock"),
        )

    def capabilities(self) -> Capabilities:
        tree = "cgroup.kill" if find_base() else "descendants and adopted orphans"
        return Capabilities(
            usable=True,
            isolated=False,
            enforced=Enforced(process_tree=tree, memory="polled (0.25 s), largest process killed", pids="polled"),
            problems=("`none` is no box: the agent can read the host's files, answers included, and use its network",),
        )

    def start(self, spec: BoxSpec) -> NoneBox:
        return NoneBox(spec)


class NoneBox:
    """One command on the bare host."""

    def __init__(self, spec: BoxSpec) -> None:
        self.name = spec.name
        for bind in spec.binds:  # what a mount would show is linked where the kind's paths say that it lies
            target = Path(bind.target)
            if not target.exists() and target.resolve() != bind.source.resolve():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(bind.source)
        base = find_base()
        self._group = base.create(spec.limits) if base else None
        self._guarded = str(self._group.path) if self._group else ""
        if self._group:
            WARDEN.guard(self._guarded)
        _ADOPTION.change(+1)
        try:
            self._process = self._start(spec)
        except BaseException:
            _ADOPTION.change(-1)
            if self._group:
                self._group.remove()
                WARDEN.forget(self._guarded)
            raise
        if not self._group:
            self._guarded = process_name(self._process.pid)
            WARDEN.guard(self._guarded)
        self._tree = _BareTree(self._process.pid, self._group, ())
        self._watch = LimitWatch(self._tree, spec.limits, self._group)
        self._closed = False
        self._closing = threading.Lock()

    def _start(self, spec: BoxSpec) -> subprocess.Popen[bytes]:
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        stdin = sealed_file("stdin", spec.stdin)
        argv = list(spec.argv)
        if self._group:
            # The shell puts itself into the group, then becomes the command: no process of it is ever outside.
            procs = str(self._group.path / "cgroup.procs")
            argv = ["/bin/sh", "-c", 'echo 0 >"$0" && exec "$@"', procs, *argv]
        try:
            self._pump = OutputPump({out_r: spec.stdout, err_r: spec.stderr}, spec.limits.output_bytes)
            return spawn(argv, env=spec.env, stdin=stdin, stdout=out_w, stderr=err_w, fds=spec.fds, cwd=spec.cwd)
        except OSError as error:
            self._pump.stop()
            raise InfrastructureError(f"{spec.argv[0]} could not be started: {error}") from error
        finally:
            for fd in (out_w, err_w, stdin):
                os.close(fd)

    def wait(self, timeout_s: float | None = None) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def pids(self) -> list[int]:
        return self._tree.pids()

    def signal(self, number: int) -> None:
        self._tree.signal(number)

    def freeze(self) -> None:
        self._tree.freeze()

    def thaw(self) -> None:
        self._tree.thaw()

    def kill(self) -> bool:
        until = time.monotonic() + KILL_TIMEOUT_S
        while True:  # without a group, what is born during a kill needs another one
            self._tree.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_TIMEOUT_S)
            if self._tree.wait_empty(0.1):
                return True
            if time.monotonic() > until:
                return False

    def limit_hit(self) -> str | None:
        return self._watch.hit()

    def close(self) -> None:
        with self._closing:  # two threads may close a box at once; what is counted must be given back once
            if self._closed:
                return
            self._closed = True
        self.kill()
        self._watch.stop()
        self._pump.stop()
        if self._group:
            self._group.remove()
        self._tree.pids()
        _ADOPTION.change(-1)
        WARDEN.forget(self._guarded)


class _BareTree(ProcessTree):
    """A tree without a namespace: its orphans are adopted by this process, which knows them by not having made them."""

    def __init__(self, init: int, group: Cgroup | None, own: Iterable[int]) -> None:
        super().__init__(init, group, own)
        self._seen: set[int] = set()

    def pids(self) -> list[int]:
        orphans = [pid for pid in children(os.getpid()) if pid != self._init and _orphan(pid)]
        for pid in orphans:
            with suppress(ChildProcessError):  # dead ones are ours to bury
                os.waitpid(pid, os.WNOHANG)
        if self._group:
            return super().pids()
        self._seen.update([self._init, *descendants(self._init)])
        for pid in orphans:
            self._seen.update([pid, *descendants(pid)])
        self._seen = {pid for pid in self._seen if state(pid) not in ("", "Z")}
        return list(self._seen)

    def kill(self) -> None:
        super().kill()
        if not self._group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._init, signal.SIGKILL)
            self.signal(signal.SIGKILL)


def _orphan(pid: int) -> bool:
    """Whether a child of this process came to it by its parent's death: nobody here started it, and its session, which
    goes back to a box's command, is not ours. With several boxes at once it may be another one's; dead weight either
    way, since a command that has ended has no use for what it left behind."""
    try:
        return os.getsid(pid) != os.getsid(0) and not was_spawned(pid)
    except ProcessLookupError:
        return False
