"""Conditional prefix sum by the CUDA kernel in scan.cu."""

import ctypes
import os

import cuda_build
import torch

THREADS = 256  # threads a block
SEGMENTS = 24  # 16-byte loads a thread
BLOCKS = 2  # blocks that are to fit on a multiprocessor
LOOK = 1  # words a lane reads at a time when looking back
TICKETS = 1  # take tiles from a counter (1) or by block index (0)

TILE = THREADS * SEGMENTS * 4
LAST_LAUNCH = (1 << 16) - 1  # launches are numbered in 16 bits


class Scan:
    """The kernel, with the words by which its blocks tell each other their sums (reused from launch to launch)."""

    def __init__(self):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "scan.cu")) as stream:
            source = stream.read()
        names = ("THREADS", "SEGMENTS", "BLOCKS", "LOOK", "TICKETS")
        cubin = cuda_build.compile_cubin(source, {name: globals()[name] for name in names})
        pointer = ctypes.c_void_p
        self.kernel = cuda_build.Kernel(
            cubin,
            "conditional_scan",
            [pointer, pointer, ctypes.c_longlong, pointer, pointer, ctypes.c_uint, ctypes.c_uint],
        )
        self.tickets = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.taken = 0  # tickets taken so far, modulo 2**32
        self.words = torch.zeros(1 << 16, dtype=torch.int64, device="cuda")
        self.launches = 0

    def __call__(self, x, out):
        n = x.numel()
        tiles = -(-n // TILE)
        if tiles > self.words.numel():
            self.words = torch.zeros(2 * tiles, dtype=torch.int64, device="cuda")
            self.launches = 0
        if self.launches == LAST_LAUNCH:
            self.words.zero_()
            self.launches = 0
        self.launches += 1
        self.kernel.launch(
            tiles,
            THREADS,
            x.data_ptr(),
            out.data_ptr(),
            n,
            self.words.data_ptr(),
            self.tickets.data_ptr(),
            self.taken,
            self.launches,
        )
        if TICKETS:
            self.taken = (self.taken + tiles) & 0xFFFFFFFF


SCAN = Scan()


def prefix_sum(x, out):
    """Fill `out` from `x`, int32 of shape (n,); loads and stores are 16 bytes wide, which arrays must be aligned to."""
    if x.data_ptr() % 16 or not x.is_contiguous():
        x = x.clone(memory_format=torch.contiguous_format)
    if out.data_ptr() % 16 or not out.is_contiguous():
        aligned = torch.empty_like(x)
        SCAN(x, aligned)
        out.copy_(aligned)
        return
    SCAN(x, out)
