"""What a box shows, as arguments of bwrap: system, runtime, kernel files with covers, temporary folders, binds.

Mounts lie over one another, so order is everything: a folder is shown, then what must stay hidden in it is covered,
then what must be seen within the covered part is shown again. Sorting by depth gives exactly that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from proctor.box.base import BoxSpec
from proctor.box.runtime import ETC, SYS, SYSTEM, own_paths, runtime_of
from proctor.inbox import BIN

TEMPORARY = ("/tmp", "/dev/shm", "/home/agent")
"""Folders in memory, each of `Limits.tmp_bytes` at most."""
ETC_OWN = ("passwd", "group", "hosts", "nsswitch.conf")
NOTHING = "/dev/null"


@dataclass(frozen=True)
class _Part:
    """One thing that is shown at its own path, or covered."""

    path: Path
    hidden: bool

    def arguments(self) -> list[str]:
        path = str(self.path)
        if not self.hidden:
            return ["--ro-bind", path, path]
        if self.path.is_dir():
            return ["--size", "4096", "--perms", "0555", "--tmpfs", path]
        return ["--ro-bind", NOTHING, path]


def mounts(spec: BoxSpec) -> list[str]:
    """Everything that `spec` shows."""
    system, closed = _system(spec.python, spec.hidden)
    args = list(_kernel_files())
    # Before what may lie in them: a runtime under /tmp must not be covered.
    for place in TEMPORARY:
        args += ["--size", str(spec.limits.tmp_bytes), "--perms", "1777", "--tmpfs", place]
    args += system
    args += _folders_above(*(Path(bind.target) for bind in spec.binds), *map(Path, spec.devices))
    for bind in spec.binds:
        args += ["--bind" if bind.writable else "--ro-bind", str(bind.source), bind.target]
    for device in spec.devices:
        args += ["--dev-bind", device, device]
    # The folders that hold the mounts are in memory too, and no size bounds them: nothing is written there.
    return args + [word for path in (*closed, "/dev", "/") for word in ("--remount-ro", path)]


@cache
def _system(python: str, hidden: tuple[Path, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Arguments for the system folders, the runtime and /etc, the outer before the inner, and the covers that are
    folders."""
    runtime = runtime_of(python)
    links = [Path(name) for name in SYSTEM if os.path.islink(name)]
    shown = [_Part(Path(name), False) for name in SYSTEM if os.path.isdir(name) and not os.path.islink(name)]
    inner_links = [path for path in runtime.parts if path.is_symlink() and not os.path.isabs(os.readlink(path))]
    shown += [_Part(path, False) for path in runtime.parts if path not in inner_links]
    links += inner_links
    covered = [_Part(path, True) for path in _within((*own_paths(runtime), *hidden), shown)]
    parts = sorted({part.path: part for part in (*shown, *covered)}.values(), key=lambda part: len(part.path.parts))
    etc = [Path("/etc", name) for name in (*ETC, *ETC_OWN)]
    args = _folders_above(*links, *(part.path for part in parts), *etc, Path("/run/x"), Path("/var/x"))
    for link in links:
        args += ["--symlink", os.readlink(link), str(link)]
    for part in parts:
        args += part.arguments()
        if part.hidden:
            args += _folders_above(*(p.path for p in parts if not p.hidden), below=part.path)
    for name in ETC:
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in ETC_OWN:
        args += ["--ro-bind", str(BIN.parent / "etc" / name), f"/etc/{name}"]
    args += ["--symlink", "/tmp", "/var/tmp"]
    return tuple(args), tuple(str(part.path) for part in covered if part.path.is_dir())


def _within(paths: tuple[Path, ...], shown: list[_Part]) -> list[Path]:
    """Where the paths are seen in the box: below each shown folder that contains them. A prefix may be reached by a
    link, and then shows what it holds at other paths than the host's real ones."""
    found = []
    for part in shown:
        root = part.path.resolve()
        found += [part.path / real.relative_to(root) for path in paths if (real := path.resolve()).is_relative_to(root)]
    return list(dict.fromkeys(found))


def _folders_above(*paths: Path, below: Path = Path("/")) -> list[str]:
    """Make the folders that lead from `below` to the paths; bwrap alone would give some of them to root only."""
    links = [name for name in SYSTEM if os.path.islink(name)]
    above = {parent for path in paths for parent in path.parents if below in parent.parents}
    plain = [str(path) for path in above if not any(path.is_relative_to(link) for link in links)]
    ordered = sorted(plain, key=lambda path: (path.count("/"), path))
    return [word for path in ordered for word in ("--perms", "0755", "--dir", path)]


@cache
def _kernel_files() -> tuple[str, ...]:
    """/proc with covers over what the host's root owns, /dev with the plain devices, a little of /sys."""
    args = ["--proc", "/proc"]
    writable, private = root_owned_proc()
    for name in writable:
        args += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for name in private:
        args += ["--ro-bind", NOTHING, f"/proc/{name}"]
    args += ["--dev", "/dev", *_folders_above(*map(Path, SYS))]
    for path in SYS:
        args += ["--ro-bind-try", path, path]
    return tuple(args)


@cache
def root_owned_proc() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Entries of /proc, beside the processes, that hold something which its owner may write, and those that are of
    the host and only for its owner (or about keys, which are the host user's) to read.

    Such files belong to the host's root. Where a box has to run as that root, uid 1000 inside *is* it to the kernel,
    bare of capabilities but still the owner: /proc/sys/kernel/core_pattern alone would be a way out. bwrap covers only
    what it finds writable as a folder, so these are covered here, for every user.
    """
    writable, private = ["sys"], []
    for entry in sorted(os.scandir("/proc"), key=lambda e: e.name):
        if entry.name.isdigit() or entry.name == "sys" or entry.is_symlink():
            continue
        if not entry.is_file(follow_symlinks=False):
            if any(_mode(os.path.join(folder, name)) & 0o222 for folder, _, names in os.walk(entry) for name in names):
                writable.append(entry.name)
            continue
        mode = _mode(entry.path)
        if (mode & 0o400 and not mode & 0o004) or entry.name in ("keys", "key-users"):
            private.append(entry.name)
        elif mode & 0o222:
            writable.append(entry.name)
    return tuple(writable), tuple(private)


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:  # entries of /proc come and go
        return 0
