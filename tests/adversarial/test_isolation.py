"""A hostile agent in a real run: whatever it tries, what is the host's stays with the host.

One experiment of two runs is done; the agent of the second knows every path, port and pid (`isolation_attack.py`), and
looks for the first run too. Each test first shows that the thing was there to be had.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

import proctor
from proctor.box.runtime import default_python
from proctor.spec import Result
from tests.box.support import needs_box

pytestmark = [needs_box, pytest.mark.xdist_group("isolation")]

REPO = Path(__file__).resolve().parents[2]
ATTACK = Path(__file__).parent / "isolation_attack.py"
ENVIRONMENT_CANARY = "CANARY-environment-7d1f"
FILE_CANARY = "CANARY-file-93ab"
KEY_CANARY = b"CANARY-key-51c0"
LIBC = ctypes.CDLL(None, use_errno=True)
USER_KEYRING = -4


@dataclass
class Attacked:
    """The host as it was, and what the agent found."""

    parameters: dict[str, Any]
    found: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    experiment: Path = Path()
    cache: Path = Path()
    canary_process: int = 0
    null_before: tuple[int, ...] = ()
    key_was_readable: bool = False


def scenery(stack: ExitStack, root: Path) -> dict[str, Any]:
    """Things on the host that an agent would like to have."""
    servers = {}
    for name, family, address in (
        ("tcp", socket.AF_INET, ("0.0.0.0", 0)),
        ("tcp6", socket.AF_INET6, ("::1", 0)),
        ("abstract", socket.AF_UNIX, f"\0proctor-test-{os.getpid()}"),
        ("path", socket.AF_UNIX, str(root / "host.sock")),
    ):
        server = stack.enter_context(socket.socket(family))
        server.bind(address)
        server.listen(64)
        servers[name] = server
    (root / "notes.txt").write_text(FILE_CANARY)
    home = next((p for p in sorted(Path.home().iterdir()) if p.is_file() and p.stat().st_size), None)
    addresses = [a.address for nets in psutil.net_if_addrs().values() for a in nets if a.family == socket.AF_INET]
    return {
        "tcp_port": servers["tcp"].getsockname()[1],
        "tcp6_port": servers["tcp6"].getsockname()[1],
        "host_addresses": [a for a in addresses if not a.startswith("127.")],
        "abstract": f"proctor-test-{os.getpid()}",
        "path_socket": str(root / "host.sock"),
        "canaries": [ENVIRONMENT_CANARY, FILE_CANARY, "CANARY-2."],
        "secret_paths": [
            str(root / "notes.txt"),
            str(Path(proctor.__file__)),
            str(Path(proctor.__file__).parent / "scoring" / "service.py"),
            str(REPO / "tests" / "support" / "toy" / "reference" / "start.sh"),
            str(REPO / "tests" / "support" / "toy" / "task.py"),
            *([str(home)] if home else []),
        ],
        "secret_folders": [str(root), str(REPO / "src"), str(REPO / ".git"), str(Path.home() / ".ssh")],
        "secret_names": ["scorelog.py", "hidden.npz", "visible.npz", "secret.txt", "scores.jsonl", "run.json"],
        "key_name": f"proctor-test-{os.getpid()}",
        "host_pids": [os.getpid(), os.getppid(), 1],
    }


@contextmanager
def key(name: str) -> Iterator[bool]:
    """A secret in the keyring of the user who runs Proctor; whether this kernel let us put it there."""
    numbers = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(os.uname().machine)
    if numbers is None:
        yield False
        return
    serial = LIBC.syscall(numbers[0], b"user", name.encode(), KEY_CANARY, len(KEY_CANARY), USER_KEYRING)
    try:
        yield serial > 0 and LIBC.syscall(numbers[1], 11, serial, ctypes.create_string_buffer(64), 64) > 0
    finally:
        if serial > 0:
            LIBC.syscall(numbers[1], 9, serial, USER_KEYRING)


def state_of_null() -> tuple[int, ...]:
    info = os.stat("/dev/null")
    return (info.st_mode, info.st_uid, int(info.st_mtime))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    root = tmp_path_factory.mktemp("isolation")
    env = {
        **os.environ,
        "PYTHONPATH": f"{REPO / 'src'}:{REPO}",
        "PROCTOR_TASKS": "tests.support.toy.task:TASK",
        "PROCTOR_CACHE": str(root / "cache"),
        "SECRET_OF_THE_HOST": ENVIRONMENT_CANARY,
    }
    with ExitStack() as stack:
        case = Attacked(scenery(stack, root), experiment=root / "experiment", cache=root / "cache")
        sleeper = stack.enter_context(subprocess.Popen(["sleep", "300"], env=env))
        stack.callback(sleeper.kill)
        case.canary_process = sleeper.pid
        case.parameters["host_pids"].append(sleeper.pid)
        case.parameters["secret_folders"] += [str(case.experiment), str(case.cache)]
        case.key_was_readable = stack.enter_context(key(case.parameters["key_name"]))
        case.null_before = state_of_null()
        agent = root / "attack"
        source = ATTACK.read_text().replace("PARAMETERS: dict = {}", f"PARAMETERS = {case.parameters!r}")
        agent.write_text(source)
        agent.chmod(0o755)
        command = [sys.executable, "-m", "proctor", "run", "--task", "toy", "--agent", f"starter,command:{agent}"]
        command += ["--budget", "90s", "--silent-snapshots", "0", "--out", str(case.experiment)]
        done = subprocess.run([*command, "--json"], env=env, cwd=REPO, capture_output=True, text=True, timeout=250)
        assert done.stdout, done.stderr
        case.results = [Result.model_validate(run) for run in json.loads(done.stdout)["runs"]]
        last = case.experiment / "runs" / case.results[-1].run_id
        said = (last / "agent.stderr").read_text()
        assert (last / "workspace" / "findings.json").exists(), said
        case.found = json.loads((last / "workspace" / "findings.json").read_text())
        yield case


def reaches(family: int, address: Any) -> bool:
    with socket.socket(family) as sock:
        sock.settimeout(3.0)
        return sock.connect_ex(address) == 0


def test_host_services_are_not_reached(attacked: Attacked) -> None:
    at, found = attacked.parameters, attacked.found["network"]
    assert reaches(socket.AF_INET, ("127.0.0.1", at["tcp_port"]))
    assert reaches(socket.AF_INET6, ("::1", at["tcp6_port"]))
    assert reaches(socket.AF_UNIX, "\0" + at["abstract"])
    assert reaches(socket.AF_UNIX, at["path_socket"])
    assert all(reaches(socket.AF_INET, (ip, at["tcp_port"])) for ip in at["host_addresses"])
    assert {found["loopback"], found["loopback6"], found["abstract"]} == {"ECONNREFUSED"}
    assert found["path_socket"] == "ENOENT"
    assert set(found["host_addresses"].values()) <= {"ENETUNREACH"}
    assert len(found["host_addresses"]) == len(at["host_addresses"])


def test_there_is_no_network_beyond_loopback(attacked: Attacked) -> None:
    found = attacked.found["network"]
    assert (found["interfaces"], found["routes"], found["resolver"]) == (["lo"], [], False)
    assert {found[name] for name in ("metadata", "metadata_udp", "outside6")} == {"ENETUNREACH"}
    assert found["names"] == "gaierror"


def test_no_socket_family_but_those_of_the_network_namespace(attacked: Attacked) -> None:
    """AF_VSOCK is the one that matters: it leads to the machine that a virtual machine runs on."""
    assert set(attacked.found["network"]["families"]) == {1, 2, 10, 16}
    for family in (40, 38):  # AF_VSOCK, AF_ALG
        try:
            socket.socket(family, socket.SOCK_STREAM if family == 40 else socket.SOCK_SEQPACKET).close()
        except OSError:
            continue  # this kernel has none
        break
    else:
        pytest.skip("this host has no such family either")


def test_raw_sockets_new_networks_and_io_uring_are_refused(attacked: Attacked) -> None:
    found = attacked.found["network"]
    assert found["raw"] == "EPERM"
    assert found["packet"] in ("EAFNOSUPPORT", "EPERM")
    assert (found["new_network"], found["io_uring"]) == ("EPERM", "ENOSYS")


def test_no_file_of_the_host_opens_by_its_path(attacked: Attacked) -> None:
    assert all(Path(path).read_bytes() for path in attacked.parameters["secret_paths"])
    assert attacked.found["files"]["opened"] == []


def test_no_folder_of_the_host_can_be_listed(attacked: Attacked) -> None:
    there = [path for path in attacked.parameters["secret_folders"] if Path(path).is_dir() and os.listdir(path)]
    assert {str(REPO / "src"), str(attacked.experiment), str(attacked.cache)} <= set(there)
    assert attacked.found["files"]["listed"] == []


def test_search_for_answers_scorers_and_other_runs_finds_nothing(attacked: Attacked) -> None:
    names = set(attacked.parameters["secret_names"])
    places = (attacked.cache, attacked.experiment, Path(proctor.__file__).parent)
    on_host = {path.name for place in places for path in place.rglob("*") if path.name in names}
    assert on_host == names, "each must be on the host for its absence to mean something"
    secret = next(attacked.cache.rglob("secret.txt")).read_text()
    assert "CANARY-2." in secret
    found = attacked.found["files"]
    assert (found["by_name"], found["by_content"]) == ([], [])


def test_other_runs_of_the_experiment_are_not_there(attacked: Attacked) -> None:
    first, second = (attacked.experiment / "runs" / result.run_id for result in attacked.results)
    assert (first / "result.json").exists() and (second / "result.json").exists()
    roots = attacked.found["files"]["up"]
    assert "workspace" in roots and "runs" not in roots and not any("experiment" in name for name in roots)


def test_environment_is_the_agents_own(attacked: Attacked) -> None:
    """The variables are those that the documents promise; the shell that starts Proctor had a secret."""
    found = attacked.found["environment"]
    assert ENVIRONMENT_CANARY not in json.dumps(found)
    allowed = {"PATH", "HOME", "LANG", "TERM", "TMPDIR", "PWD", "PYTHONUNBUFFERED", "LC_CTYPE"}
    ours = ("PROCTOR_", "CUDA_", "NVIDIA_", "OMP_")  # what a run sets itself, by the lease and the device
    assert {name for name in found if not name.startswith(ours)} <= allowed


def test_processes_of_the_host_are_not_seen_signalled_traced_or_read(attacked: Attacked) -> None:
    assert ENVIRONMENT_CANARY in Path(f"/proc/{attacked.canary_process}/environ").read_text()
    os.kill(attacked.canary_process, 0)
    found = attacked.found["processes"]
    assert found["seen"] < 8 < len(psutil.pids())
    assert (found["secrets"], found["signals"], found["memory"]) == ([], [], [])
    assert len(found["read"]) >= 2
    assert {*found["read"], *found["trace"]} <= {"ESRCH", "EPERM"}
    assert psutil.Process(attacked.canary_process).status() != psutil.STATUS_ZOMBIE


def test_only_the_standard_descriptors_are_open(attacked: Attacked) -> None:
    assert attacked.found["processes"]["descriptors"] == [0, 1, 2]


def test_no_file_of_the_kernel_takes_writing(attacked: Attacked) -> None:
    if os.geteuid() == 0:
        os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    assert attacked.found["kernel"]["writable"] == []


def test_private_files_of_the_kernel_are_closed(attacked: Attacked) -> None:
    assert Path("/proc/keys").read_text() or not attacked.key_was_readable
    assert attacked.found["kernel"]["private"] == []


def test_keys_of_the_user_who_runs_proctor_are_out_of_reach(attacked: Attacked) -> None:
    if not attacked.key_was_readable:
        pytest.skip("this host has no keyrings")
    found = attacked.found["kernel"]
    assert (found["key"], found["keyring"]) == ("EPERM", "EPERM")


def test_logs_tracing_and_other_large_parts_of_the_kernel_are_refused(attacked: Attacked) -> None:
    found = attacked.found["kernel"]
    assert {found[name] for name in ("log", "bpf", "perf", "userfaultfd")} == {"EPERM"}


def test_no_terminal_to_type_into(attacked: Attacked) -> None:
    found = attacked.found["kernel"]
    assert found["terminal"] == "ENXIO"
    assert set(found["typing"]) <= {"EPERM", "ENOTTY"}


def test_devices_are_the_harmless_ones(attacked: Attacked) -> None:
    known = {"core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty"}
    assert set(attacked.found["kernel"]["devices"]) <= known | {"urandom", "zero", "console"}
    assert attacked.found["mounts"]["host_disk"] == []
    assert attacked.found["mounts"]["device"] == "EPERM"


def test_modes_and_times_of_what_is_shown_cannot_be_changed(attacked: Attacked) -> None:
    """Under root a device node is the host's own: chmod in the box would have been chmod on the host."""
    assert state_of_null() == attacked.null_before
    own = {"/run/proctor/broker.sock"} if os.geteuid() != 0 else set()
    assert set(attacked.found["mounts"]["changed"]) <= own


