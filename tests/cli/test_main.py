"""Exit codes and words: nobody gets a traceback, and every refusal says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proctor import __version__
from proctor.cli import doctor, listing
from proctor.errors import InfrastructureError
from tests.conftest import CommandLine, Said

RUN = ("run", "--task", "toy", "--agent", "starter")


def said(answer: Said, *words: str) -> None:
    assert "Traceback" not in answer.err + answer.out, answer
    for word in words:
        assert word in answer.err, answer


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("run", "--nonsense"), "No such option"),
        (("run",), "no task was named"),
        ((*RUN[:3],), "no agent was named"),
        ((*RUN, "--task", "toi"), "did you mean 'toy'"),
        ((*RUN, "--task", "nothing-like-it"), "`proctor tasks` lists them all"),
        ((*RUN[:3], "--agent", "nothing-like-it"), "`proctor agents` lists them all"),
        ((*RUN[:3], "--agent", "startr"), "did you mean 'starter'"),
        ((*RUN, "--tier", "maxi"), "its tiers: mini, full"),
        ((*RUN, "--protocol", "seald"), "'seald' is not one of 'sealed', 'published'"),
        ((*RUN, "--budget", "soon"), "write 90s, 40m or 8h"),
        ((*RUN, "--budget", "-5s"), "write 90s, 40m or 8h"),
        ((*RUN, "--repeats", "0"), "--repeats is 0"),
        ((*RUN, "--repeats", "x"), "valid integer"),
        ((*RUN, "--jobs", "0"), "--jobs is 0"),
        ((*RUN, "--device", "tpu"), "devices: auto, cpu, cuda"),
        ((*RUN, "--executor", "slrm"), "executors: "),
        ((*RUN, "--box", "dockr"), "bwrap"),
        ((*RUN, "--data-seed", "frsh"), "`release`, `fresh`"),
        ((*RUN, "--memory", "0"), "--memory is 0 GiB"),
        ((*RUN, "--memory", "nan"), "--memory is nan GiB"),
        ((*RUN, "--memory", "inf"), "--memory is inf GiB"),
        ((*RUN, "--disk", "-1"), "--disk is -1 GiB"),
        ((*RUN, "--python", "/no/python"), "/no/python does not answer"),
        ((*RUN, "--out", "/dev/null"), "exists and is not empty"),
        ((*RUN, "--out", "/proc/x/y"), "name another folder with --out"),
        ((*RUN[:3], "--agent", "command:/no/such"), "is not a file"),
        ((*RUN[:3], "--agent", "files:/no/such"), "is not a folder"),
        (("run", "--suite", "onecrd", "--agent", "starter"), "suites: "),
        (("status",), "Missing argument"),
        (("status", "/no/such"), "is not an experiment folder"),
        (("report",), "Missing argument"),
        (("report", "/no/such"), "neither an experiment folder nor a run folder"),
        (("report", "/tmp", "--format", "pdf"), "formats: html, md, csv, json"),
        (("report", "/tmp", "-o", "x.pdf"), "formats: html, md, csv, json"),
        (("score", "/no/such"), "is not a run folder"),
        (("fetch", "toi"), "did you mean 'toy'"),
        (("fetch", "toy", "--from", "/no/such"), "does not exist"),
        (("worker", "/no/such"), "is not a run folder"),
    ],
)
def test_a_wrong_use_is_exit_code_1_and_says_what_is_right(
    command_line: CommandLine, arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command_line(*arguments)
    assert answer.code == 1, answer
    said(answer, words)
    assert answer.out == ""
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_help_and_version(command_line: CommandLine) -> None:
    assert command_line("--version").out == f"proctor {__version__}\n"
    top = command_line("--help")
    assert top.code == 0
    for command in ("doctor", "tasks", "agents", "fetch", "run", "status", "score", "report"):
        assert command in top.out
        told = command_line(command, "--help")
        assert told.code == 0 and "--help" in told.out
    assert not any(line.split()[:1] == ["worker"] for line in top.out.splitlines()), "not for hands"


def test_an_interrupt_is_130(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "all_tasks", interrupt)
    answer = command_line("tasks")
    assert answer.code == 130
    said(answer)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InfrastructureError("the driver is gone", "reboot"), ["error: the driver is gone", "  -> reboot"]),
        (PermissionError(13, "Permission denied", "/some/file"), ["error: Permission denied (/some/file)"]),
        (OSError(28, "No space left on device"), ["error: No space left on device"]),
    ],
)
def test_what_this_machine_cannot_do_is_2(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, error: Exception, words: list[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(doctor, "examine", fail)
    answer = command_line("doctor")
    assert answer.code == 2 and answer.err.splitlines() == words


def proctor(*arguments: str, **how: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "proctor", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)  # type: ignore[call-overload,no-any-return]


def test_a_reader_that_has_gone_is_no_fault() -> None:
    process = proctor("tasks", "--json")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(30) in (0, 1) and process.stderr.read() == b""
    process.stderr.close()


def test_a_terminal_without_utf8_shows_what_it_can() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    out, err = proctor("run", "--task", "ü", "--agent", "starter", env=environment).communicate(timeout=30)
    assert out == b"" and b"there is no task" in err and b"Traceback" not in err
