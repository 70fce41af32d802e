"""The few questions that Proctor asks of the NVIDIA driver, behind a protocol that tests can answer instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import pynvml

from proctor.errors import InfrastructureError

_UNSUPPORTED = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine.

    Attributes:
        index: Number in the driver's (PCI) order, as `nvidia-smi` shows it.
        uuid: `GPU-...`, the name that holds across reboots and processes.
        name: Model name.
        memory_bytes: Memory in all.
        minor: The N of /dev/nvidiaN.
        mig: Whether it is split into MIG instances, which Proctor does not use.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int
    minor: int
    mig: bool = False


class Nvml(Protocol):
    """What the driver knows. Every method raises `InfrastructureError` if the driver does not answer."""

    def driver(self) -> str:
        """Version of the driver."""
        ...

    def gpus(self) -> list[Gpu]:
        """The GPUs that this process can see, by index."""
        ...

    def processes(self, uuid: str) -> list[int]:
        """Ids of the processes with a compute context on a GPU (CUDA, also through MPS)."""
        ...

    def utilisation(self, uuid: str) -> float:
        """Share of the driver's last sampling period (1/6 s to 1 s) in which a kernel ran, from 0 to 1."""
        ...

    def memory_used(self, uuid: str) -> int:
        """Bytes in use on a GPU by all processes; without what the driver reserves, where it tells them apart."""
        ...


class SystemNvml:
    """The machine's own driver, through its management library.

    Raises:
        InfrastructureError: There is no driver, or it does not work.
    """

    def __init__(self) -> None:
        with _answered("start"):
            pynvml.nvmlInit()

    def driver(self) -> str:
        with _answered("tell its version"):
            return _text(pynvml.nvmlSystemGetDriverVersion())

    def gpus(self) -> list[Gpu]:
        with _answered("list the GPUs"):
            return [
                self._gpu(index, pynvml.nvmlDeviceGetHandleByIndex(index))
                for index in range(pynvml.nvmlDeviceGetCount())
            ]

    def processes(self, uuid: str) -> list[int]:
        with _answered(f"list the processes on {uuid}"):
            handle = _handle(uuid)
            found = list(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
            with suppress(*_UNSUPPORTED):  # a GPU or a driver without MPS
                found += pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
            return sorted({int(process.pid) for process in found})

    def utilisation(self, uuid: str) -> float:
        with _answered(f"tell the utilisation of {uuid}"):
            return float(pynvml.nvmlDeviceGetUtilizationRates(_handle(uuid)).gpu) / 100

    def memory_used(self, uuid: str) -> int:
        with _answered(f"tell the memory in use on {uuid}"):
            handle = _handle(uuid)
            try:
                return int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used)
            except _UNSUPPORTED:
                return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)

    @staticmethod
    def _gpu(index: int, handle: Any) -> Gpu:
        try:
            mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        except _UNSUPPORTED:
            mig = False  # a GPU that cannot be split
        return Gpu(
            index,
            _text(pynvml.nvmlDeviceGetUUID(handle)),
            _text(pynvml.nvmlDeviceGetName(handle)),
            int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            int(pynvml.nvmlDeviceGetMinorNumber(handle)),
            mig,
        )


@cache
def system_nvml() -> SystemNvml:
    """The process's one connection to the driver. A failure is not kept: the next call tries again.

    Raises:
        InfrastructureError: There is no driver, or it does not work.
    """
    return SystemNvml()


@contextmanager
def _answered(what: str) -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError_LibraryNotFound:
        raise InfrastructureError(
            "no NVIDIA driver is installed here", "install one, or use the mini tiers, which need no GPU"
        ) from None
    except pynvml.NVMLError as error:
        raise InfrastructureError(
            f"the NVIDIA driver could not {what}: {error}", "see whether `nvidia-smi` works"
        ) from None


def _handle(uuid: str) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _text(value: str | bytes) -> str:
    """Some releases of the bindings give bytes."""
    return value.decode() if isinstance(value, bytes) else value
