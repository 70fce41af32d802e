"""GPUs: which there are, leases on them, who else computes on them, how busy they are, and what a box needs of them.

A lease is an exclusive machine-wide lock per GPU UUID, so that two runs never share a GPU, whoever started them.
Processes that take no part in the locking are found through the driver. MIG instances are not supported: their
share of memory bandwidth and caches would make timings incomparable.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from proctor.clock import Clock, SystemClock
from proctor.errors import InfrastructureError, UsageError
from proctor.machine_locks import MachineLock, holder_of, try_lock
from proctor.nvml import Gpu, Nvml, system_nvml

POLL_S = 0.5
FOREIGN_GRACE_S = 5.0
"""A killed process may keep its place on a GPU for some seconds while the driver tidies up."""
SETTLE_S = 1.0
"""The driver's reading covers its last sampling period, of up to a second: a GPU is idle once it has read 0 for
longer than that."""

Sleep = Callable[[float], None]


class GpuList(list[Gpu]):
    """The GPUs of this machine, and, where there are none, why."""

    reason: str = ""


def list_gpus(nvml: Nvml | None = None) -> GpuList:
    """The GPUs that the driver shows, by index; an empty list with a `reason` if there are none. Never raises."""
    try:
        found = GpuList((nvml or system_nvml()).gpus())
    except InfrastructureError as error:
        found = GpuList()
        found.reason = error.message
        return found
    if not found:
        found.reason = "the NVIDIA driver shows no GPU"
    return found


@dataclass(frozen=True)
class ForeignProcess:
    """A process that computes on a GPU and is not the run's own.

    Attributes:
        pid: Its id, as the driver gives it.
        name: Its name; None if no such process can be seen from here. It is then in another container, or its id is
            one of another pid namespace, so that nothing can be said about whose it is.
        uuid: The GPU.
    """

    pid: int
    name: str | None
    uuid: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name or 'not visible from here'}) on {self.uuid}"


def foreign_processes(uuids: Iterable[str], own: Callable[[], set[int]], nvml: Nvml) -> list[ForeignProcess]:
    """Processes on these GPUs that are not in `own()`.

    The driver is asked before `own`, so that a process of ours that has just started is known; and twice, so that one
    that has just ended is not taken for a stranger.
    """
    wanted = tuple(uuids)

    def strangers() -> set[tuple[str, int]]:
        listed = {(uuid, pid) for uuid in wanted for pid in nvml.processes(uuid)}
        mine = own()
        return {(uuid, pid) for uuid, pid in listed if pid not in mine}

    first = strangers()
    both = first & strangers() if first else first
    return [ForeignProcess(pid, _process_name(pid), uuid) for uuid, pid in sorted(both)]


def _process_name(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).name())
    except (psutil.Error, ValueError):
        return None


class Lease:
    """GPUs that are this run's alone until `release`, or until its process is gone. Use as a context manager."""

    def __init__(self, gpus: Sequence[Gpu], locks: Sequence[MachineLock], nvml: Nvml | None) -> None:
        self.gpus = tuple(gpus)
        self._locks = list(locks)
        self._nvml = nvml

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)

    def foreign(self, own: Callable[[], set[int]]) -> list[ForeignProcess]:
        """Processes on the leased GPUs that are not among the run's own process ids, as seen from this process."""
        return foreign_processes(self.uuids, own, self._nvml) if self._nvml is not None else []

    def release(self) -> None:
        """Give the GPUs back; a second call does nothing."""
        while self._locks:
            self._locks.pop().release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(
    count: int,
    *,
    wanted: Sequence[str] | None = None,
    timeout_s: float,
    clock: Clock,
    run_id: str,
    nvml: Nvml | None = None,
    sleep: Sleep = time.sleep,
) -> Lease:
    """Lease `count` GPUs, waiting for other runs to give theirs back.

    All are taken at once or none is kept, in order of their UUIDs; so nobody waits while holding one, and two callers
    cannot wait for each other. GPUs with a foreign process are passed over as long as others will do.

    Args:
        count: How many; 0 gives an empty lease, also where there is no driver.
        wanted: Indices or UUIDs to choose from. None: those that a scheduler left in CUDA_VISIBLE_DEVICES, read in the
            driver's order, or all.
        timeout_s: How long to wait for other runs.
        clock: Measures the waiting.
        run_id: Told to others who wait for these GPUs.
        nvml: The driver; the machine's own if None.
        sleep: Waits between two attempts.

    Raises:
        UsageError: A wanted GPU does not exist.
        InfrastructureError: There are too few GPUs, a foreign process computes on one that is needed, or no lease
            was to be had in time.
    """
    if count == 0:
        return Lease((), (), None)
    driver = nvml or system_nvml()
    candidates = _candidates(count, driver.gpus(), wanted)
    start = clock.monotonic()
    foreign_since: float | None = None
    while True:
        lease, foreign = _attempt(count, candidates, driver, run_id)
        if lease is not None:
            return lease
        now = clock.monotonic()
        # Leases end by themselves. Foreign processes need not, once they are all that stands in the way.
        blocked = len(candidates) - len({process.uuid for process in foreign}) < count
        foreign_since = (foreign_since if foreign_since is not None else now) if blocked else None
        if foreign_since is not None and now - foreign_since >= FOREIGN_GRACE_S:
            raise InfrastructureError(
                "a GPU that the run needs is in use by others: " + ", ".join(map(str, foreign)),
                "end these processes, or choose other GPUs; timings on a shared GPU mean nothing",
            )
        if now - start >= timeout_s:
            raise _too_late(count, timeout_s, candidates, foreign)
        sleep(POLL_S)


