"""Control groups: only our own are touched, and those of dead workers are swept."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from proctor.box.cgroup import Cgroup, CgroupBase, find_base, sweep
from proctor.box.tree import state
from proctor.spec import Limits
from tests.box.support import until


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_sweep_takes_groups_of_dead_workers_only(tmp_path: Path) -> None:
    dead = dead_pid()
    names = [f"proctor-{dead}-0", f"proctor-{dead}-probe3"]
    others = [f"proctor-{os.getpid()}-0", f"other-{dead}-0", "proctor-notes", "proctor-x-1", f"proctor-{dead}"]
    for name in (*names, *others):
        (tmp_path / name).mkdir()
    assert sorted(sweep(CgroupBase(tmp_path, frozenset()))) == sorted(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_sweep_leaves_a_group_that_cannot_be_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"proctor-{dead_pid()}-0"
    (tmp_path / name / "child").mkdir(parents=True)
    monkeypatch.setattr("proctor.box.cgroup.REMOVE_TIMEOUT_S", 0.05)
    assert sweep(CgroupBase(tmp_path, frozenset())) == []
    assert (tmp_path / name).exists()


def test_freeze_reports_failure_where_the_kernel_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    group = Cgroup(tmp_path, frozenset())
    assert not group.freeze(0.05)
    assert (tmp_path / "cgroup.freeze").read_text() == "1"
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert group.freeze(0.05)


@pytest.mark.skipif(find_base() is None, reason="no control group can be made here")
class TestRealGroups:
    def test_freeze_thaw_and_kill(self) -> None:
        base = find_base()
        assert base is not None
        group = base.create(Limits())
        process = subprocess.Popen(["sleep", "60"])
        (group.path / "cgroup.procs").write_text(str(process.pid))
        assert group.pids() == [process.pid]
        assert group.freeze()
        assert group.thaw()
        group.kill()
        if not base.can("cgroup.kill"):
            process.kill()
        process.wait()
        assert group.remove()
        assert not group.path.exists()

    def test_leftovers_of_a_killed_worker_are_ended(self) -> None:
        base = find_base()
        assert base is not None
        if not base.can("cgroup.kill"):
            pytest.skip("this kernel has no cgroup.kill")
        path = base.path / f"proctor-{dead_pid()}-0"
        path.mkdir()
        process = subprocess.Popen(["sleep", "60"])
        (path / "cgroup.procs").write_text(str(process.pid))
        assert path.name in sweep(base)
        assert until(lambda: state(process.pid) in ("Z", ""))
        process.wait()
        assert not path.exists()
