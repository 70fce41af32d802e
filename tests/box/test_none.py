"""No box: the tree is still ended whole, and nobody is told that anything was enforced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from proctor.box import none, spawn
from proctor.box.cgroup import find_base
from proctor.box.registry import get_kind
from proctor.box.runtime import default_python
from proctor.box.tree import children, state
from proctor.errors import InfrastructureError, UsageError
from proctor.spec import MIB, Limits
from tests.box.support import STUBBORN, Room, until


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path, "none")


@pytest.fixture(params=["groups", "no groups"])
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    with_groups = request.param == "groups"
    if not with_groups:
        monkeypatch.setattr(none, "find_base", lambda: None)
    elif find_base() is None:
        pytest.skip("no control groups here")
    return with_groups


def test_it_says_that_nothing_is_isolated() -> None:
    able = get_kind("none").capabilities()
    assert able.usable and not able.isolated
    assert able.enforced.network is None and able.enforced.filesystem is None and able.enforced.gpu is None
    assert "no box" in able.problems[0]


def test_unknown_kind_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'dockr'.*\n.*bwrap, none"):
        get_kind("dockr")


def test_environment_is_exactly_what_was_given(room: Room, groups: bool) -> None:
    code = "import os,json;e=dict(os.environ);[e.pop(k,None) for k in('PWD','LC_CTYPE')];print(json.dumps(e))"
    ended = room.python(code, env={"PATH": "/usr/bin:/bin", "ONE": "1"})
    assert json.loads(ended.out) == {"PATH": "/usr/bin:/bin", "ONE": "1"}


def test_command_that_does_not_exist_leaves_nothing(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(none, "find_base", lambda: None)
    with pytest.raises(InfrastructureError, match="/no/such/program could not be started"):
        room.start("/no/such/program")


def test_kill_ends_daemons_that_ignore_signals_and_hold_the_pipe(room: Room, groups: bool) -> None:
    box = room.start(default_python(), "-I", "-S", "-c", STUBBORN)
    assert until(lambda: len(list(room.workspace.glob("daemon*"))) == 3)
    pids = [*box.pids(), *(int(path.read_text() or 0) for path in room.workspace.glob("daemon*"))]
    assert len(set(pids)) == 4
    box.signal(signal.SIGTERM)
    assert box.kill()
    assert [pid for pid in pids if state(pid) not in ("", "Z")] == []
    box.close()


def test_daemons_left_by_a_command_that_exited_are_ended_too(room: Room, groups: bool) -> None:
    box = room.start(default_python(), "-I", "-S", "-c", STUBBORN, "leave")
    assert box.wait(20.0) == 0
    assert len(box.pids()) == 3
    assert box.kill()
    assert box.pids() == []
    box.close()


def dead_children() -> list[int]:
    return [pid for pid in children(os.getpid()) if state(pid) == "Z"]


def test_orphans_that_end_do_not_stay_as_zombies(room: Room, groups: bool) -> None:
    box = room.start("/bin/sh", "-c", "for i in 1 2 3; do (setsid sleep 0.1 &) ; done; sleep 60")
    assert until(lambda: len(box.pids()) == 2)  # the shell and its sleep
    box.pids()
    assert dead_children() == []
    box.close()
    assert dead_children() == []


def test_orphans_of_others_are_adopted_only_while_a_command_runs(room: Room) -> None:
    leave = "(setsid sleep 0.3 &); exit"
    room.shell("true")
    subprocess.run(["/bin/sh", "-c", leave], check=True)
    assert not until(lambda: dead_children() != [], 0.6), "nobody here would bury it"


def test_freeze_and_thaw(room: Room, groups: bool) -> None:
    box = room.start("/bin/sh", "-c", "while :; do echo x >> ticks; sleep 0.01; done")
    ticks = room.workspace / "ticks"
    assert until(lambda: ticks.exists())
    box.freeze()
    before = ticks.stat().st_size
    assert not until(lambda: ticks.stat().st_size != before, 0.2)
    box.thaw()
    assert until(lambda: ticks.stat().st_size > before)
    box.close()


def test_limits_are_watched(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(none, "find_base", lambda: None)
    box = room.start(
        default_python(), "-I", "-c", "x = bytearray(300 << 20); import time; time.sleep(60)",
        limits=Limits(memory_bytes=100 * MIB),
    )  # fmt: skip
    assert box.wait(20.0) == -9
    assert (box.limit_hit() or "").startswith("memory:")
    box.close()


def test_orphan_with_the_pid_of_an_earlier_command_is_known_as_one(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pids are given anew: what was started here is known by its start time too."""
    monkeypatch.setattr(none, "find_base", lambda: None)
    monkeypatch.setattr(spawn, "_SPAWNED", {f"{pid}:1" for pid in range(1, 1 << 16)})
    box = room.start(default_python(), "-I", "-S", "-c", STUBBORN, "leave")
    assert box.wait(20.0) == 0
    assert len(box.pids()) == 3
    box.close()