def _attempt(
    count: int, candidates: Sequence[Gpu], nvml: Nvml, run_id: str
) -> tuple[Lease | None, list[ForeignProcess]]:
    """One pass over the candidates: a full lease, or nothing held and the foreign processes met."""
    taken: list[Gpu] = []
    locks: list[MachineLock] = []
    foreign: list[ForeignProcess] = []
    complete = False
    try:
        for gpu in candidates:
            lock = try_lock(gpu.uuid, run_id)
            if lock is None:
                continue
            locks.append(lock)
            found = foreign_processes([gpu.uuid], set, nvml)
            if found:
                foreign += found
                locks.pop().release()
                continue
            taken.append(gpu)
            if len(taken) == count:
                complete = True
                return Lease(taken, locks, nvml), foreign
    finally:
        while locks and not complete:
            locks.pop().release()
    return None, foreign


def _candidates(count: int, gpus: list[Gpu], wanted: Sequence[str] | None) -> list[Gpu]:
    """The GPUs to choose from, by UUID."""
    scheduled = os.environ.get("CUDA_VISIBLE_DEVICES")
    where = "this machine"
    if wanted is not None:
        gpus = [_named(name, gpus) for name in dict.fromkeys(wanted)]
        where = "the list of wanted GPUs"
    elif scheduled is not None:
        gpus = _scheduled(scheduled, gpus)
        where = f"CUDA_VISIBLE_DEVICES ({scheduled!r})"
    whole = {gpu.uuid: gpu for gpu in gpus if not gpu.mig}
    if len(whole) < count:
        split = [gpu.uuid for gpu in gpus if gpu.mig]
        raise InfrastructureError(
            f"the run needs {count} GPU{'s' * (count > 1)}, and there are {len(whole)} in {where}"
            + f"; split into MIG instances, which are not supported: {', '.join(split)}" * bool(split),
            "use a machine with enough whole GPUs, or the task's mini tier",
        )
    return sorted(whole.values(), key=lambda gpu: gpu.uuid)


def _named(name: str, gpus: list[Gpu]) -> Gpu:
    for gpu in gpus:
        if name in (str(gpu.index), gpu.uuid):
            return gpu
    raise UsageError(f"there is no GPU {name!r}", "give indices or UUIDs as `nvidia-smi -L` shows them")


def _scheduled(value: str, gpus: list[Gpu]) -> list[Gpu]:
    """What CUDA_VISIBLE_DEVICES leaves: as CUDA reads it, the list ends at the first entry that names no GPU."""
    found: list[Gpu] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.startswith("MIG-"):
            raise InfrastructureError(
                f"CUDA_VISIBLE_DEVICES names a MIG instance ({entry}), which is not supported",
                "ask the scheduler for whole GPUs",
            )
        match = [g for g in gpus if entry == str(g.index) or (entry.startswith("GPU-") and g.uuid.startswith(entry))]
        if len(match) != 1:
            break
        found += match
    return found


def _too_late(
    count: int, timeout_s: float, candidates: Sequence[Gpu], foreign: Sequence[ForeignProcess]
) -> InfrastructureError:
    others = {process.uuid for process in foreign}
    held = [f"{gpu.uuid} by {holder_of(gpu.uuid)}" for gpu in candidates if gpu.uuid not in others]
    return InfrastructureError(
        f"no {count} GPU{'s' * (count > 1)} became free within {timeout_s:g} s; held or wanted: "
        + ", ".join([*held, *map(str, foreign)]),
        "wait for these runs, or start fewer at a time (`--jobs`)",
    )


