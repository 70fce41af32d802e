"""Who the code in a box is to the host.

Inside it is uid 1000, always. To the kernel it is the account that runs Proctor, without capabilities, where that is
an ordinary account. Where Proctor runs as root that would be root: bare of capabilities, but the owner of every device
node and kernel file that is visible, exempt from process limits, and able to leave set-uid-root files behind. So root
starts boxes with two ids mapped: 0, as which the box is set up, and 1000, which is `BOX_ID` on the host, an id that
owns nothing; the last step before the command is to become the latter for good.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from proctor.box.base import BoxSpec
from proctor.box.runtime import runtime_of
from proctor.errors import InfrastructureError

BOX_ID = 65533
"""uid and gid of boxes on the host when root starts them: below `nobody`, in the range that no system hands out."""
INSIDE = 1000
SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
COUNTS = {"max_inotify_instances": 32, "max_inotify_watches": 65536}
SETUP_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
"""What is kept until the command's own user is taken on."""


@dataclass(frozen=True)
class Identity:
    """The host account of a box's processes.

    Attributes:
        uid: Its number on the host.
        become: Command that takes it on inside the box, put before the box's own command; empty if the box starts
            as that account.
    """

    uid: int
    become: tuple[str, ...] = ()

    @property
    def mapped(self) -> bool:
        """Whether it is an account of its own, not that of Proctor."""
        return bool(self.become)


def own_account() -> Identity:
    """The account that runs Proctor."""
    return Identity(os.geteuid())


def separate_account() -> tuple[Identity | None, str]:
    """The account that owns nothing, for boxes started by root; None with the reason where it cannot be had."""
    setpriv = shutil.which("setpriv", path=SYSTEM_PATH)
    if setpriv is None:
        return None, "there is no setpriv (util-linux) in the system folders"
    if not _id_exists(BOX_ID):
        return None, f"the uid {BOX_ID} is not available in this container"
    if _umask() & 0o005:
        return None, f"the umask {_umask():04o} makes files for the box unreadable to it; use umask 022"
    flags = ("--reuid", str(INSIDE), "--regid", str(INSIDE), "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")
    return Identity(BOX_ID, (setpriv, *flags, "--")), ""


def _id_exists(number: int) -> bool:
    """Whether the user namespace that we are in knows the id."""
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(first <= number < first + count for first, _, count in ranges)


def _umask() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def write_maps(pid: int) -> None:
    """Map the ids of a box's user namespace, whose first process is `pid`: root for the set-up, then the box's own."""
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 0 1\n{INSIDE} {BOX_ID} 1\n")


def bound_counts(pid: int) -> subprocess.Popen[bytes] | None:
    """Give a box, whose first process is `pid`, a part of what the kernel counts for root; wait for what is returned.

    What it counts for each user it counts for the owner of the user's namespace too, and that is root: one box could
    take all of root's inotify instances, of which there are 128.
    """
    nsenter = shutil.which("nsenter", path=SYSTEM_PATH)
    if nsenter is None:
        return None
    script = "".join(f"echo {count} >/proc/sys/user/{name};" for name, count in COUNTS.items())
    quiet = subprocess.DEVNULL
    command = [nsenter, "--user", "--target", str(pid), "/bin/sh", "-c", script]
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)


def hand_over(spec: BoxSpec, identity: Identity) -> None:
    """Give the writable folders to the box's account, and see that it can use the rest of what is shown.

    Raises:
        InfrastructureError: It cannot, or a folder cannot be given away.
    """
    if not identity.mapped:
        return
    runtime = runtime_of(spec.python)
    for path in (Path(runtime.python), *runtime.parts):
        _check(path, writable=False)
    for device in spec.devices:
        _check(Path(device), writable=True)
    for bind in spec.binds:
        if not (bind.writable and bind.source.is_dir()):
            _check(bind.source, writable=bind.writable)
            continue
        try:
            _chown_tree(bind.source, identity.uid)
        except OSError as error:
            raise InfrastructureError(
                f"{bind.source} cannot be given to the box's account: {error.strerror}",
                "keep runs on a file system on which root may change owners, or run Proctor from an ordinary account",
            ) from error


def _check(path: Path, *, writable: bool) -> None:
    """See that others than the owner may use something."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be shown in the box: {error.strerror}") from None
    needed = 0o005 if stat.S_ISDIR(mode) else 0o006 if writable else 0o004
    if mode & needed != needed:
        raise InfrastructureError(
            f"{path} has mode {stat.S_IMODE(mode):04o}: the box's account cannot use it",
            f"chmod -R o+r{'w' if writable else ''}X {path}, or run Proctor from an ordinary account that can use it",
        )


def _chown_tree(folder: Path, uid: int) -> None:
    """Hand a tree over without following links. What a box has made already is not ours and stays as it is."""
    own = os.geteuid()
    os.chown(folder, uid, uid)
    for _, folders, files, descriptor in os.fwalk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid == own:
                    os.chown(name, uid, uid, dir_fd=descriptor, follow_symlinks=False)
