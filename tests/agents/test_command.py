"""`command:` and `files:`: what of the host goes into the box, and what is refused first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proctor.agents.base import Sitting
from proctor.agents.command import split
from proctor.agents.registry import get_agent, parse_agent
from proctor.box.base import BoxPaths
from proctor.errors import UsageError
from tests.support.stand import spec_of
from tests.support.toy.task import TASK
from tests.support.users import somebody_else


def program(folder: Path, name: str, mode: int = 0o755) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_the_whole_text_may_be_a_path_with_spaces_and_commas(tmp_path: Path) -> None:
    path = program(tmp_path / "my agents, all", "run me.sh")
    assert split(str(path)) == (path, [])


def test_arguments_are_split_as_a_shell_would(tmp_path: Path) -> None:
    path = program(tmp_path, "run.sh")
    assert split(f"{path} -x 'a b' \"c\" d\\ e") == (path, ["-x", "a b", "c", "d e"])
    spaced = program(tmp_path / "a b", "run.sh")
    assert split(f"'{spaced}' one") == (spaced, ["one"])


def test_a_bare_name_is_looked_for_on_the_path_after_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert split("env FOO=1")[0].name in ("env", "busybox", "coreutils")
    here = program(tmp_path, "env")
    assert split("env FOO=1") == (here, ["FOO=1"])


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = program(tmp_path, "run.sh")
    assert split("~/run.sh x") == (path, ["x"])


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("/no/such/file", "is not a file"),
        ("{folder}", "is not a file"),
        ("{folder}/plain.txt", "cannot be executed"),
        ("'open quote", "No closing quotation"),
        ("", "needs a program"),
        (" ", "needs a program"),
        ("''", "is not a file"),
        ("~no_such_user_here/x", ""),
        ("x" * 5000, "is not a file"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_way_out(tmp_path: Path, argument: str, words: str) -> None:
    program(tmp_path, "plain.txt", 0o644)
    with pytest.raises(UsageError) as caught:
        parse_agent("command:" + argument.replace("{folder}", str(tmp_path)))
    assert words in caught.value.message and caught.value.hint


def test_a_long_command_line_is_no_file_name(tmp_path: Path) -> None:
    path = program(tmp_path, "run.sh")
    assert split(f"{path} --prompt '{'solve it ' * 200}'")[1][1] == "solve it " * 200


def test_only_the_program_itself_goes_into_the_box(tmp_path: Path) -> None:
    path = program(tmp_path, "run.sh")
    (tmp_path / "secret.env").write_text("KEY=1")
    spec = spec_of(TASK, agent=parse_agent(f"command:{path} -v"))
    launch = get_agent("command").launch(Sitting(spec, TASK, BoxPaths(), "the prompt", "python"))
    assert launch.argv == ("/opt/agent/run.sh", "-v")
    assert set(launch.files) == launch.executable == {"run.sh"} and launch.workspace == {}
    assert launch.stdin == b"the prompt"


# files


def test_files_must_be_a_readable_folder_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for argument, words in (("empty", "holds no files"), ("file", "is not a folder"), ("none", "is not a folder")):
        with pytest.raises(UsageError, match=words):
            parse_agent(f"files:{tmp_path / argument}")
    with pytest.raises(UsageError, match="cannot be read"):
        parse_agent("files:~no_such_user_here")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_file_that_cannot_be_read_is_refused(open_path: Path) -> None:
    folder = open_path / "given"
    program(folder, "secret", 0o600)
    with somebody_else(folder), pytest.raises(UsageError, match="secret cannot be read"):
        parse_agent(f"files:{folder}")


def test_files_keep_their_names_and_bytes(tmp_path: Path) -> None:
    for name in ("a.py", "sub dir/ü.bin", "deep/er/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    spec = spec_of(TASK, agent=parse_agent(f"files:{tmp_path}"))
    launch = get_agent("files").launch(Sitting(spec, TASK, BoxPaths(), "", "python"))
    assert launch.workspace == {n: n.encode() for n in ("a.py", "sub dir/ü.bin", "deep/er/x")}