@dataclass(frozen=True)
class Utilisation:
    """How busy the leased GPUs were.

    Attributes:
        busy_fraction: Mean over samples and GPUs of the share of time in which a kernel ran; None without samples.
        peak_memory_bytes: Largest sum over the GPUs of the memory in use at one sample; None without samples.
        samples: How many samples were taken.
        failures: How many could not be.
    """

    busy_fraction: float | None
    peak_memory_bytes: int | None
    samples: int
    failures: int


class UtilisationSampler:
    """Samples utilisation and memory from a thread of its own, once a second. Use as a context manager."""

    def __init__(self, uuids: Sequence[str], nvml: Nvml | None = None, interval_s: float = 1.0) -> None:
        self._uuids = tuple(uuids)
        self._nvml = nvml
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._busy = 0.0
        self._peak = 0
        self._samples = 0
        self._failures = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start sampling; without GPUs there is nothing to sample and no thread."""
        if self._uuids:
            self._thread = threading.Thread(target=self._run, name="gpu-utilisation", daemon=True)
            self._thread.start()

    def so_far(self) -> Utilisation:
        """The figures up to now; from any thread."""
        with self._lock:
            some = self._samples > 0
            return Utilisation(
                self._busy / self._samples if some else None,
                self._peak if some else None,
                self._samples,
                self._failures,
            )

    def stop(self) -> Utilisation:
        """Stop, wait for the thread, and give the figures."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        return self.so_far()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            try:
                driver = self._nvml or system_nvml()
                busy = sum(driver.utilisation(uuid) for uuid in self._uuids) / len(self._uuids)
                memory = sum(driver.memory_used(uuid) for uuid in self._uuids)
            except InfrastructureError:
                with self._lock:
                    self._failures += 1
                continue
            with self._lock:
                self._busy += busy
                self._peak = max(self._peak, memory)
                self._samples += 1

    def __enter__(self) -> UtilisationSampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def drain(
    uuids: Sequence[str],
    timeout_s: float,
    *,
    settle_s: float = SETTLE_S,
    clock: Clock | None = None,
    nvml: Nvml | None = None,
    sleep: Sleep = time.sleep,
) -> bool:
    """Wait until nothing runs on these GPUs any more: freezing a process does not stop the kernels it has queued.

    Args:
        uuids: The GPUs.
        timeout_s: Longest wait.
        settle_s: For how long utilisation must read 0 without a break.

    Returns:
        Whether they were idle before the limit.

    Raises:
        InfrastructureError: The driver does not answer.
    """
    if not uuids:
        return True
    driver = nvml or system_nvml()
    ticking = clock or SystemClock()
    start = ticking.monotonic()
    idle_since: float | None = None
    while True:
        busy = any(driver.utilisation(uuid) > 0 for uuid in uuids)
        now = ticking.monotonic()
        idle_since = None if busy else (now if idle_since is None else idle_since)
        if idle_since is not None and now - idle_since >= settle_s:
            return True
        if now - start >= timeout_s:
            return False
        sleep(0.05)


def device_nodes(gpus: Sequence[Gpu], dev: Path = Path("/dev")) -> list[str]:
    """The device files that a box needs for these GPUs and for no other.

    /dev/nvidia-caps is left out: it is for MIG and for multi-node NVLink, neither of which a box has. So are
    nvidia-modeset (displays) and the NVSwitch nodes (the fabric manager's).

    Raises:
        InfrastructureError: A GPU has no device file here, so that a box could not use it.
    """
    if not gpus:
        return []
    own = [dev / f"nvidia{gpu.minor}" for gpu in gpus]
    for gpu, node in zip(gpus, own, strict=True):
        if not node.exists():
            raise InfrastructureError(
                f"the device file {node} of {gpu.name} ({gpu.uuid}) is not there",
                f"make it with `nvidia-modprobe -c {gpu.minor}`, or let the container have it",
            )
    shared = [dev / name for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")]
    return [str(node) for node in own + [node for node in shared if node.exists()]]


def visible_env(gpus: Sequence[Gpu]) -> dict[str, str]:
    """The environment that shows exactly these GPUs to CUDA and to container runtimes; none, if there are none."""
    uuids = ",".join(gpu.uuid for gpu in gpus)
    return {"CUDA_VISIBLE_DEVICES": uuids, "NVIDIA_VISIBLE_DEVICES": uuids or "void"}
