"""Machine-wide locks: nothing in a folder that everyone may write to is followed or trusted."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import pytest

from proctor import machine_locks
from proctor.errors import InfrastructureError
from proctor.machine_locks import MachineLock, holder_of, lock_folder, try_lock


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "locks"
    monkeypatch.setenv("PROCTOR_LOCKS", str(place))
    return place


def taken(name: str = "GPU-1", run_id: str = "r1") -> MachineLock:
    lock = try_lock(name, run_id)
    assert lock is not None
    return lock


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_lock_excludes_says_who_holds_it_and_comes_back(folder: Path) -> None:
    lock = taken(run_id="run 7")
    assert try_lock("GPU-1", "other") is None
    assert str(holder_of("GPU-1")) == f"run run 7 (process {os.getpid()})"
    taken("GPU-2").release()
    lock.release()
    lock.release()
    assert holder_of("GPU-1").pid is None
    taken().release()


def test_everyone_may_lock_and_nobody_may_delete(folder: Path) -> None:
    old = os.umask(0o077)
    try:
        taken().release()
    finally:
        os.umask(old)
    assert mode(folder) == 0o1777
    assert mode(folder / "GPU-1.lock") == 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_takes_a_lock_that_was_made_by_us(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not under tmp_path, which other users may not enter.
    place = Path(f"/tmp/proctor-locks-test-{os.getpid()}")
    monkeypatch.setenv("PROCTOR_LOCKS", str(place))
    try:
        taken().release()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os._exit(0 if try_lock("GPU-1", "theirs") is not None and try_lock("GPU-2", "new") is not None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        taken("GPU-2").release()  # and the other way round
    finally:
        for path in place.glob("*"):
            path.unlink()
        place.rmdir()


def test_a_forked_child_does_not_keep_a_released_lock(folder: Path) -> None:
    lock = taken()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # holds a copy of the descriptor until it is told to end
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    try:
        lock.release()
        taken().release()
    finally:
        os.close(write)
        os.waitpid(child, 0)


def test_a_symlinked_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InfrastructureError, match="it is a link or not a folder"):
        try_lock("GPU-1", "r")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_refused(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(InfrastructureError, match="it is a link or not a folder"):
        try_lock("GPU-1", "r")


def test_a_folder_in_which_anyone_may_delete_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(InfrastructureError, match="anyone may delete") as caught:
        try_lock("GPU-1", "r")
    assert caught.value.hint == f"chmod 1777 {folder}"


def test_a_private_folder_is_left_as_it_is(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    taken().release()
    assert mode(folder) == 0o700


@pytest.mark.parametrize("trick", ["symlink", "dangling symlink", "hard link", "fifo", "folder"])
def test_a_tricked_lock_file_is_refused_and_its_victim_unharmed(folder: Path, tmp_path: Path, trick: str) -> None:
    taken("other").release()
    victim, place = tmp_path / "victim", folder / "GPU-1.lock"
    victim.write_text("precious")
    if trick == "symlink":
        place.symlink_to(victim)
    elif trick == "dangling symlink":
        place.symlink_to(tmp_path / "nowhere")
    elif trick == "hard link":
        place.hardlink_to(victim)
    elif trick == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
    with pytest.raises(InfrastructureError, match=r"GPU-1\.lock cannot be used"):
        try_lock("GPU-1", "r")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_a_lock_file_deleted_under_our_hands_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = fcntl.flock, []

    def flock(fd: int, how: int) -> None:
        if not calls:
            (folder / "GPU-1.lock").unlink()
        calls.append(how)
        real(fd, how)

    monkeypatch.setattr(machine_locks.fcntl, "flock", flock)
    lock = taken()
    assert len(calls) == 2
    assert try_lock("GPU-1", "other") is None  # it is the file that others find that is locked
    lock.release()


@pytest.mark.parametrize("said", [b"", b"\xff\xfe", b"[1]", b'{"pid": "x", "run_id": 3}'])
def test_nonsense_in_a_lock_file_is_no_holder(folder: Path, said: bytes) -> None:
    taken().release()
    (folder / "GPU-1.lock").write_bytes(said)
    assert str(holder_of("GPU-1")) == "run unknown (process unknown)"


def test_a_holder_cannot_play_with_the_terminal(folder: Path) -> None:
    lock = taken(run_id="\x1b[2Jr\n1")
    assert holder_of("GPU-1").run_id == "[2Jr1"
    lock.release()


def test_a_name_cannot_lead_out_of_the_folder(folder: Path) -> None:
    with pytest.raises(ValueError, match="not the name of a lock"):
        try_lock("../x", "r")


def test_the_default_folder_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROCTOR_LOCKS", raising=False)
    assert lock_folder() == Path("/tmp/proctor-locks")
