"""The system-call filter of a box: what no namespace keeps apart is refused by the kernel before it is looked at.

Refused are calls that reach past the namespaces (virtual-machine sockets, kernel keyrings, the kernel's log), that make
new namespaces or mounts, that open large parts of the kernel which training code does not need, and `io_uring`, whose
operations are not seen by any filter and would give back what `socket` refuses. Everything else is allowed, so that
compilers, debuggers, Python, Node and CUDA work as they do outside; nothing is refused here that the default profiles
of container engines allow to an unprivileged process and that such programs use.

The program is classic BPF (`struct sock_filter`, see seccomp(2)), given to bwrap through a descriptor.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

# From linux/bpf_common.h, linux/seccomp.h and linux/audit.h.
LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K
ALLOW = 0x7FFF0000
ERROR = 0x00050000
AT_NUMBER, AT_ARCH, AT_ARGUMENTS = 0, 4, 16

REFUSED = (
    # Keyrings are not kept apart by namespaces where the user is the same.
    *("add_key", "request_key", "keyctl"),
    # Large parts of the kernel that have been ways out, and that no solution needs.
    *("bpf", "perf_event_open", "userfaultfd"),
    # Mounts: they need a capability that nobody in a box has; refused so that this does not hang on one check.
    *("mount", "umount2", "pivot_root", "open_tree", "open_tree_attr", "move_mount", "mount_setattr", "setns"),
    *("fsopen", "fsconfig", "fsmount", "fspick"),
    # The host's kernel log, files by handle instead of by path, other users' quotas.
    *("syslog", "open_by_handle_at", "quotactl", "quotactl_fd"),
)
ABSENT = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3")
"""Said to be absent: libraries then fall back to the older call. The flags of `clone3` lie in memory that a filter
cannot read; those of `clone`, its stand-in, do not."""
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
"""Socket families that exist in a box. All are bound to its network namespace; AF_VSOCK, for one, is not."""
# What a candidate could signal with to another box, through files that several boxes show (the runtime, /data). Locks
# and hints about the page cache do nothing there, and say that they were done; what would read a signal is refused.
SILENT = ("fadvise64", "readahead", "flock")
DEAF = ("cachestat", "mincore", "inotify_init", "inotify_init1", "fanotify_init")
SET_LOCK = {"F_SETLK": 6, "F_SETLKW": 7, "F_OFD_SETLK": 37, "F_OFD_SETLKW": 38}
SEE_LOCK = {"F_GETLK": 5, "F_OFD_GETLK": 36, "F_SETLEASE": 1024, "F_NOTIFY": 1026}
RWF_NOWAIT = 8
"""Reading only what is in the page cache already: it tells what another box has read."""
TERMINAL_CALLS = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
"""Typing into the terminal that a box may have been given."""
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
NEW_TIME = 0x80  # CLONE_NEWTIME; in `clone` these bits are the exit signal
X32 = 0x40000000

_GENERIC = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "clone3": 435, "mount_setattr": 442, "quotactl_fd": 443, "cachestat": 451, "open_tree_attr": 467,
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """An architecture: its audit number and its system-call numbers."""

    audit: int
    numbers: dict[str, int]


MACHINES = {
    "x86_64": Machine(
        0xC000003E,
        _GENERIC
        | {
            "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "syslog": 103, "pivot_root": 155, "mount": 165,
            "umount2": 166, "quotactl": 179, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
            "mincore": 27, "fcntl": 72, "flock": 73, "readahead": 187, "fadvise64": 221, "inotify_init": 253,
            "inotify_init1": 294, "fanotify_init": 300, "preadv2": 327,
            "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "bpf": 321, "userfaultfd": 323,
        },
    ),
    "aarch64": Machine(
        0xC00000B7,
        _GENERIC
        | {
            "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "quotactl": 60, "unshare": 97, "syslog": 116,
            "socket": 198, "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
            "fcntl": 25, "inotify_init1": 26, "flock": 32, "readahead": 213, "fadvise64": 223, "mincore": 232,
            "fanotify_init": 262, "preadv2": 286,
            "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268, "bpf": 280, "userfaultfd": 282,
        },
    ),
}  # fmt: skip


def program(machine: str | None = None, *, mute: bool = False) -> bytes | None:
    """The filter for an architecture (`uname -m`; this machine's by default), or None where there is none.

    With `mute` (candidates, which see hidden inputs) also what could signal to another box through a shared file.
    """
    name = machine or os.uname().machine
    found = MACHINES.get(name)
    if found is None:
        return None
    out = [(LOAD, 0, 0, AT_ARCH), (EQUAL, 1, 0, found.audit), _refuse(errno.ENOSYS), (LOAD, 0, 0, AT_NUMBER)]
    if name == "x86_64":
        out += [(AT_LEAST, 0, 1, X32), _refuse(errno.ENOSYS)]
    for call in REFUSED:
        out += [(EQUAL, 0, 1, found.numbers[call]), _refuse(errno.EPERM)]
    if mute:
        out += _muted(found.numbers)
    for call in ABSENT:
        out += [(EQUAL, 0, 1, found.numbers[call]), _refuse(errno.ENOSYS)]
    known = [step for family in FAMILIES.values() for step in ((EQUAL, 0, 1, family), _allow())]
    for call in ("socket", "socketpair"):
        out += _block(found.numbers[call], 0, [*known, _refuse(errno.EAFNOSUPPORT)])
    # The kernel looks at the lower half of the request only, and so does this.
    typing = [step for request in TERMINAL_CALLS.values() for step in ((EQUAL, 0, 1, request), _refuse(errno.EPERM))]
    out += _block(found.numbers["ioctl"], 1, [*typing, _allow()])
    for call, flags in (("clone", NEW_NAMESPACES), ("unshare", NEW_NAMESPACES | NEW_TIME)):
        out += _block(found.numbers[call], 0, [(ANY_BIT, 0, 1, flags), _refuse(errno.EPERM), _allow()])
    out.append(_allow())
    return b"".join(struct.pack("=HBBI", *step) for step in out)


def _muted(numbers: dict[str, int]) -> list[Step]:
    out: list[Step] = []
    for calls, answer in ((SILENT, 0), (DEAF, errno.EPERM)):
        for call in calls:
            if call in numbers:
                out += [(EQUAL, 0, 1, numbers[call]), _refuse(answer)]
    done = [step for command in SET_LOCK.values() for step in ((EQUAL, 0, 1, command), _refuse(0))]
    unseen = [step for command in SEE_LOCK.values() for step in ((EQUAL, 0, 1, command), _refuse(errno.EINVAL))]
    # A block that does not apply leaves the number to be compared with the next; one that does must end in an answer.
    out += _block(numbers["fcntl"], 1, [*done, *unseen, _allow()])
    return out + _block(numbers["preadv2"], 5, [(ANY_BIT, 0, 1, RWF_NOWAIT), _refuse(errno.EOPNOTSUPP), _allow()])


Step = tuple[int, int, int, int]


def _refuse(number: int) -> Step:
    return (RETURN, 0, 0, ERROR | number)


def _allow() -> Step:
    return (RETURN, 0, 0, ALLOW)


def _block(number: int, argument: int, steps: list[Step]) -> list[Step]:
    """`steps`, which all end in an answer, for one call, with the lower half of one of its arguments loaded."""
    return [(EQUAL, 0, len(steps) + 1, number), (LOAD, 0, 0, AT_ARGUMENTS + 8 * argument), *steps]
