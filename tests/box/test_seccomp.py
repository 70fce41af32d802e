"""The system-call filter: what it refuses, and that ordinary work goes on under it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct

import pytest

from proctor.box import seccomp
from proctor.box.bwrap import start
from proctor.box.identity import own_account
from proctor.box.runtime import default_python
from proctor.box.seccomp import MACHINES, program
from tests.box.support import Room, needs_box

TRY = """
import ctypes, errno, json
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    return -1 if libc.syscall(number, *arguments) == -1 and ctypes.get_errno() else 0, ctypes.get_errno()
found = {}
for name, number in NUMBERS.items():
    if name in ("clone", "ioctl", "socket", "socketpair", "unshare"):
        continue
    found[name] = call(number, 0, 0, 0, 0, 0, 0)[1]
"""


def run(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the filter answers to a call, by executing it: an interpreter of the few instructions it uses."""
    code = program(machine)
    assert code is not None
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    given = [*arguments, *([0] * (6 - len(arguments)))]
    data = struct.pack("=IIQ6Q", number, MACHINES[machine].audit if audit is None else audit, 0, *given)
    at = value = 0
    while True:
        op, yes, no, k = steps[at]
        at += 1
        if op == seccomp.LOAD:
            value = struct.unpack_from("=I", data, k)[0]
        elif op == seccomp.RETURN:
            return int(k)
        else:
            true = {
                seccomp.EQUAL: value == k,
                seccomp.AT_LEAST: value >= k,
                seccomp.ANY_BIT: bool(value & k),
            }[op]
            at += yes if true else no


def refused(number: int) -> int:
    return seccomp.ERROR | number


@pytest.mark.parametrize("machine", sorted(MACHINES))
class TestProgram:
    def test_every_named_call_is_refused(self, machine: str) -> None:
        numbers = MACHINES[machine].numbers
        assert {run(machine, numbers[name]) for name in seccomp.REFUSED} == {refused(errno.EPERM)}
        assert {run(machine, numbers[name]) for name in seccomp.ABSENT} == {refused(errno.ENOSYS)}

    def test_every_other_call_is_allowed(self, machine: str) -> None:
        special = {*MACHINES[machine].numbers.values()}
        assert {run(machine, number, 2**63) for number in range(600) if number not in special} == {seccomp.ALLOW}

    def test_socket_families_are_those_of_the_network_namespace(self, machine: str) -> None:
        for name in ("socket", "socketpair"):
            number = MACHINES[machine].numbers[name]
            allowed = {family for family in range(64) if run(machine, number, family, 1) == seccomp.ALLOW}
            assert allowed == set(seccomp.FAMILIES.values())
            assert run(machine, number, 40, 1) == refused(errno.EAFNOSUPPORT)

    def test_upper_half_of_an_argument_does_not_change_the_answer(self, machine: str) -> None:
        """The kernel looks at 32 bits of these arguments, so the filter must too."""
        numbers = MACHINES[machine].numbers
        assert run(machine, numbers["socket"], (1 << 40) | 40) == refused(errno.EAFNOSUPPORT)
        assert run(machine, numbers["ioctl"], 0, (1 << 32) | 0x5412) == refused(errno.EPERM)
        assert run(machine, numbers["ioctl"], 0, 0x5413) == seccomp.ALLOW

    def test_threads_and_children_are_allowed_and_namespaces_are_not(self, machine: str) -> None:
        numbers = MACHINES[machine].numbers
        thread = 0x3D0F00  # what pthread_create asks for
        assert run(machine, numbers["clone"], thread) == seccomp.ALLOW
        assert run(machine, numbers["clone"], 0x1200011) == seccomp.ALLOW  # what fork asks for
        assert run(machine, numbers["unshare"], 0x400) == seccomp.ALLOW  # CLONE_FILES
        for bit in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
            assert run(machine, numbers["clone"], thread | bit) == refused(errno.EPERM)
            assert run(machine, numbers["unshare"], bit) == refused(errno.EPERM)
        assert run(machine, numbers["unshare"], 0x80) == refused(errno.EPERM)

    def test_calls_of_another_architecture_do_not_exist(self, machine: str) -> None:
        assert run(machine, 41, 40, audit=0x40000003) == refused(errno.ENOSYS)


def test_calls_of_the_x32_interface_do_not_exist() -> None:
    assert run("x86_64", 0x40000000 | 41, 40) == refused(errno.ENOSYS)


def test_unknown_machine_has_no_filter() -> None:
    assert program("riscv64") is None


