"""Frames: whatever plain arrays go in come out the same, and whatever bytes come in are a frame or a `WireError`."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.inbox.lib import wire

ROOM = 1 << 20
# Shapes of at most 4 dimensions and about 500 elements, no dimension and empty ones among them.
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@contextmanager
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield ours, theirs


def arrays() -> st.SearchStrategy[np.ndarray[Any, Any]]:
    def fill(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
        raw = np.random.default_rng(seed).integers(
            0, 256, int(np.prod(shape)) * np.dtype(dtype).itemsize, dtype="uint8"
        )
        if dtype == "bool":
            raw &= 1
        return raw.view(dtype).reshape(shape)

    return st.builds(fill, st.sampled_from(sorted(wire.DTYPES)), SHAPES, st.integers(0, 2**32))


@settings(max_examples=150, deadline=None)
@given(content=st.dictionaries(st.text(max_size=8), arrays(), max_size=4), meta=PLAIN)
def test_arrays_of_every_kind_and_shape_survive(content: dict[str, np.ndarray[Any, Any]], meta: object) -> None:
    with line() as (ours, theirs):
        wire.send(ours, {"ok": True, "meta": meta}, content)
        header, got, fds = wire.receive(theirs, ROOM, time.monotonic() + 5)
    assert header["meta"] == meta and fds == []
    assert list(got) == list(content)
    for name, array in content.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert got[name].tobytes() == array.tobytes()  # also where NaN differs from itself


@pytest.mark.parametrize(
    "array",
    [np.arange(12).reshape(3, 4).T, np.arange(20)[::3], np.arange(6)[::-1], np.broadcast_to(np.float32(1), (3, 2))],
    ids=["transposed", "strided", "reversed", "broadcast"],
)
def test_arrays_that_do_not_lie_in_one_piece_survive(array: np.ndarray[Any, Any]) -> None:
    with line() as (ours, theirs):
        wire.send(ours, {}, {"a": array})
        np.testing.assert_array_equal(wire.receive(theirs, ROOM)[1]["a"], array)


def test_a_large_array_and_small_pieces() -> None:
    big = np.random.default_rng(0).normal(size=1 << 19)
    with line() as (ours, theirs):
        sender = threading.Thread(target=wire.send, args=(ours, {"op": "x"}, {"a": big}))
        sender.start()
        _, got, _ = wire.receive(theirs, big.nbytes, time.monotonic() + 20)
        sender.join()
    np.testing.assert_array_equal(got["a"], big)


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=300))
def test_random_bytes_are_refused(raw: bytes) -> None:
    receive_all(raw)


def receive_all(raw: bytes) -> None:
    """Receive these bytes; only a frame, or one of the two errors, may come of it."""
    with line() as (ours, theirs):
        ours.sendall(raw)
        ours.close()
        try:
            header, got, _ = wire.receive(theirs, ROOM, time.monotonic() + 5)
        except (wire.WireError, TimeoutError):
            return
        assert isinstance(header, dict) and all(a.nbytes <= ROOM for a in got.values())


ODD = (
    PLAIN
    | st.floats()
    | st.sampled_from(
        ["Infinity", "float32", "object", "O", "<U3", "float128", "datetime64[ns]", "V8", -1, 2**31, 2**63]
    )
)
ENTRY = st.fixed_dictionaries({}, optional={"name": ODD, "dtype": ODD, "shape": ODD | st.lists(ODD, max_size=10)})


@settings(max_examples=300, deadline=None)
@given(listed=ODD | st.lists(ENTRY | ODD, max_size=3), tail=st.binary(max_size=64))
def test_headers_that_lie_are_refused(listed: object, tail: bytes) -> None:
    head = json.dumps({"ok": True, "meta": {}, "arrays": listed}).encode()
    receive_all(struct.pack(">I", len(head)) + head + tail)


@pytest.mark.parametrize(
    "shape",
    [
        "[0, 1152921504606846976, 1152921504606846976]",
        f"[0, {10**30}]",
        "[Infinity]",
        "[NaN]",
        "[1e400]",
        '["x"]',
        "[-1]",
    ],
)
def test_dimensions_that_no_array_can_have_are_refused(shape: str) -> None:
    head = f'{{"arrays": [{{"name": "y", "dtype": "float32", "shape": {shape}}}]}}'.encode()
    with line() as (ours, theirs):
        ours.sendall(struct.pack(">I", len(head)) + head)
        ours.close()
        with pytest.raises(wire.WireError):
            wire.receive(theirs, ROOM)


def test_a_header_of_two_gigabytes_is_refused_before_it_is_read() -> None:
    with line() as (ours, theirs):
        ours.sendall(struct.pack(">I", 1 << 31))
        with pytest.raises(wire.WireError, match="2147483648 bytes was announced"):
            wire.receive(theirs, ROOM, time.monotonic() + 5)


def test_more_array_bytes_than_were_asked_for_are_refused_before_they_are_read() -> None:
    for shapes in ([[5]], [[2], [3]]):
        listed = [{"name": str(i), "dtype": "float32", "shape": shape} for i, shape in enumerate(shapes)]
        head = json.dumps({"arrays": listed}).encode()
        with line() as (ours, theirs):
            ours.sendall(struct.pack(">I", len(head)) + head + bytes(20))
            with pytest.raises(wire.WireError, match="larger than what was asked for"):
                wire.receive(theirs, 19, time.monotonic() + 5)


def test_a_bool_is_false_or_true_whatever_its_byte() -> None:
    head = b'{"arrays": [{"name": "y", "dtype": "bool", "shape": [4]}]}'
    with line() as (ours, theirs):
        ours.sendall(struct.pack(">I", len(head)) + head + bytes([0, 1, 2, 255]))
        got = wire.receive(theirs, ROOM)[1]["y"]
    assert got.view("uint8").tolist() == [0, 1, 1, 1]


def test_a_frame_that_stops_in_the_middle_times_out_and_one_that_ends_is_closed() -> None:
    head = b'{"arrays": [{"name": "y", "dtype": "float32", "shape": [4]}]}'
    for ending, error in ((False, TimeoutError), (True, wire.WireClosed)):
        with line() as (ours, theirs):
            ours.sendall(struct.pack(">I", len(head)) + head + bytes(7))
            if ending:
                ours.close()
            with pytest.raises(error):
                wire.receive(theirs, ROOM, time.monotonic() + 0.2)


def test_a_peer_that_does_not_read_times_out() -> None:
    with line() as (ours, _), pytest.raises(TimeoutError):
        wire.send(ours, {}, {"a": np.zeros(1 << 22)}, deadline=time.monotonic() + 0.2)


@pytest.mark.usefixtures("no_leftovers")
def test_descriptors_arrive_with_a_frame_and_are_closed_with_a_bad_one() -> None:
    with line() as (ours, theirs), open(os.devnull) as null:
        wire.send(ours, {"op": "map"}, fds=[null.fileno()])
        _, _, fds = wire.receive(theirs, ROOM)
        assert len(fds) == 1 and os.fstat(fds[0]).st_rdev == os.fstat(null.fileno()).st_rdev
        os.close(fds[0])
        socket.send_fds(ours, [b"\xff\xff\xff\xff"], [null.fileno()] * 20)
        with pytest.raises(wire.WireError):
            wire.receive(theirs, ROOM)
