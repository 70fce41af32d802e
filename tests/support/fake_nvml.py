"""A driver that says what a test wants it to."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proctor.errors import InfrastructureError
from proctor.nvml import Gpu


def gpu(index: int, uuid: str | None = None, *, mig: bool = False) -> Gpu:
    return Gpu(index, uuid or f"GPU-{index:08d}", "Test GPU", 80 * 1024**3, index, mig)


class FakeNvml:
    """Two whole GPUs by default; `busy`, `memory` and `pids` may be changed at any time.

    `busy` may be a list of readings, used up one by one (the last stays), with None for a driver that fails.
    """

    def __init__(self, *gpus: Gpu) -> None:
        self.found = list(gpus) or [gpu(0), gpu(1)]
        self.pids: dict[str, set[int]] = {}
        self.busy: list[float | None] = [0.0]
        self.memory: list[int] = [0]
        self.before_processes: Callable[[], None] = lambda: None

    def driver(self) -> str:
        return "580.1"

    def gpus(self) -> list[Gpu]:
        return list(self.found)

    def processes(self, uuid: str) -> list[int]:
        self.before_processes()
        return sorted(self.pids.get(uuid, set()))

    def utilisation(self, uuid: str) -> float:
        value = self.busy.pop(0) if len(self.busy) > 1 else self.busy[0]
        if value is None:
            raise InfrastructureError("the driver fell over")
        return value

    def memory_used(self, uuid: str) -> int:
        return self.memory.pop(0) if len(self.memory) > 1 else self.memory[0]

    def occupy(self, uuid: str, pids: Iterable[int]) -> None:
        self.pids[uuid] = set(pids)
