"""Stopping a box, letting it run on, and ending it whatever it does."""

from __future__ import annotations

import signal

import pytest

from proctor.box import bwrap
from proctor.box.cgroup import find_base
from proctor.box.runtime import default_python
from proctor.box.tree import state
from tests.box.support import STUBBORN, Room, needs_box, until

pytestmark = needs_box


def test_freeze_stops_every_process_and_thaw_lets_them_run_on(room: Room) -> None:
    script = "for i in 1 2 3; do (while :; do echo $i >> ticks; sleep 0.01; done) & done; wait"
    box = room.start("/bin/sh", "-c", script)
    ticks = room.workspace / "ticks"
    assert until(lambda: ticks.exists() and ticks.stat().st_size > 60)
    box.freeze()
    before = ticks.stat().st_size
    assert not until(lambda: ticks.stat().st_size != before, 0.3), "something ran while frozen"
    box.thaw()
    assert until(lambda: ticks.stat().st_size > before)
    box.close()


WAKERS = """
import os, signal, time
pids = [os.getpid()]
for _ in range(3):
    child = os.fork()
    if child == 0:
        break
    pids.append(child)
else:
    open("ready", "w").close()
while True:
    for pid in range(2, 20):
        try:
            os.kill(pid, signal.SIGCONT)
        except OSError:
            pass
    with open("ticks", "a") as stream:
        stream.write("x")
"""


def test_freeze_by_signals_holds_processes_that_wake_each_other(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap, "find_base", lambda: None)
    box = room.start(default_python(), "-I", "-S", "-c", WAKERS)
    assert until(lambda: (room.workspace / "ready").exists())
    for _ in range(5):
        box.freeze()
        assert {state(pid) for pid in box.pids()} == {"T"}
        before = (room.workspace / "ticks").stat().st_size
        assert not until(lambda size=before: (room.workspace / "ticks").stat().st_size != size, 0.05)
        box.thaw()
        assert until(lambda size=before: (room.workspace / "ticks").stat().st_size > size)
    box.close()


def test_freeze_by_signals_holds_a_shell_that_starts_programs(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell waits in the kernel for its vfork; with the child stopped it can never stop itself."""
    monkeypatch.setattr(bwrap, "find_base", lambda: None)
    box = room.start("/bin/sh", "-c", "while :; do /bin/true; echo x >> ticks; done")
    ticks = room.workspace / "ticks"
    assert until(ticks.exists)
    for _ in range(40):
        box.freeze()
        before = ticks.stat().st_size
        assert not until(lambda size=before: ticks.stat().st_size != size, 0.01)
        box.thaw()
        assert until(lambda size=before: ticks.stat().st_size > size)
    box.close()


def test_thaw_by_signals_leaves_stopped_what_had_stopped_itself(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap, "find_base", lambda: None)
    box = room.start("/bin/sh", "-c", "sleep 60 & kill -STOP $!; echo $! > child; wait")
    assert until(lambda: sorted(state(pid) for pid in box.pids()) == ["S", "T"])
    box.freeze()
    assert sorted(state(pid) for pid in box.pids()) == ["T", "T"]
    box.thaw()
    assert until(lambda: sorted(state(pid) for pid in box.pids()) == ["S", "T"])
    box.close()


@pytest.mark.parametrize("groups", [True, False])
def test_kill_ends_daemons_that_ignore_signals_and_hold_the_pipe(
    room: Room, monkeypatch: pytest.MonkeyPatch, groups: bool
) -> None:
    if not groups:
        monkeypatch.setattr(bwrap, "find_base", lambda: None)
    elif find_base() is None:
        pytest.skip("no control groups here")
    box = room.start(default_python(), "-I", "-S", "-c", STUBBORN)
    assert until(lambda: len(list(room.workspace.glob("daemon*"))) == 3 and room.out.stat().st_size > 0)
    box.signal(signal.SIGTERM)
    assert len(box.pids()) == 4, "they should ignore SIGTERM, else this test shows nothing"
    pids = box.pids()
    assert box.kill()
    assert [pid for pid in pids if state(pid) not in ("", "Z")] == []
    box.close()


def test_daemons_go_when_the_command_exits(room: Room) -> None:
    box = room.start(default_python(), "-I", "-S", "-c", STUBBORN, "leave")
    assert box.wait(20.0) == 0
    assert until(lambda: box.pids() == [], 2.0)
    box.close()


def test_killing_a_frozen_box_works(room: Room) -> None:
    box = room.start("/bin/sleep", "600")
    box.freeze()
    assert box.kill()
    box.close()