def test_mounts_cannot_be_made_moved_or_removed(attacked: Attacked) -> None:
    found = attacked.found["mounts"]
    assert {found["umount"], *found["mount"].values(), found["open_tree"]} == {"EPERM"}
    assert {found["new_mounts"], found["new_users"]} == {"EPERM"}


def test_locked_files_keep_their_content(attacked: Attacked) -> None:
    found = attacked.found["mounts"]
    assert found["write"] == "EROFS"
    assert {found["unlink"], found["rename"], found["rename_over"]} == {"EBUSY"}
    assert found["link"] == "EXDEV"
    shipped = (REPO / "tests" / "support" / "toy" / "start" / "locked.txt").read_text()
    for result in attacked.results:
        assert (attacked.experiment / "runs" / result.run_id / "workspace" / "locked.txt").read_text() == shipped


def test_data_runtime_and_tools_are_read_only(attacked: Attacked) -> None:
    assert os.access(Path(default_python()).parent, os.W_OK) or os.geteuid() != 0
    assert {attacked.found["mounts"][name] for name in ("data", "runtime", "tools")} <= {"EROFS", "EACCES"}


def test_set_uid_programs_give_nothing(attacked: Attacked) -> None:
    found = attacked.found["mounts"]["set_uid"]
    if not found["present"]:
        pytest.skip("no set-uid program in the system folders")
    assert found["euid"] == 1000


