"""Operations of prefix_sum in the candidate's box: map the scorer's arrays, calibrate, load the submission, call it.

The scorer owns all input and output arrays and lends them by file descriptor: memfds on the CPU, CUDA virtual-memory
handles on a GPU. Up to `load`, only our own code has run here, so that `copy` can be used to calibrate. From `load` on
nothing in this process can be trusted: the scorer takes the time and reads the outputs itself, and what `run` reports
(its own clock, the number of threads) is a cross-check.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import mmap
import os
import sys
import threading
import time

import cuda_vmm
import torch

INPUTS: list[torch.Tensor] = []
OUTPUTS: list[torch.Tensor] = []
KEPT: list[object] = []  # owners of mapped memory, which must outlive the tensors
SUBMISSION = {}
# Bound before the submission is loaded, so that replacing torch's own name changes nothing here.
SYNCHRONISE = torch.cuda.synchronize


def warm():
    """Import the runtime and, on a GPU, make its context."""
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
        SYNCHRONISE()


def map_arrays(meta, arrays, fds):
    """Map `pairs` inputs, then as many outputs, of `n` int32 each; `bytes` is the size behind each descriptor."""
    n, size, pairs = meta["n"], meta["bytes"], meta["pairs"]
    if meta["kind"] == "cuda":
        memory = cuda_vmm.Memory(torch.cuda.current_device())
        handles = [memory.load(fd) for fd in fds]
        addresses = [memory.map([handle], size) for handle in handles]
        tensors = [torch.as_tensor(cuda_vmm.View(address, n), device="cuda") for address in addresses]
        SUBMISSION["synchronise"] = SYNCHRONISE
    else:
        # Populated now, so that no page fault falls into a timed call.
        maps = [mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE) for fd in fds]
        tensors = [torch.frombuffer(m, dtype=torch.int32, count=n) for m in maps]
        KEPT.extend(maps)
        SUBMISSION["synchronise"] = lambda: None
    for fd in fds:
        os.close(fd)
    INPUTS.extend(tensors[:pairs])
    OUTPUTS.extend(tensors[pairs:])
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "python": sys.version.split()[0]}, {}


def copy(meta, arrays, fds):
    """Copy inputs to outputs as fast as we know how: the least that any solution must do.

    `own_s` is the time of the copies alone (by events on a GPU); the scorer's clock less this is the fixed cost of
    the exchange.
    """
    if INPUTS[0].is_cuda:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for i, o in meta["order"]:
            OUTPUTS[o].copy_(INPUTS[i])
        last.record()
        SYNCHRONISE()
        own_s = first.elapsed_time(last) / 1e3
    else:
        started = time.perf_counter()
        for i, o in meta["order"]:
            copy_memory(OUTPUTS[o], INPUTS[i])
        own_s = time.perf_counter() - started
    return {"nonce": meta["nonce"], "own_s": own_s}, {}


def copy_memory(target, source):
    """The C library's copy in one thread per core; it writes around the cache, which torch's copy does not."""
    workers = torch.get_num_threads()
    step = -(-source.nbytes // workers // 64) * 64
    pieces = [(at, min(step, source.nbytes - at)) for at in range(0, source.nbytes, step)]
    threads = [
        threading.Thread(target=ctypes.memmove, args=(target.data_ptr() + at, source.data_ptr() + at, size))
        for at, size in pieces
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def load(meta, arrays, fds):
    """Import the submission; `form` says whether `prefix_sum` fills `out` or returns a tensor."""
    sys.path.insert(0, os.getcwd())
    module = importlib.import_module("solution")
    function = getattr(module, "prefix_sum", None)
    if not callable(function):
        raise AttributeError("solution.py defines no function prefix_sum")
    if takes_out(function):
        SUBMISSION["function"] = function
        return {"form": "out"}, {}
    SUBMISSION["function"] = lambda x, out: out.copy_(checked(function(x), x))
    return {"form": "returns"}, {}


def takes_out(function):
    """Whether `function` has a second argument that is to be filled: one named `out`, or one without a default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return True  # a callable without a Python signature; it is called with both
    if any(p.kind is p.VAR_POSITIONAL or p.name == "out" for p in parameters):
        return True
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 2 and positional[1].default is inspect.Parameter.empty


def checked(result, x):
    """A returned tensor, or an error that says what is wrong with it."""
    if type(result) is not torch.Tensor:
        raise TypeError(f"prefix_sum returned {type(result).__name__}, not a plain tensor")
    if result.dtype != torch.int32 or result.shape != x.shape or result.device != x.device:
        raise TypeError(
            f"prefix_sum returned {result.dtype} of shape {tuple(result.shape)} on {result.device}; "
            f"torch.int32 of shape {tuple(x.shape)} on {x.device} was expected"
        )
    return result


def call(x, out):
    """One call of the submission, with an error that tells a lack of GPU memory apart."""
    try:
        SUBMISSION["function"](x, out)
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info()
        raise MemoryError(
            f"prefix_sum ran out of GPU memory ({free >> 20} of {total >> 20} MiB are free; the scorer's input and "
            f"output arrays are in use beside it): {error}"
        ) from error


def small(meta, arrays, fds):
    """One call on a small array that came over the wire; the output goes back the same way."""
    x = torch.from_numpy(arrays["x"].copy()).to(INPUTS[0].device)
    out = torch.full_like(x, meta["poison"])
    call(x, out)
    SUBMISSION["synchronise"]()
    return {}, {"y": out.cpu().numpy()}


def run(meta, arrays, fds):
    """Call the submission on the given pairs of input and output, one after the other, and wait for the device.

    The clock is looked up by name at the time of the call on purpose: if the submission has replaced it, its figure
    disagrees with the scorer's.
    """
    started = time.perf_counter()
    for i, o in meta["order"]:
        call(INPUTS[i], OUTPUTS[o])
    SUBMISSION["synchronise"]()
    own_s = time.perf_counter() - started
    return {"nonce": meta["nonce"], "own_s": own_s, "threads": count_threads()}, {}


def count_threads():
    """Threads of this process; 0 where /proc does not tell."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


OPS = {"map": map_arrays, "copy": copy, "load": load, "small": small, "run": run}
