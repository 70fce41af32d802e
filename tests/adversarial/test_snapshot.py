"""Workspaces that attack the copying of a submission. What is refused is refused in words; what is odd is left out and
said; nothing of the host is read, and a fault of the agent's is never one of ours."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proctor.errors import InfrastructureError, InvalidSubmission
from proctor.scoring import snapshot
from proctor.scoring.snapshot import Snapshot, Snapshots, inodes_under, load_snapshot, matches
from proctor.spec import MIB
from proctor.tasks.base import ArtefactRule
from tests.support.users import somebody_else

RULE = ArtefactRule(targets=("answer.json", "checkpoints/*.pt"), max_file_bytes=MIB, max_total_bytes=4 * MIB)


class Place:
    """A workspace, the host's secrets beside it, and the store of its snapshots."""

    def __init__(self, root: Path) -> None:
        self.workspace = root / "workspace"
        self.host = root / "host"
        self.store = root / "store"
        for folder in (self.workspace, self.host):
            folder.mkdir()
        (self.host / "secret.txt").write_text("CANARY")
        self.snapshots = Snapshots(self.workspace, self.store, RULE, inodes_under(self.host))

    def write(self, name: str, content: bytes | str = b"{}", age_s: float = 100.0) -> Path:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        then = time.time() - age_s
        os.utime(path, (then, then))
        return path

    def left_out(self, **how: object) -> str:
        return "; ".join(self.snapshots.take(**how).left_out)  # type: ignore[arg-type]

    def refusal(self, target: str | None = None) -> str:
        with pytest.raises(InvalidSubmission) as caught:
            self.snapshots.take(target)
        assert [p for p in self.store.iterdir() if p.name.startswith(".")] == [], "a half-made copy was left"
        return str(caught.value)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for path in made.store.rglob("*"):
        if path.is_file() and path.name != "snapshot.json":
            assert b"CANARY" not in path.read_bytes(), f"{path} holds what the agent may not see"


def copied(made: Snapshot) -> set[str]:
    return {p.relative_to(made.files).as_posix() for p in made.files.rglob("*") if not p.is_dir()}


def test_an_honest_workspace_is_copied_whole_and_read_only(place: Place) -> None:
    place.write("answer.json", '{"slope": 1}')
    place.write("lib/model.py", "x = 1")
    place.write("run me.sh", "echo")
    made = place.snapshots.take()
    assert copied(made) == {"answer.json", "lib/model.py", "run me.sh"}
    assert (made.files / "answer.json").read_text() == '{"slope": 1}'
    assert (made.files / "answer.json").stat().st_mode & 0o777 == 0o444
    assert made.target == "answer.json" and made.left_out == ()
    assert load_snapshot(made.folder).sha256 == made.sha256


def test_the_same_submission_is_kept_once_and_another_one_beside_it(place: Place) -> None:
    place.write("answer.json", "1")
    first, again = place.snapshots.take(), place.snapshots.take()
    assert first == again
    place.write("answer.json", "2")
    assert place.snapshots.take().folder != first.folder
    assert len(list(place.store.iterdir())) == 2


# Links


@pytest.mark.parametrize(
    "target", ["{host}/secret.txt", "../host/secret.txt", "answer.json", "/dev/zero", "/proc/self/environ"]
)
def test_a_linked_target_is_refused(place: Place, target: str) -> None:
    (place.workspace / "answer.json").symlink_to(target.format(host=place.host))
    assert "symbolic link" in place.refusal()
    assert "symbolic link" in place.refusal("answer.json")


def test_a_link_beside_the_submission_is_left_out_and_said(place: Place) -> None:
    place.write("answer.json")
    (place.workspace / "notes.txt").symlink_to(place.host / "secret.txt")
    (place.workspace / "host").symlink_to(place.host)
    (place.workspace / "loop").symlink_to("loop")
    made = place.snapshots.take()
    assert copied(made) == {"answer.json"}
    assert all(f"{name} (a symbolic link" in "; ".join(made.left_out) for name in ("notes.txt", "host", "loop"))


def test_a_link_to_the_best_checkpoint_does_not_hide_the_checkpoint(place: Place) -> None:
    """`latest.pt -> best.pt` is common, and the file itself is there."""
    place.write("checkpoints/best.pt", "weights")
    (place.workspace / "checkpoints/latest.pt").symlink_to("best.pt")
    made = place.snapshots.take()
    assert made.target == "checkpoints/best.pt"
    assert "latest.pt (a symbolic link" in "; ".join(made.left_out)
    assert "cannot be scored" in place.refusal("checkpoints/latest.pt")