def test_broker_outlives_every_odd_request_and_gives_nothing_away(attacked: Attacked) -> None:
    found = attacked.found["broker"]
    assert len(found["answers"]) >= 14
    assert found["held"] >= 32
    assert found["clock"] == "ok"
    said = json.dumps(found["answers"])
    assert "root:" not in said and "scores.jsonl" not in re.sub(r"\.\./\.\./scores\.jsonl", "", said)


class TestCandidate:
    """The box in which a submission is scored hides the same things, and the agent's run too."""

    def test_it_looked(self, attacked: Attacked) -> None:
        assert set(attacked.found["candidate"]) >= {"files", "network", "processes"}, attacked.found["candidate"]

    def test_no_answers_no_host_no_network(self, attacked: Attacked) -> None:
        found = attacked.found["candidate"]
        assert found["files"]["opened"] == found["files"]["listed"] == found["files"]["by_name"] == []
        assert found["files"]["by_content"] == []
        assert set(found["network"]["families"]) == {1, 2, 10, 16}
        assert {found["network"]["loopback"], found["network"]["abstract"]} == {"ECONNREFUSED"}
        assert found["processes"]["secrets"] == found["processes"]["memory"] == found["processes"]["signals"] == []

    def test_it_has_its_line_to_the_host_and_no_other_descriptor(self, attacked: Attacked) -> None:
        assert len(attacked.found["candidate"]["processes"]["descriptors"]) == 4

    def test_it_cannot_change_the_submission_or_the_driver_or_ask_for_scores(self, attacked: Attacked) -> None:
        found = attacked.found["candidate"]
        assert {"solve.py", "attack.py"} <= set(found["workspace"])
        assert {found["write"], found["lib"]} <= {"EROFS", "EACCES"}
        assert not found["broker"]
        assert not any("SECRET" in name for name in found["environment"])


def test_after_all_that_the_honest_score_stands(attacked: Attacked) -> None:
    for result in attacked.results:
        assert (result.ended.value, result.valid) == ("submitted", True)
        log = (attacked.experiment / "runs" / result.run_id / "scores.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in log]
        assert [entry["n"] for entry in entries] == list(range(len(entries)))
        scored = [entry for entry in entries if entry["status"] == "scored" and entry["split"] == "visible"]
        assert len(scored) == 1
        assert result.visible_best == scored[0]["score"] > 0


def test_nothing_of_the_runs_lives_on(attacked: Attacked) -> None:
    left = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(attacked.experiment) in line and process.pid != os.getpid():
            left.append(line)
    assert left == []
    os.kill(attacked.canary_process, signal.SIGCONT)
