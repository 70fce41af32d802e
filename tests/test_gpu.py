"""Leases between real processes, foreign processes, sampling and draining, with a driver that says what we want."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from proctor.clock import ManualClock, SystemClock
from proctor.errors import InfrastructureError, UsageError
from proctor.gpu import (
    FOREIGN_GRACE_S,
    Lease,
    UtilisationSampler,
    acquire,
    device_nodes,
    drain,
    foreign_processes,
    list_gpus,
    visible_env,
)
from proctor.nvml import SystemNvml
from tests.support.fake_nvml import FakeNvml, gpu

ROOT = Path(__file__).resolve().parents[1]
A, B, C = "GPU-00000000", "GPU-00000001", "GPU-00000002"
HOLDER = """
import sys
from proctor.clock import SystemClock
from proctor.gpu import acquire
from tests.support.fake_nvml import FakeNvml
lease = acquire(1, wanted=sys.argv[1:], timeout_s=30, clock=SystemClock(), run_id="run-of-child", nvml=FakeNvml())
print(*lease.uuids, flush=True)
sys.stdin.readline()
"""
RIVAL = """
import os, sys, time
from proctor.clock import SystemClock
from proctor.gpu import acquire
from tests.support.fake_nvml import FakeNvml
marker, order = sys.argv[1], sys.argv[2:]
print("ready", flush=True)
sys.stdin.readline()
for _ in range(40):
    with acquire(2, wanted=order, timeout_s=60, clock=SystemClock(), run_id="r", nvml=FakeNvml(),
                 sleep=lambda _: time.sleep(0.002)):
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails if the other is in here too
        time.sleep(0.002)
        os.unlink(marker)