def test_a_linked_folder_is_not_entered(place: Place) -> None:
    (place.host / "best.pt").write_text("CANARY")
    (place.workspace / "checkpoints").symlink_to(place.host)
    assert "nothing to score" in place.refusal()
    assert "no regular file" in place.refusal("checkpoints/best.pt")


def test_a_hard_link_to_an_input_is_refused(place: Place) -> None:
    os.link(place.host / "secret.txt", place.workspace / "answer.json")
    assert "hard link to an input" in place.refusal()


def test_a_hard_link_of_its_own_is_a_file_like_any_other(place: Place) -> None:
    place.write("answer.json", "mine")
    os.link(place.workspace / "answer.json", place.workspace / "copy.json")
    assert copied(place.snapshots.take()) == {"answer.json", "copy.json"}


# Special files


def test_a_fifo_is_never_opened(place: Place) -> None:
    os.mkfifo(place.workspace / "answer.json")
    began = time.monotonic()
    assert "FIFO" in place.refusal()
    assert time.monotonic() - began < 5


def test_a_socket_and_a_device_are_left_out(place: Place) -> None:
    place.write("answer.json")
    expected = ["socket (a device, FIFO or socket)"]
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(place.workspace, os.O_PATH)
        server.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
        if os.geteuid() == 0:
            os.mknod(place.workspace / "null", 0o020666, os.makedev(1, 3))
            expected.append("null (a device, FIFO or socket)")
        assert set(place.snapshots.take().left_out) == set(expected)


# Sizes and numbers


def test_a_giant_sparse_file_costs_nothing(place: Place) -> None:
    place.write("answer.json")
    with (place.workspace / "huge.bin").open("wb") as stream:
        stream.truncate(1 << 40)
    began = time.monotonic()
    assert "huge.bin (1048576 MiB, over 1 MiB)" in place.left_out()
    assert time.monotonic() - began < 5


def test_a_giant_target_is_refused_with_its_size(place: Place) -> None:
    with place.write("checkpoints/best.pt").open("wb") as stream:
        stream.truncate(1 << 40)
    assert "the submission is 1048576 MiB; at most 4 MiB are accepted" in place.refusal()


def test_a_target_may_be_larger_than_other_files(place: Place) -> None:
    place.write("checkpoints/best.pt", bytes(3 * MIB))
    made = place.snapshots.take()
    assert (made.files / "checkpoints/best.pt").stat().st_size == 3 * MIB


def test_many_small_files_meet_the_total(place: Place) -> None:
    place.write("answer.json")
    for i in range(5):
        place.write(f"part{i}.bin", bytes(MIB))
    assert "at most 4 MiB" in place.refusal()