@needs_box
@pytest.mark.skipif(program() is None, reason="no filter for this machine")
class TestInBoxes:
    def test_refused_calls_are_refused_by_this_kernel(self, room: Room) -> None:
        numbers = MACHINES[os.uname().machine].numbers
        code = f"NUMBERS = {numbers!r}\n{TRY}\nprint(json.dumps(found))"
        found = json.loads(room.python(code).out)
        assert {name: found[name] for name in seccomp.REFUSED} == dict.fromkeys(seccomp.REFUSED, errno.EPERM)
        assert {name: found[name] for name in seccomp.ABSENT} == dict.fromkeys(seccomp.ABSENT, errno.ENOSYS)

    def test_threads_processes_sockets_and_shared_memory_work(self, room: Room) -> None:
        code = (
            "import multiprocessing, socket, threading, subprocess\n"
            "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\n"
            "from multiprocessing.shared_memory import SharedMemory\n"
            "if __name__ == '__main__':\n"
            "    with ProcessPoolExecutor(2) as pool: print(sum(pool.map(abs, range(5))))\n"
            "    with ThreadPoolExecutor(2) as pool: print(sum(pool.map(abs, range(5))))\n"
            "    s = SharedMemory(create=True, size=10); s.close(); s.unlink()\n"
            "    server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname())\n"
            "    socket.socketpair(); print(len(socket.if_nameindex()))\n"
            "    print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout)\n"
        )
        ended = room.python(code)
        assert ended.out.split() == ["10", "10", "1", "child"], ended.err

    def test_debugger_can_follow_a_process(self, room: Room) -> None:
        if shutil.which("strace") is None:
            pytest.skip("there is no strace here")
        ended = room.shell("strace -f -o /tmp/log sh -c 'true & wait' && grep -c exit_group /tmp/log")
        assert ended.out.strip() == "2", ended.err

    def test_compiler_works(self, room: Room) -> None:
        if shutil.which("gcc") is None:
            pytest.skip("there is no gcc here")
        (room.workspace / "a.c").write_text(
            "#include <pthread.h>\n#include <stdio.h>\nvoid *f(void *x) { return x; }\n"
            'int main(void) { pthread_t t; printf("%d\\n", pthread_create(&t, 0, f, 0) + pthread_join(t, 0)); }\n'
        )
        ended = room.shell("gcc -O2 a.c -o a -lpthread && ./a")
        assert ended.out == "0\n", ended.err

    def test_node_works(self, room: Room) -> None:
        if shutil.which("node") is None:
            pytest.skip("there is no node here")
        script = (
            "require('fs').readFile('/etc/passwd', (e, d) => { if (e) throw e; console.log('read');"
            "require('child_process').execFileSync('echo', ['child'], {stdio: 'inherit'}); })"
        )
        ended = room.run("/usr/bin/env", "node", "-e", script, env={"PATH": os.environ["PATH"]})
        assert ended.out == "read\nchild\n", ended.err

    @pytest.mark.slow
    def test_torch_works(self, room: Room) -> None:
        pytest.importorskip("torch")
        code = (
            "import torch\n"
            "from torch.utils.data import DataLoader\n"
            "if __name__ == '__main__':\n"
            "    x = torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()\n"
            "    print(sum(int(b.sum()) for b in DataLoader(list(range(10)), num_workers=2, batch_size=5)))\n"
        )
        ended = room.python(code)
        assert ended.out == "45\n", ended.err

    def test_filter_holds_for_the_own_account_too(self, room: Room) -> None:
        code = "import socket\ntry: socket.socket(40, 1)\nexcept OSError as e: print(e.errno)"
        box = start(room.spec("/usr/bin/env", "python3", "-c", code, env={"PATH": "/usr/bin:/bin"}), own_account())
        assert room.finish(box).out == f"{errno.EAFNOSUPPORT}\n"


MUTE = """
import ctypes, errno, fcntl, os
file = open("/etc/passwd", "rb")
os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
fcntl.lockf(file, fcntl.LOCK_SH)
fcntl.flock(file, fcntl.LOCK_EX)
for name, call in (
    ("getlk", lambda: fcntl.fcntl(file, fcntl.F_GETLK, bytes(32))),
    ("nowait", lambda: os.preadv(file.fileno(), [bytearray(4)], 0, os.RWF_NOWAIT)),
):
    try:
        call()
        print(name, "open")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
print("inotify", ctypes.CDLL(None).inotify_init1(0))
print("read", os.preadv(file.fileno(), [bytearray(4)], 0, 0))
"""


@needs_box
@pytest.mark.parametrize("mute", [True, False])
def test_a_mute_box_cannot_signal_through_files_that_boxes_share(room: Room, mute: bool) -> None:
    """A candidate that sees hidden inputs could tell another box by locks, cache residency or file events."""
    ended = room.run(default_python(), "-I", "-c", MUTE, mute=mute)
    assert ended.status == 0, ended.err
    said = dict(line.split() for line in ended.out.splitlines())
    assert said["read"] == "4"
    if mute:
        assert (said["getlk"], said["nowait"], said["inotify"]) == ("EINVAL", errno.errorcode[errno.EOPNOTSUPP], "-1")
    else:
        assert said["getlk"] == "open" and said["inotify"] != "-1"
