"""A warden outlives this process by a moment and ends the boxes that it leaves.

`bwrap --die-with-parent` covers a box once it runs. While it is being set up it does not: a worker that is killed then
would leave a box behind, whose command would even start. So, as long as there are boxes, a small shell listens at the
end of a pipe; when the pipe closes, because this process is gone in whatever way, it ends what it was told of and not
told to forget. A group is killed until it can be removed: a process that was about to go into it may come late.
Processes are known by pid and start time, so that a pid that was given anew is left alone.
"""

from __future__ import annotations

import os
import subprocess
import threading

from proctor.box.spawn import note_spawned

SCRIPT = r"""
trap '' HUP INT TERM
set -f
newline='
'
IFS=$newline

end_process() {  # PID:START
    pid=${1%:*} start=${1#*:}
    read -r stat <"/proc/$pid/stat" || return
    IFS=' '
    set -- ${stat##*)}
    IFS=$newline
    [ "${20}" = "$start" ] && kill -9 "$pid" "-$pid"
}

guarded=
while read -r line; do
    name=${line#?}
    case $line in
        +*) guarded=$guarded$name$newline ;;
        -*)
            left=
            for other in $guarded; do
                [ "$other" = "$name" ] || left=$left$other$newline
            done
            guarded=$left ;;
    esac
done
for name in $guarded; do
    case $name in
        /*) echo 1 >"$name/cgroup.kill" ;;
        *:*) end_process "$name" ;;
    esac
done
for name in $guarded; do
    case $name in
        /*) for _ in 1 2 3 4 5 6 7 8 9; do
                rmdir "$name" && break
                echo 1 >"$name/cgroup.kill"
                sleep 0.05
            done ;;
    esac
done
"""


class Warden:
    """The warden of this process. It runs while something is guarded, and is gone when nothing is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guarded: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def guard(self, name: str) -> None:
        """Have something ended when this process is gone: a control group's path, or what `tree.process_name` gives."""
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", SCRIPT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={"PATH": "/usr/bin:/bin"},
                    cwd="/",
                    start_new_session=True,
                )
                note_spawned(self._process.pid)
            self._guarded.add(name)
            self._tell("+", name)

    def forget(self, name: str) -> None:
        """Stop guarding something that is over."""
        with self._lock:
            if name not in self._guarded:
                return
            self._guarded.remove(name)
            self._tell("-", name)
            if not self._guarded and self._process is not None:
                process, self._process = self._process, None
                process.communicate()

    def _tell(self, sign: str, name: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), f"{sign}{name}\n".encode())
        except BrokenPipeError:  # somebody killed it: boxes then go with this process as bwrap sees to it
            return


WARDEN = Warden()