def test_too_many_files_are_refused_and_excluded_ones_do_not_count(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_FILES", 50)
    place.write("answer.json")
    for i in range(60):
        place.write(f"__pycache__/{i}.pyc")
    assert copied(place.snapshots.take()) == {"answer.json"}
    for i in range(60):
        place.write(f"{i}.txt")
    assert "more than 50 files" in place.refusal()


def test_a_flood_of_names_ends_the_look(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_SEEN", 100)
    place.write("answer.json")
    for i in range(120):
        (place.workspace / f"folder{i}").mkdir()
    assert "more than 100 names" in place.refusal()


def test_a_deep_tree_is_left_out_and_ends(place: Place) -> None:
    place.write("answer.json")
    folder = os.open(place.workspace, os.O_DIRECTORY)
    for _ in range(400):  # deeper than a path may be long, in steps that each are short
        os.mkdir("d" * 20, dir_fd=folder)
        inner = os.open("d" * 20, os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    try:
        made = place.snapshots.take()
    finally:
        subprocess.run(["rm", "-rf", place.workspace / ("d" * 20)], check=True)  # Python's own cannot
    assert "lies too deep" in "; ".join(made.left_out)
    assert "answer.json" in copied(made)


# Names


@pytest.mark.parametrize(
    "name", ["with space.txt", "new\nline.txt", "umlaut ä 🦊.txt", "-rf", "*.txt", "$(id)", "a" * 250]
)
def test_odd_names_are_copied_as_they_are(place: Place, name: str) -> None:
    place.write("answer.json")
    place.write(name, "content")
    made = place.snapshots.take()
    assert copied(made) == {"answer.json", name}
    assert load_snapshot(made.folder) == Snapshot(made.folder, made.target, made.sha256)


def test_a_name_that_is_not_utf8_is_left_out_and_said(place: Place) -> None:
    place.write("answer.json")
    fd = os.open(os.fsencode(place.workspace) + b"/bad\xff\nname", os.O_CREAT | os.O_WRONLY)
    os.close(fd)
    said = place.left_out()
    assert "its name is not UTF-8" in said
    said.encode()  # what is said can be written down
    assert "\n" not in said


def test_control_characters_do_not_reach_a_message(place: Place) -> None:
    place.write("checkpoints/\x1b[2Jevil\n.pt", bytes(5 * MIB))
    message = place.refusal("checkpoints/\x1b]0;title\x07.pt")
    assert message.isprintable()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("../host/secret.txt", "a path with .. is not accepted"),
        ("/workspace/../host/secret.txt", "a path with .. is not accepted"),
        ("checkpoints/../../host/secret.txt", "a path with .. is not accepted"),
        ("/etc/passwd", "not inside /workspace"),
        ("/workspaces/answer.json", "not inside /workspace"),
        ("//workspace/answer.json", "not inside /workspace"),
        ("", "no regular file"),
        (".", "no regular file"),
        ("checkpoints", "no regular file"),
        ("no.json", "no regular file"),
        ("notes.txt", "not something to score"),
        ("answer.json\0", "no regular file"),
        ("\ud800.json", "no regular file"),
        ("x" * 100_000, "no regular file"),
    ],
)
def test_a_named_target_outside_of_the_rules_is_refused(place: Place, target: str, words: str) -> None:
    place.write("answer.json")
    place.write("notes.txt")
    place.write("checkpoints/best.pt")
    message = place.refusal(target)
    assert words in message
    assert len(message) < 500 and message.encode("utf-8", "replace").decode().isprintable()


@pytest.mark.parametrize("target", ["answer.json", "/workspace/answer.json", "./answer.json", "checkpoints//best.pt"])
def test_a_named_target_inside_is_taken(place: Place, target: str) -> None:
    place.write("answer.json", age_s=50)
    place.write("checkpoints/best.pt")
    assert place.snapshots.take(target).target == str(
        Path(target).name if "answer" in target else "checkpoints/best.pt"
    )


# Rights. root reads everything, so the look is made as another user.


def test_an_unreadable_file_is_left_out_and_an_unreadable_target_refused(open_path: Path) -> None:
    place = Place(open_path)
    place.write("answer.json")
    place.write("private.txt").chmod(0)
    with somebody_else(place.workspace.parent, owner=True):
        made = place.snapshots.take()
        assert copied(made) == {"answer.json"}
        assert made.left_out == ("private.txt (it cannot be read: Permission denied)",)
        (place.workspace / "answer.json").chmod(0)
        assert "answer.json cannot be scored: it cannot be read: Permission denied" in place.refusal()


def test_an_unreadable_folder_is_left_out_and_said(open_path: Path) -> None:
    place = Place(open_path)
    place.write("checkpoints/best.pt")
    (place.workspace / "checkpoints").chmod(0)
    with somebody_else(place.workspace.parent, owner=True):
        assert "passed over: checkpoints/ (it cannot be read: Permission denied)" in place.refusal()
        place.write("answer.json")
        assert copied(place.snapshots.take()) == {"answer.json"}
        (place.workspace / "checkpoints").chmod(0o700)


# Changes while copying. The agent is frozen then; these are for boxes that cannot freeze.


def after_the_look(place: Place, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Have the workspace change between the look at it and the copying."""
    scan = Snapshots._scan

    def look_and_change(self: Snapshots) -> object:
        found = scan(self)
        change()
        return found

    monkeypatch.setattr(Snapshots, "_scan", look_and_change)


def test_a_file_replaced_by_a_link_is_not_followed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = place.write("answer.json")

    def swap() -> None:
        answer.unlink()
        answer.symlink_to(place.host / "secret.txt")

    after_the_look(place, monkeypatch, swap)
    assert "cannot be read" in place.refusal()


def test_a_folder_replaced_by_a_link_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("checkpoints/best.pt")
    (place.host / "best.pt").write_text("CANARY")

    def swap() -> None:
        (place.workspace / "checkpoints").rename(place.workspace / "gone")
        (place.workspace / "checkpoints").symlink_to(place.host)

    after_the_look(place, monkeypatch, swap)
    assert "changed while it was being copied" in place.refusal()


def test_a_growing_file_is_taken_at_the_size_that_was_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = place.write("answer.json", b"12345")
    after_the_look(place, monkeypatch, lambda: answer.open("ab").write(bytes(10 * MIB)))
    assert (place.snapshots.take().files / "answer.json").read_bytes() == b"12345"


def test_a_vanished_file_is_left_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("answer.json")
    gone = place.write("gone.txt")
    after_the_look(place, monkeypatch, gone.unlink)
    made = place.snapshots.take()
    assert copied(made) == {"answer.json"} and "gone.txt (it cannot be read" in made.left_out[0]


# Torn checkpoints


def test_a_silent_snapshot_passes_over_a_file_that_is_still_warm(place: Place) -> None:
    place.write("checkpoints/whole.pt", age_s=60)
    place.write("checkpoints/torn.pt", age_s=0)
    assert place.snapshots.take().target == "checkpoints/torn.pt", "the agent's own call takes the newest"
    assert place.snapshots.take(now=time.time()).target == "checkpoints/whole.pt"


def test_a_silent_snapshot_takes_a_warm_file_where_there_is_no_other(place: Place) -> None:
    place.write("checkpoints/torn.pt", age_s=0)
    assert place.snapshots.take(now=time.time()).target == "checkpoints/torn.pt"


def test_targets_can_be_passed_over(place: Place) -> None:
    place.write("checkpoints/a.pt", age_s=60)
    place.write("checkpoints/b.pt", age_s=30)
    assert place.snapshots.take(without=frozenset({"checkpoints/b.pt"})).target == "checkpoints/a.pt"


# Our own disk


def test_a_full_disk_is_our_fault_and_leaves_nothing_half_made(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("answer.json", b"content")

    def full(_sink: object, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot, "_write_all", full)
    with pytest.raises(InfrastructureError, match="No space left on device"):
        place.snapshots.take()
    assert list(place.store.iterdir()) == []


def test_a_kept_artefact_that_was_changed_is_noticed(place: Place) -> None:
    place.write("answer.json", b"honest")
    place.write("lib.py", b"lib")
    kept = place.snapshots.take()
    for change in (
        lambda: (kept.files / "lib.py").write_bytes(b"LIB"),
        lambda: (kept.files / "more.py").write_bytes(b""),
        lambda: (kept.files / "lib.py").unlink(),
        lambda: (kept.folder / "snapshot.json").write_text("[1, 2]"),
        lambda: (kept.folder / "snapshot.json").write_bytes(b"\xff\xfe"),
        lambda: (kept.folder / "snapshot.json").unlink(),
    ):
        (kept.files / "lib.py").chmod(0o644) if (kept.files / "lib.py").exists() else None
        change()
        with pytest.raises(InvalidSubmission, match="kept artefact"):
            load_snapshot(kept.folder)


def test_the_hash_is_over_paths_contents_and_target(place: Place) -> None:
    place.write("answer.json", b"1")
    place.write("checkpoints/a.pt", b"2")
    hashes = {place.snapshots.take(name).sha256 for name in ("answer.json", "checkpoints/a.pt")}
    assert len(hashes) == 2
    made = place.snapshots.take("answer.json")
    one = hashlib.sha256(b"1").hexdigest()
    assert made.sha256 == hashlib.sha256(f"11:answer.json:{one}\ntarget:answer.json\n".encode()).hexdigest()
    assert json.loads((made.folder / "snapshot.json").read_text())["sha256"] == made.sha256


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("answer.json", ["answer.json"], ["x/answer.json", "answerxjson"]),
        ("checkpoints/*.pt", ["checkpoints/a.pt", "checkpoints/.pt"], ["checkpoints/a/b.pt", "checkpoints/a.ptx"]),
        ("**/*", ["a", "a/b", "a/b/c"], []),
        ("**/__pycache__/**", ["__pycache__/a", "x/__pycache__/y/z"], ["__pycache__", "a__pycache__/b"]),
        ("run_*.py", ["run_.py", "run_a\n.py"], ["run/a.py"]),
        ("a+(b).py", ["a+(b).py"], ["aab.py"]),
    ],
)
def test_globs(glob: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in yes if not matches(path, [glob])] == []
    assert [path for path in no if matches(path, [glob])] == []
