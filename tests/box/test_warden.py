"""The warden ends what a process leaves that is killed, and nothing else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from proctor.box.cgroup import Cgroup, find_base
from proctor.box.tree import descendants, process_name, state
from proctor.box.warden import SCRIPT, Warden
from tests.box.support import Room, needs_box, until

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], start_new_session=True)


def run_script(*lines: str) -> None:
    subprocess.run(["/bin/sh", "-c", SCRIPT], input="".join(f"{line}\n" for line in lines).encode(), timeout=20)


def test_guarded_process_is_ended_when_the_pipe_closes(sleeper: subprocess.Popen[bytes]) -> None:
    run_script("+77:1", f"+{process_name(sleeper.pid)}", "+99999999:1")
    assert sleeper.wait(5.0) == -9


def test_forgotten_process_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    name = process_name(sleeper.pid)
    run_script("+1:1", f"+{name}", f"-{name}")
    assert sleeper.poll() is None
    sleeper.kill()
    sleeper.wait()


def test_pid_that_was_given_anew_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    run_script(f"+{sleeper.pid}:12345")
    assert sleeper.poll() is None
    sleeper.kill()
    sleeper.wait()


def test_process_that_is_gone_has_no_name() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert process_name(process.pid) == ""


def test_group_is_killed_and_removed(sleeper: subprocess.Popen[bytes]) -> None:
    base = find_base()
    if base is None or not base.can("cgroup.kill"):
        pytest.skip("no control groups here")
    path = base.path / f"proctor-{os.getpid()}-warden test"
    path.mkdir()
    (path / "cgroup.procs").write_text(str(sleeper.pid))
    run_script("+1:1", f"+{path}")
    assert sleeper.wait(5.0) == -9
    assert not path.exists()


def test_it_runs_only_while_something_is_guarded() -> None:
    warden = Warden()
    before = set(descendants(os.getpid()))
    warden.guard("1:1")
    warden.guard("2:2")
    assert len(set(descendants(os.getpid())) - before) == 1
    warden.forget("1:1")
    warden.forget("never guarded")
    assert len(set(descendants(os.getpid())) - before) == 1
    warden.forget("2:2")
    assert set(descendants(os.getpid())) <= before


def test_loss_of_the_warden_stops_nothing() -> None:
    warden = Warden()
    warden.guard("1:1")
    assert warden._process is not None
    warden._process.kill()
    warden._process.wait()
    warden.guard("2:2")
    warden.forget("1:1")
    warden.forget("2:2")


WORKER = """
import sys
from pathlib import Path
from tests.box.support import Room
root = Path(sys.argv[1])
keep = Room(root / "keep", sys.argv[2]).start("/bin/sh", "-c", "sleep 600 & sleep 600")
print("started", flush=True)
for i in range(10000):
    Room(root / str(i), sys.argv[2]).start("/bin/sh", "-c", "sleep 600").close()
"""


@needs_box
@pytest.mark.parametrize("kind", ["bwrap", "none"])
def test_worker_killed_while_it_starts_boxes_leaves_nothing(tmp_path: Path, kind: str) -> None:
    """bwrap by itself would leave a box that was being set up, and even start its command."""
    rng = random.Random(7)
    for attempt in range(6):
        root = tmp_path / str(attempt)
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(root), kind],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{REPO / 'src'}:{REPO}"},
        )
        assert worker.stdout is not None
        worker.stdout.readline()
        assert until(lambda pid=worker.pid: len(descendants(pid)) >= 3)
        time.sleep(0.1 * rng.random())
        had = set(descendants(worker.pid))
        worker.kill()
        worker.communicate()

        assert until(lambda pid=worker.pid, had=had: not left_of(pid, had), 5.0), left_of(worker.pid, had)


def left_of(worker: int, had: set[int]) -> set[int]:
    """Living processes of a worker that is gone: those it had, and those in its groups."""
    base = find_base()
    groups = base.path.glob(f"proctor-{worker}-*") if base else ()
    members = {member for group in groups for member in Cgroup(group, frozenset()).pids()}
    return members | {process for process in had if state(process) not in ("", "Z")}


@needs_box
def test_room_of_a_test_is_not_guarded_for_ever(room: Room) -> None:
    from proctor.box.warden import WARDEN

    room.shell("true")
    assert WARDEN._process is None
