"""Boxes that an ordinary account starts: the same isolation, without root's ways to set it up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tests.box.support import SYSTEM_PYTHON, needs_root

REPO = Path(__file__).resolve().parents[2]
ACCOUNT = 12345
SCRIPT = """
import json, os, sys
from pathlib import Path
from proctor.box.bwrap import probed
from proctor.spec import Limits
from tests.box.support import STUBBORN, Room, until
from tests.box.test_limits import FORKS

room = Room(Path(sys.argv[1]))
able = probed().capabilities
box = room.start("/usr/bin/python3", "-S", "-c", STUBBORN)
assert until(lambda: len(list(room.workspace.glob("daemon*"))) == 3)
box.freeze(); box.thaw()
killed = box.kill()
box.close()
looks = "id -u; true > /proc/sys/kernel/core_pattern; unshare -U true; cat /proc/keys | wc -c"
print(json.dumps({
    "usable": able.usable, "isolated": able.isolated, "problems": able.problems, "pids": able.enforced.pids,
    "killed": killed, "looks": room.shell(looks).out.split(), "made": room.shell("echo x > made").status,
    "owner": (room.workspace / "made").stat().st_uid,
    "vsock": room.run("/usr/bin/python3", "-c", "import socket; socket.socket(40, 1)").err.splitlines()[-1:],
    "forks": room.run("/usr/bin/python3", "-c", FORKS.format(stay=0), limits=Limits(pids=50)).out,
}))
"""


@needs_root
def test_ordinary_account_gets_the_same_boxes() -> None:
    # Not in pytest's own folder, which is closed to other accounts.
    with tempfile.TemporaryDirectory(prefix="proctor-unprivileged-") as folder:
        look(Path(folder))


def look(folder: Path) -> None:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("there is no setpriv to become an ordinary account with")
    os.chown(folder, ACCOUNT, ACCOUNT)
    paths = [str(REPO / "src"), str(REPO), sysconfig.get_path("purelib")]
    become = [setpriv, f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*become, SYSTEM_PYTHON, "-c", code, *arguments]
        return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=120)

    if run("import pytest, pydantic, proctor.box.bwrap").returncode != 0:
        pytest.skip(f"{SYSTEM_PYTHON} of another account cannot import Proctor here")
    done = run(SCRIPT, str(folder))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["usable"] and found["isolated"], found["problems"]
    assert (found["killed"], found["made"], found["owner"]) == (True, 0, ACCOUNT)
    assert found["looks"][0] == "1000"
    assert found["looks"][-1] == "0"
    assert "Address family not supported" in found["vsock"][0]
    assert found["pids"] in ("RLIMIT_NPROC in the box's user namespace", "cgroup pids.max")
    assert 40 <= int(found["forks"].split()[0]) < 50
