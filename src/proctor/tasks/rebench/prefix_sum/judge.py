"""The trusted process that keeps prefix_sum's arrays on a GPU: fills them, looks at outputs, checks them in full.

Started by `gpu.JudgeBuffers` as `python -I judge.py FD DEVICE`. It answers frames as a candidate's driver does, and
never runs a line of a submission. A candidate gets descriptors of the arrays' memory; inputs, answers and seeds are
made in memory of this process alone. With DEVICE `cpu` the arrays lie in memfds, by the same protocol.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from proctor.inbox.lib import cuda_vmm, wire
else:  # the interpreter that has torch need not have Proctor
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "inbox" / "lib"))
    import cuda_vmm
    import wire

Tensor = torch.Tensor

LEAST_PAIRS = 8
RESERVE_BYTES = 16 << 30
"""GPU memory left free: for the submission's own arrays, and for the check in this process (about 3 GB at 1e8)."""
SPOTS = 2048
"""As in buffers.py."""


class Store(Protocol):
    """Where the arrays lie."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    fds: list[int]
    size: int

    def gather(self, calls: Tensor, order: list[list[int]], positions: Tensor) -> Tensor:
        """Outputs at `positions` (int64, shape (k,)), each of the call in `calls` (same shape)."""
        ...

    def prepare(self, calls: Tensor, order: list[list[int]], positions: Tensor) -> None:
        """Do what can be done for that `gather` before it is timed."""
        ...


class CudaStore:
    """Arrays in exportable GPU memory. All outputs are mapped in a row, so that one kernel can read any of them."""

    def __init__(self, n: int, pairs: int) -> None:
        memory = cuda_vmm.Memory(torch.cuda.current_device())
        self.size = memory.rounded(4 * n)
        self._stride = self.size // 4
        free, _ = torch.cuda.mem_get_info()
        room = (free - RESERVE_BYTES) // (2 * self.size)
        if room < LEAST_PAIRS:
            raise RuntimeError(
                f"the GPU has {free >> 20} MiB free; {LEAST_PAIRS} pairs of arrays of {self.size >> 20} MiB and "
                f"{RESERVE_BYTES >> 20} MiB to spare are needed"
            )
        pairs = min(pairs, room)
        handles = [memory.create(self.size) for _ in range(2 * pairs)]
        self.fds = [memory.export(handle) for handle in handles]
        self._flat_in = self._tensor(memory.map(handles[:pairs], self.size), pairs)
        self._flat_out = self._tensor(memory.map(handles[pairs:], self.size), pairs)
        self.inputs = [self._flat_in[i * self._stride :][:n] for i in range(pairs)]
        self.outputs = [self._flat_out[i * self._stride :][:n] for i in range(pairs)]
        self._slots = torch.empty(0, dtype=torch.int64, device="cuda")
        self._seen = torch.empty(0, dtype=torch.int32, device="cuda")
        self._check_gather(n)

    def _tensor(self, address: int, pairs: int) -> Tensor:
        return torch.as_tensor(cuda_vmm.View(address, pairs * self._stride), device="cuda")

    def _check_gather(self, n: int) -> None:
        """The flat view has more elements than 32 bits can count: see that both its ends are what they should be."""
        order = [[i, i] for i in range(len(self.outputs))]
        ends = torch.tensor([0, len(order) - 1], device="cuda")
        positions = torch.tensor([0, n - 1], device="cuda")
        self.outputs[0][0], self.outputs[-1][-1] = 41, 43
        self.prepare(ends, order, positions)
        if self.gather(ends, order, positions).tolist() != [41, 43]:
            raise RuntimeError("reading the mapped outputs through one view gives wrong values")

    def prepare(self, calls: Tensor, order: list[list[int]], positions: Tensor) -> None:
        outputs = torch.tensor([o for _, o in order], device="cuda")
        self._slots = outputs[calls] * self._stride + positions
        self._seen = torch.empty(len(positions), dtype=torch.int32, device="cuda")

    def gather(self, calls: Tensor, order: list[list[int]], positions: Tensor) -> Tensor:
        torch.index_select(self._flat_out, 0, self._slots, out=self._seen)
        return self._seen


class MemfdStore:
    """Arrays in shared host memory."""

    def __init__(self, n: int, pairs: int) -> None:
        self.size = -(-4 * n // mmap.PAGESIZE) * mmap.PAGESIZE
        self.fds = [os.memfd_create("prefix_sum") for _ in range(2 * pairs)]
        tensors = []
        for fd in self.fds:
            os.ftruncate(fd, self.size)
            tensors.append(torch.frombuffer(mmap.mmap(fd, self.size), dtype=torch.int32, count=n))
        self.inputs, self.outputs = tensors[:pairs], tensors[pairs:]

    def prepare(self, calls: Tensor, order: list[list[int]], positions: Tensor) -> None:
        pass

    def gather(self, calls: Tensor, order: list[list[int]], positions: Tensor) -> Tensor:
        seen = torch.empty(len(positions), dtype=torch.int32)
        for call, (_, o) in enumerate(order):
            mine = calls == call
            seen[mine] = self.outputs[o][positions[mine]]
        return seen


def prefix_sum(x: Tensor) -> Tensor:
    """The right answer, by two plain scans; int32, shape of `x`."""
    positive = (x > 0).to(torch.int32)
    before = torch.cumsum(positive, 0, dtype=torch.int32).sub_(positive)
    return torch.cumsum(before.bitwise_and_(1).mul_(x), 0, dtype=torch.int32)


@dataclass
class Batch:
    """One filled batch. `calls` and `positions` (int64, shape (calls * SPOTS,)) are the places to look at."""

    order: list[list[int]]
    recipes: list[list[int]]
    calls: Tensor
    positions: Tensor
    seen: Tensor | None = None


class Judge:
    """The operations, on `cuda` or `cpu`."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._random = torch.Generator(device)
        self._scratch = torch.zeros(1, dtype=torch.int32, device=device)
        self._garbage = self._scratch
        self._store: Store | None = None
        self._batch: Batch | None = None

    def allocate(self, meta: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        n = int(meta["n"])
        cuda = self._device == "cuda"
        self._scratch = torch.empty(n, dtype=torch.int32, device=self._device)
        self._garbage = torch.empty_like(self._scratch)
        self._store = CudaStore(n, int(meta["pairs"])) if cuda else MemfdStore(n, int(meta["pairs"]))
        properties = torch.cuda.get_device_properties(0) if cuda else None
        return {
            "kind": "cuda" if cuda else "memfd",
            "n": n,
            "bytes": self._store.size,
            "pairs": len(self._store.inputs),
            "gpu": properties.name if properties else None,
            "gpu_memory": properties.total_memory if properties else None,
            "torch": torch.__version__,
        }, self._store.fds

    def fill(self, meta: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        store = self._ready()
        started = time.perf_counter()
        self._random.manual_seed(int(meta["seed"]))
        self._garbage.random_(-(2**31), 2**31, generator=self._random)
        for (i, o), recipe in zip(meta["order"], meta["recipes"], strict=True):
            store.inputs[i].copy_(self._input(recipe))
            store.outputs[o].copy_(self._garbage)
        self._synchronise()
        seconds = time.perf_counter() - started
        calls, positions = self._places(len(meta["order"]))
        self._batch = Batch(meta["order"], meta["recipes"], calls, positions)
        store.prepare(calls, meta["order"], positions)
        self._synchronise()
        return {"seconds": seconds}, []

    def look(self, meta: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        store, batch = self._ready(), self._filled()
        started = time.perf_counter()
        batch.seen = store.gather(batch.calls, batch.order, batch.positions)
        self._synchronise()
        return {"seconds": time.perf_counter() - started}, []

    def verify(self, meta: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        store, batch = self._ready(), self._filled()
        seen = store.gather(batch.calls, batch.order, batch.positions) if batch.seen is None else batch.seen
        wrong = spots_wrong = mutated = unwritten = 0
        first: list[int] | None = None
        for call, ((i, o), recipe) in enumerate(zip(batch.order, batch.recipes, strict=True)):
            x = self._input(recipe)
            mutated += int((store.inputs[i] != x).count_nonzero())
            expected, got = prefix_sum(x), store.outputs[o]
            mine = batch.calls == call
            spots_wrong += int((seen[mine] != expected[batch.positions[mine]]).count_nonzero())
            bad = got != expected
            count = int(bad.count_nonzero())
            if count:
                wrong += count
                unwritten += int(((got == self._garbage) & bad).count_nonzero())
                if first is None:
                    at = int(bad.to(torch.uint8).argmax())
                    first = [call, at, int(expected[at]), int(got[at])]
        return {
            "wrong": wrong,
            "spots_wrong": spots_wrong,
            "mutated": mutated,
            "unwritten": unwritten,
            "first": first,
        }, []

    def _input(self, recipe: list[int]) -> Tensor:
        """The input of a recipe (seed, low, high), in memory of this process that the next call overwrites."""
        seed, low, high = recipe
        self._random.manual_seed(seed)
        return self._scratch.random_(low, high + 1, generator=self._random)

    def _places(self, calls: int) -> tuple[Tensor, Tensor]:
        """For each call, one random position of each of SPOTS equal stretches, all in random order."""
        n = len(self._scratch)
        shape = (calls, min(SPOTS, n))
        within = torch.rand(shape, dtype=torch.float64, device=self._device, generator=self._random)
        stretch = torch.arange(shape[1], dtype=torch.float64, device=self._device)
        positions = ((stretch + within) * (n / shape[1])).to(torch.int64).clamp_(max=n - 1).flatten()
        numbers = torch.arange(calls, device=self._device).repeat_interleave(shape[1])
        shuffle = torch.randperm(len(positions), device=self._device, generator=self._random)
        return numbers[shuffle], positions[shuffle]

    def _synchronise(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def _ready(self) -> Store:
        if self._store is None:
            raise RuntimeError("nothing has been allocated")
        return self._store

    def _filled(self) -> Batch:
        if self._batch is None:
            raise RuntimeError("no batch has been filled")
        return self._batch


def main() -> None:
    """Answer frames until the line closes."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    judge = Judge(sys.argv[2])
    operations = {"allocate": judge.allocate, "fill": judge.fill, "look": judge.look, "verify": judge.verify}
    while True:
        try:
            header, _, _ = wire.receive(sock, 0)
        except wire.WireClosed:
            return
        try:
            meta, fds = operations[header["op"]](header["meta"])
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            wire.send(sock, {"ok": False, "meta": {"error": f"{type(error).__name__}: {error}"}})
        else:
            wire.send(sock, {"ok": True, "meta": meta}, fds=fds)


if __name__ == "__main__":
    main()
