"""What a box may use: memory, processes, space. One box hits its limit; nobody else notices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proctor.box import bwrap
from proctor.box.bwrap import start
from proctor.box.cgroup import Cgroup, CgroupBase, find_base
from proctor.box.identity import own_account
from proctor.box.runtime import default_python
from proctor.box.tree import ProcessTree
from proctor.box.watch import LimitWatch
from proctor.errors import InfrastructureError
from proctor.spec import MIB, Limits
from tests.box.support import Room, needs_box, needs_root, until

pytestmark = needs_box

HOG = """
import os, sys, time
print("started", flush=True)
{body}
print("got it all", flush=True)
time.sleep(60)
"""
SMALL = Limits(memory_bytes=128 * MIB)


def polled() -> None:
    base = find_base()
    if base and base.can("memory.max"):
        pytest.skip("this host bounds memory by control groups: polling has no part in it")


@pytest.mark.parametrize(
    "body",
    [
        "keep = bytearray(400 << 20)",
        # Shared between a parent and its child: each shows half of it.
        "import mmap; m = mmap.mmap(-1, 400 << 20); m.write(b'x' * (400 << 20)); os.fork()",
        "parts = [os.fork() or [bytearray(60 << 20), time.sleep(60)] for _ in range(6)]; time.sleep(60)",
    ],
    ids=["private", "shared", "many processes"],
)
def test_memory_over_the_limit_ends_the_largest_process(room: Room, body: str) -> None:
    polled()
    box = room.start(default_python(), "-I", "-c", HOG.format(body=body), limits=SMALL)
    assert until(lambda: box.limit_hit() is not None, 15.0)
    hit = box.limit_hit()
    ended = room.finish(box, 1.0)
    assert hit is not None and hit.startswith("memory:") and "128 are allowed" in hit
    assert "started" in ended.out


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(400): open(f'/dev/shm/{i}', 'wb').write(b'x' * (1 << 20))",
        "for i in range(400): open(f'/tmp/{i}', 'wb').write(b'x' * (1 << 20))",
        "fd = os.memfd_create('hidden')\nfor _ in range(400): os.write(fd, b'x' * (1 << 20))",
        "d = os.open('/tmp', 0)\nfor i in range(400_000): os.close(os.open(f'/tmp/{i}', os.O_CREAT))",
    ],
    ids=["/dev/shm", "/tmp", "memfd", "empty files"],
)
def test_memory_in_files_counts_though_no_process_has_it_mapped(room: Room, body: str) -> None:
    polled()
    box = room.start(default_python(), "-I", "-c", HOG.format(body=body), limits=SMALL)
    assert until(lambda: box.limit_hit() is not None, 20.0)
    hit = box.limit_hit()
    box.close()
    assert hit is not None and "files in memory; the box was ended" in hit


def test_memory_under_the_limit_is_left_alone_even_if_mapped_many_times(room: Room) -> None:
    """Eight processes that map one array of 60 MiB use 60 MiB, not 480."""
    body = "import mmap; m = mmap.mmap(-1, 60 << 20); m.write(b'x' * (60 << 20)); [os.fork() and 0 for _ in range(3)]"
    body += "; sum(m[::4096])"
    box = room.start(default_python(), "-I", "-c", HOG.format(body=body), limits=SMALL)
    assert until(lambda: room.out.read_text().count("got it all") == 8)
    assert box.wait(0.8) is None, "the box was ended"
    assert box.limit_hit() is None
    box.close()


FORKS = """
import os, sys, time
count = 0
try:
    while count < 500:
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except OSError as error:
    print(count, error.errno, flush=True)
time.sleep({stay})
"""
THREADS = """
import threading, time
count = 0
try:
    while count < 500:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        count += 1
except RuntimeError as error:
    print(count, error, flush=True)