"""


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def lease(
    count: int = 1, *wanted: str, nvml: FakeNvml | None = None, timeout_s: float = 0.0, clock: ManualClock | None = None
) -> Lease:
    """A lease by a clock that only moves while it waits."""
    moving = clock or ManualClock()
    return acquire(
        count,
        wanted=wanted or None,
        timeout_s=timeout_s,
        clock=moving,
        run_id="ours",
        nvml=nvml or FakeNvml(),
        sleep=moving.advance,
    )


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a lease on GPU 0."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, A], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == A
    yield child
    child.kill()
    child.communicate()


# --- what there is -------------------------------------------------------------------------------------------------


def test_without_a_driver_there_are_no_gpus_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    with pytest.raises(InfrastructureError, match="no NVIDIA driver"):
        SystemNvml()
    monkeypatch.setattr("proctor.gpu.system_nvml", SystemNvml)
    found = list_gpus()
    assert found == [] and found.reason == "no NVIDIA driver is installed here"


def test_a_driver_without_gpus_gives_a_reason() -> None:
    driver = FakeNvml()
    driver.found = []
    assert list_gpus(driver).reason == "the NVIDIA driver shows no GPU"


def test_the_driver_is_read_through_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object, **__: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    answers = {
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"580.95",
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetHandleByUUID": lambda uuid: int(uuid[-1]),
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
        "nvmlDeviceGetMinorNumber": lambda handle: 7 - handle,
        "nvmlDeviceGetMigMode": lambda handle: [1, 1] if handle else unsupported(),
        "nvmlDeviceGetMemoryInfo": lambda handle, version=None: SimpleNamespace(total=100, used=30 if version else 40),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=25, memory=3),
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=9), SimpleNamespace(pid=4)],
        "nvmlDeviceGetMPSComputeRunningProcesses": unsupported,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    driver = SystemNvml()
    first, second = driver.gpus()
    assert (first.uuid, first.name, first.memory_bytes, first.minor, first.mig) == (
        "GPU-0",
        "NVIDIA H200",
        100,
        7,
        False,
    )
    assert (second.index, second.minor, second.mig) == (1, 6, True)
    assert driver.driver() == "580.95"
    assert driver.processes("GPU-1") == [4, 9]
    assert driver.utilisation("GPU-1") == 0.25
    assert driver.memory_used("GPU-1") == 30
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", unsupported)
    with pytest.raises(InfrastructureError, match="could not tell the utilisation of GPU-1: Not Supported"):
        driver.utilisation("GPU-1")


@pytest.mark.gpu
def test_a_real_gpu_is_listed_leased_and_sampled() -> None:
    found = list_gpus()
    if not found:
        pytest.skip(f"no GPU: {found.reason}")
    with acquire(1, timeout_s=5, clock=SystemClock(), run_id="test") as held:
        assert held.foreign(set) == []
        assert all(Path(node).exists() for node in device_nodes(held.gpus))
        with UtilisationSampler(held.uuids, interval_s=0.1) as sampler:
            time.sleep(0.5)
        assert sampler.so_far().samples > 0 and sampler.so_far().failures == 0


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_gpu_leased_by_another_process_is_not_leased_again(holder: subprocess.Popen[str]) -> None:
    with lease(1) as held:
        assert held.uuids == (B,)
    with pytest.raises(InfrastructureError) as caught:
        lease(1, A, timeout_s=10)
    assert f"{A} by run run-of-child (process {holder.pid})" in caught.value.message
    assert "within 10 s" in caught.value.message


def test_all_or_none_is_kept(holder: subprocess.Popen[str]) -> None:
    with pytest.raises(InfrastructureError, match="no 2 GPUs became free"):
        lease(2)
    lease(1, B).release()


def test_a_lease_ends_with_its_process(holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lease(2) as held:
        assert held.uuids == (A, B)


def test_a_waiter_gets_the_gpu_when_it_is_given_back(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    stdin = holder.stdin

    def give_back() -> None:
        stdin.write("\n")
        stdin.flush()

    timer = threading.Timer(0.2, give_back)
    timer.start()
    with acquire(
        1, wanted=[A], timeout_s=60, clock=SystemClock(), run_id="r", nvml=FakeNvml(), sleep=lambda _: time.sleep(0.02)
    ) as held:
        assert held.uuids == (A,)
    timer.join()


def test_two_that_want_both_gpus_in_opposite_order_never_deadlock_or_overlap(tmp_path: Path) -> None:
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", RIVAL, str(tmp_path / "inside"), *order],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for order in ((A, B), (B, A))
    ]
    try:
        for rival in rivals:
            assert rival.stdout is not None and rival.stdout.readline() == "ready\n"
        for rival in rivals:
            assert rival.stdin is not None
            rival.stdin.write("\n")
            rival.stdin.flush()
        assert [rival.wait(timeout=100) for rival in rivals] == [0, 0]
    finally:
        for rival in rivals:
            rival.kill()
            rival.communicate()


def test_gpus_come_in_the_order_of_their_uuids_whatever_the_drivers() -> None:
    driver = FakeNvml(gpu(0, "GPU-c"), gpu(1, "GPU-a"), gpu(2, "GPU-b"))
    with lease(3, "0", "2", "GPU-a", nvml=driver) as held:
        assert held.uuids == ("GPU-a", "GPU-b", "GPU-c")


def test_no_gpus_need_no_driver() -> None:
    with acquire(0, timeout_s=0, clock=ManualClock(), run_id="r") as held:
        assert held.gpus == () and held.foreign(set) == []


def test_too_few_gpus_are_said_at_once() -> None:
    clock = ManualClock()
    with pytest.raises(InfrastructureError, match="needs 3 GPUs, and there are 2"):
        lease(3, timeout_s=100, clock=clock)
    assert clock.monotonic() == 0


def test_a_wanted_gpu_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no GPU '7'"):
        lease(1, "7")


def test_gpus_split_by_mig_are_passed_over_or_refused() -> None:
    driver = FakeNvml(gpu(0, mig=True), gpu(1))
    with lease(1, nvml=driver) as held:
        assert held.uuids == (B,)
    with pytest.raises(InfrastructureError, match=f"MIG instances, which are not supported: {A}"):
        lease(2, nvml=driver)


@pytest.mark.parametrize(
    ("value", "left"),
    [("1", (B,)), (f"{C},{B}", (B, C)), ("GPU-00000002", (C,)), ("2, 0", (A, C)), ("0,9,1", (A,))],
)
def test_what_a_scheduler_left_us_is_respected(
    monkeypatch: pytest.MonkeyPatch, value: str, left: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with lease(len(left), nvml=FakeNvml(gpu(0), gpu(1), gpu(2))) as held:
        assert held.uuids == left
    with pytest.raises(InfrastructureError, match="in CUDA_VISIBLE_DEVICES"):
        lease(len(left) + 1, nvml=FakeNvml(gpu(0), gpu(1), gpu(2)))


@pytest.mark.parametrize(("value", "why"), [("", "there are 0"), ("-1", "there are 0"), ("MIG-1234", "MIG instance")])
def test_a_scheduler_that_left_us_no_whole_gpu(monkeypatch: pytest.MonkeyPatch, value: str, why: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with pytest.raises(InfrastructureError, match=why):
        lease(1)


# --- foreign processes -------------------------------------------------------------------------------------------


def test_a_foreign_process_on_the_wanted_gpu_is_refused_by_name() -> None:
    driver, clock = FakeNvml(), ManualClock()
    driver.occupy(A, [os.getpid()])
    with pytest.raises(InfrastructureError) as caught:
        lease(1, A, nvml=driver, timeout_s=1000, clock=clock)
    assert f"process {os.getpid()} (" in caught.value.message and A in caught.value.message
    assert FOREIGN_GRACE_S <= clock.monotonic() <= FOREIGN_GRACE_S + 1
    lease(1, A).release()  # the refused GPU is not held


def test_a_gpu_with_a_foreign_process_is_passed_over_where_another_will_do() -> None:
    driver = FakeNvml()
    driver.occupy(A, [os.getpid()])
    with lease(1, nvml=driver) as held:
        assert held.uuids == (B,)


def test_a_process_that_the_driver_is_still_tidying_up_is_waited_for() -> None:
    driver, clock = FakeNvml(), ManualClock()
    driver.occupy(A, [os.getpid()])

    def tidy() -> None:
        if clock.monotonic() > 2:
            driver.occupy(A, [])

    driver.before_processes = tidy
    with lease(1, A, nvml=driver, timeout_s=60, clock=clock) as held:
        assert held.uuids == (A,)
    assert 2 < clock.monotonic() < FOREIGN_GRACE_S


def test_during_a_run_only_strangers_are_foreign() -> None:
    driver = FakeNvml()
    with lease(1, A, nvml=driver) as held:
        driver.occupy(A, [os.getpid(), os.getppid()])
        driver.occupy(B, [1])  # not ours to watch
        (found,) = held.foreign(lambda: {os.getppid()})
        assert (found.pid, found.uuid) == (os.getpid(), A) and found.name
        assert held.foreign(lambda: {os.getpid(), os.getppid()}) == []


def test_a_process_that_cannot_be_seen_from_here_has_no_name() -> None:
    driver = FakeNvml()
    driver.occupy(A, [2**22 + 1])  # above the kernel's largest process id
    (found,) = foreign_processes([A], set, driver)
    assert found.name is None and "not visible from here" in str(found)


def test_a_process_of_ours_that_has_just_started_or_ended_is_not_foreign() -> None:
    driver = FakeNvml()
    mine: set[int] = set()

    def start() -> None:  # appears on the GPU as the driver is asked, and is ours
        mine.add(11)
        driver.occupy(A, [11])

    driver.before_processes = start
    assert foreign_processes([A], lambda: mine, driver) == []

    looks: list[int] = []

    def end() -> None:  # listed at the first look, gone at the second, and no longer among ours at either
        driver.occupy(A, [] if looks else [12])
        looks.append(1)

    driver.before_processes = end
    assert foreign_processes([A], set, driver) == []
    assert len(looks) == 2


# --- sampling and draining ---------------------------------------------------------------------------------------


def wait_for(what: UtilisationSampler, samples: int) -> None:
    deadline = time.monotonic() + 20
    while what.so_far().samples + what.so_far().failures < samples:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_sampler_gives_mean_busy_fraction_and_peak_memory() -> None:
    driver = FakeNvml()
    # Two GPUs: readings come in pairs. Three samples are idle, half busy, and busy; then one fails.
    driver.busy = [0.0, 0.0, 1.0, 0.0, 1.0, 1.0, None]
    driver.memory = [1, 2, 30, 40, 5, 6]
    sampler = UtilisationSampler([A, B], driver, interval_s=0.01)
    sampler.start()
    wait_for(sampler, 4)
    figures = sampler.stop()
    assert (figures.busy_fraction, figures.peak_memory_bytes, figures.samples) == (0.5, 70, 3)
    assert figures.failures >= 1


def test_stopping_the_sampler_joins_its_thread() -> None:
    before = threading.active_count()
    sampler = UtilisationSampler([A], FakeNvml(), interval_s=3600)
    with sampler:
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert sampler.so_far().busy_fraction is None and sampler.so_far().peak_memory_bytes is None


def test_without_gpus_nothing_is_sampled() -> None:
    with UtilisationSampler([], FakeNvml(), interval_s=0.001) as sampler:
        time.sleep(0.02)
    assert sampler.stop().samples == 0


def drained(busy: list[float | None], timeout_s: float = 10.0) -> tuple[bool, float]:
    driver, clock = FakeNvml(), ManualClock()
    driver.busy = busy
    return drain([A], timeout_s, nvml=driver, clock=clock, sleep=clock.advance), clock.monotonic()


def test_an_idle_gpu_has_drained_once_it_stayed_idle() -> None:
    done, after = drained([0.0])
    assert done and 1.0 <= after < 1.2


def test_work_in_between_starts_the_wait_again() -> None:
    done, after = drained([1.0] * 10 + [0.0] * 10 + [0.5] * 10 + [0.0])
    assert done and 2.4 < after < 2.7


def test_a_gpu_that_stays_busy_has_not_drained() -> None:
    done, after = drained([1.0])
    assert not done and 10.0 <= after < 10.2


def test_nothing_to_drain() -> None:
    assert drain([], 0.0)


# --- what a box gets -----------------------------------------------------------------------------------------------


def test_a_box_gets_its_own_gpus_and_the_shared_control_files(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "null"):
        (tmp_path / name).touch()
    (tmp_path / "nvidia-caps").mkdir()
    nodes = device_nodes([gpu(2), gpu(0)], tmp_path)
    assert nodes == [str(tmp_path / name) for name in ("nvidia2", "nvidia0", "nvidiactl", "nvidia-uvm")]
    assert device_nodes([], tmp_path) == []


def test_a_gpu_without_its_device_file_is_an_infrastructure_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="nvidia1"):
        device_nodes([gpu(1)], tmp_path)


def test_only_leased_gpus_are_visible() -> None:
    assert visible_env([gpu(1), gpu(0)]) == {
        "CUDA_VISIBLE_DEVICES": f"{B},{A}",
        "NVIDIA_VISIBLE_DEVICES": f"{B},{A}",
    }
    assert visible_env([]) == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
