"""The full tier's CUDA kernel, emulated on the CPU thread by thread: right answers without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from proctor.tasks.base import Array
from proctor.tasks.rebench.prefix_sum import data
from proctor.tasks.rebench.prefix_sum.task import TASK

KERNEL = TASK.folder / "reference" / "full" / "scan.cu"
EMULATION = Path(__file__).with_name("cuda_emulation.cpp")
LAUNCH = 7

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed; it compiles the emulation")


class Emulated:
    """The kernel with the given constants: `run` takes an input through all of its blocks, or through some."""

    def __init__(self, folder: Path, **constants: int) -> None:
        library = folder / "kernel.so"
        defines = [f"-D{name}={value}" for name, value in constants.items()]
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-w", f'-DKERNEL="{KERNEL}"', *defines]
        subprocess.run([*command, str(EMULATION), "-o", str(library)], check=True)
        self._library = ctypes.CDLL(str(library))
        self.tile = int(self._library.tile_size())

    def run(self, x: Array, words: Array, tiles: range, first_ticket: int = 0) -> Array:
        out = np.full(len(x), -777, np.int32)
        tickets = np.array([first_ticket + tiles.start], np.uint32)
        for tile in tiles:
            self._library.run_block(
                ctypes.c_uint(tile),
                x.ctypes.data_as(ctypes.c_void_p),
                out.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_longlong(len(x)),
                words.ctypes.data_as(ctypes.c_void_p),
                tickets.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_uint(first_ticket),
                ctypes.c_uint(LAUNCH),
            )
        return out


@pytest.fixture(scope="module", params=[(64, 2, 1, 1), (64, 3, 2, 0)], ids=["tickets", "two words, by block"])
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    threads, segments, look, tickets = request.param
    folder = tmp_path_factory.mktemp("emulated")
    return Emulated(folder, THREADS=threads, SEGMENTS=segments, LOOK=look, TICKETS=tickets)


def tile_words(x: Array, size: int, from_start: Callable[[int], bool]) -> Array:
    """The words of every tile of `x`, as the kernel would publish them; `from_start` says which are complete."""
    words = np.zeros(-(-len(x) // size), np.uint64)
    parity = total = 0
    for i in range(len(words)):
        part = x[i * size : (i + 1) * size]
        kept, flips = data.prefix_sum(part)[2], int((part > 0).sum()) & 1
        _, parity, total = data.prefix_sum(part, parity, total)
        if from_start(i):
            word = LAUNCH << 48 | 1 << 47 | parity << 46 | total & 0xFFFFFFFF
        else:
            word = LAUNCH << 48 | flips << 46 | (int(part.sum()) & 0xFFFFF) << 20 | kept & 0xFFFFF
        words[i] = word
    return words


def test_whole_arrays_are_right(kernel: Emulated) -> None:
    for n in (1, 3, kernel.tile - 1, kernel.tile, 5 * kernel.tile + 130):
        x = np.random.default_rng(n).integers(-10, 10, size=n, dtype=np.int32)
        tiles = range(-(-n // kernel.tile))
        out = kernel.run(x, np.zeros(len(tiles), np.uint64), tiles, first_ticket=2**32 - 2)
        np.testing.assert_array_equal(out, data.prefix_sum(x)[0])


@pytest.mark.parametrize("value", [9, -10, 0, 1])
def test_extreme_values_are_right(kernel: Emulated, value: int) -> None:
    x = np.full(2 * kernel.tile + 1, value, np.int32)
    out = kernel.run(x, np.zeros(3, np.uint64), range(3))
    np.testing.assert_array_equal(out, data.prefix_sum(x)[0])


@pytest.mark.parametrize("complete", [0, 30, 99 - 32, 98, 99])
def test_looking_back_over_many_tiles_is_right(kernel: Emulated, complete: int) -> None:
    x = np.random.default_rng(complete).integers(-10, 10, size=101 * kernel.tile, dtype=np.int32)
    words = tile_words(x, kernel.tile, lambda i: i <= complete)
    words[100] = 3 << 48  # left by an earlier launch
    out = kernel.run(x, words, range(100, 101))
    begin = 100 * kernel.tile
    np.testing.assert_array_equal(out[begin:], data.prefix_sum(x)[0][begin:])
    assert words[100] == tile_words(x, kernel.tile, lambda i: True)[100]


def test_looking_back_waits_for_words_that_come_late(kernel: Emulated) -> None:
    x = np.random.default_rng(5).integers(-10, 10, size=71 * kernel.tile, dtype=np.int32)
    ready = tile_words(x, kernel.tile, lambda i: i == 0 or i % 29 == 0)
    words = np.full(71, (LAUNCH - 1) << 48 | 1 << 47 | 12345, np.uint64)  # complete, but of an earlier launch

    def publish() -> None:
        for i in np.random.default_rng(6).permutation(70):
            words[i] = ready[i]
            time.sleep(0.001)

    publisher = threading.Thread(target=publish)
    publisher.start()
    out = kernel.run(x, words, range(70, 71))
    publisher.join()
    begin = 70 * kernel.tile
    np.testing.assert_array_equal(out[begin:], data.prefix_sum(x)[0][begin:])