"""


@pytest.mark.parametrize("code", [FORKS.format(stay=0), THREADS], ids=["processes", "threads"])
def test_processes_and_threads_over_the_limit_are_refused(room: Room, code: str) -> None:
    base = find_base()
    if bwrap.probed().identity == own_account() and os.geteuid() == 0 and not (base and base.can("pids.max")):
        pytest.skip("root is exempt from RLIMIT_NPROC and there is no pids.max here")
    ended = room.python(code, limits=Limits(pids=50))
    assert ended.out, "nothing was refused"
    assert 40 <= int(ended.out.split()[0]) < 50


def test_limit_on_processes_is_of_one_box_not_of_the_account(tmp_path: Path) -> None:
    """Boxes share an account; the limit of one must not count the processes of another."""
    rooms = [Room(tmp_path / name) for name in ("a", "b")]
    code = FORKS.format(stay=60).replace("500", "40")
    boxes = [room.start(default_python(), "-I", "-c", code, limits=Limits(pids=50)) for room in rooms]
    assert until(lambda: all(len(box.pids()) == 41 for box in boxes))
    for box in boxes:
        box.close()


@needs_root
def test_processes_of_a_box_that_runs_as_root_are_polled(room: Room) -> None:
    base = find_base()
    if base and base.can("pids.max"):
        pytest.skip("this host has pids.max")
    spec = room.spec(default_python(), "-I", "-c", FORKS.format(stay=60), limits=Limits(pids=50))
    box = start(spec, own_account())
    assert box.wait(20.0) is not None
    hit = box.limit_hit()
    box.close()
    assert hit is not None and hit.startswith("processes:") and "50 are allowed; the box was ended" in hit


def test_temporary_folders_have_the_given_size(room: Room) -> None:
    code = (
        "import os\n"
        "for place in ('/tmp','/dev/shm','/home/agent'):\n"
        "    try:\n"
        "        with open(place+'/x','wb') as f:\n"
        "            while f.tell() < 64<<20: f.write(bytes(1<<20))\n"
        "        print(place, 'took all')\n"
        "    except OSError as e: print(place, e.errno, os.stat(place+'/x').st_size>>20)"
    )
    ended = room.python(code, limits=Limits(tmp_bytes=10 * MIB))
    assert ended.out.splitlines() == ["/tmp 28 10", "/dev/shm 28 10", "/home/agent 28 10"]


def test_one_file_is_as_large_as_the_workspace_may_be(room: Room) -> None:
    code = "f=open('/workspace/x','wb')\ntry:\n    f.truncate(21<<20)\nexcept OSError as e: print(e.errno)\n"
    code = "import signal;signal.signal(signal.SIGXFSZ,signal.SIG_IGN)\n" + code
    ended = room.python(code, limits=Limits(workspace_bytes=20 * MIB))
    assert ended.out == "27\n"


class FakeKernel:
    """A control-group tree of plain files, as the kernel of a host with every controller would show it."""

    FILES = frozenset(
        ["cgroup.procs", "cgroup.freeze", "cgroup.kill", "memory.max", "memory.swap.max", "pids.max", "cgroup.events"]
    )

    def __init__(self, root: Path) -> None:
        self.base = CgroupBase(root, self.FILES)

    def group(self, limits: Limits) -> Cgroup:
        group = self.base.create(limits)
        (group.path / "cgroup.procs").write_text("")
        return group


def test_kernel_limits_are_written_into_the_group(tmp_path: Path) -> None:
    group = FakeKernel(tmp_path).group(Limits(memory_bytes=5 * MIB, pids=33))
    values = {name: (group.path / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")}
    assert values == {"memory.max": str(5 * MIB), "memory.swap.max": "0", "pids.max": "33"}


def test_group_without_a_memory_limit_gets_none(tmp_path: Path) -> None:
    group = FakeKernel(tmp_path).group(Limits(memory_bytes=None))
    assert not (group.path / "memory.max").exists()


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("memory.events", "low 0\noom 2\noom_kill 1\n", "memory: more than 5 MiB were used; the kernel killed"),
        ("pids.events", "max 4\n", "processes: more than 33 were wanted; the kernel refused"),
        ("memory.events", "low 0\noom 0\noom_kill 0\n", None),
    ],
)
def test_what_the_kernel_counted_is_told(tmp_path: Path, file: str, text: str, said: str | None) -> None:
    limits = Limits(memory_bytes=5 * MIB, pids=33)
    group = FakeKernel(tmp_path).group(limits)
    watch = LimitWatch(ProcessTree(0, group, ()), limits, group)
    assert watch.hit() is None
    (group.path / file).write_text(text)
    hit = watch.hit()
    watch.stop()
    assert (hit or "").startswith(said or "") and (hit is None) == (said is None)


def test_with_kernel_limits_nothing_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(memory_bytes=1, pids=0)
    group = FakeKernel(tmp_path).group(limits)
    (group.path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    monkeypatch.setattr("proctor.box.watch.INTERVAL_S", 0.01)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    watch = LimitWatch(ProcessTree(0, group, ()), limits, group)
    assert not until(lambda: bool(killed), 0.2)
    assert watch.hit() is None
    watch.stop()


def test_box_goes_into_its_group_with_its_very_first_process(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FakeKernel(tmp_path / "groups")
    (tmp_path / "groups").mkdir()
    removed: list[Path] = []
    monkeypatch.setattr(bwrap, "find_base", lambda: kernel.base)
    monkeypatch.setattr(Cgroup, "remove", lambda self: bool(removed.append(self.path)))
    monkeypatch.setattr(Cgroup, "pids", lambda self: [])
    box = room.start("/bin/sh", "-c", "cat /proc/self/cgroup > seen")
    assert box.wait(10.0) == 0
    box.close()
    [group] = removed
    assert (group / "cgroup.procs").read_text() == "0\n"


def test_box_whose_group_takes_no_process_is_not_started(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "groups").mkdir()
    kernel = FakeKernel(tmp_path / "groups")
    create = CgroupBase.create

    def closed(self: CgroupBase, limits: Limits) -> Cgroup:
        group = create(self, limits)
        (group.path / "cgroup.procs").mkdir()
        return group

    monkeypatch.setattr(bwrap, "find_base", lambda: kernel.base)
    monkeypatch.setattr(CgroupBase, "create", closed)
    monkeypatch.setattr(Cgroup, "remove", lambda self: True)
    with pytest.raises(InfrastructureError, match=r"cgroup\.procs"):
        room.start("/bin/sh", "-c", "echo > ran")
    assert not (room.workspace / "ran").exists()


@pytest.mark.skipif(find_base() is None, reason="no control group can be made here")
def test_box_does_not_see_where_its_group_lies(room: Room) -> None:
    assert room.shell("grep ^0:: /proc/self/cgroup").out == "0::/\n"
