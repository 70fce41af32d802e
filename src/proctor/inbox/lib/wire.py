"""Frames between the host and a candidate: a JSON header, then raw array bytes, over a Unix stream socket.

Only plain data crosses. The host reads what untrusted code wrote: every length is bounded before it is believed, and
nothing is ever unpickled. Frame: 4-byte big-endian header length, header, then each array's bytes in header order.
Header: {"op"|"ok": ..., "meta": {...}, "arrays": [{"name", "dtype", "shape"}]}.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAX_HEADER = 1 << 20
MAX_FDS = 250
DTYPES = frozenset(
    ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "bool"]
)


class WireError(Exception):
    """The other side sent something that is not a frame."""


class WireClosed(WireError):
    """The other side closed the connection."""


def send(
    sock: socket.socket,
    header: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray[Any, Any]] | None = None,
    fds: Sequence[int] = (),
    deadline: float | None = None,
) -> None:
    """Send one frame. `deadline` is a `time.monotonic` value; `TimeoutError` past it."""
    plain = {name: np.asarray(value, order="C") for name, value in (arrays or {}).items()}
    described = [{"name": k, "dtype": str(v.dtype), "shape": list(v.shape)} for k, v in plain.items()]
    raw = json.dumps({**header, "arrays": described, "fds": len(fds)}).encode()
    if len(raw) > MAX_HEADER:
        raise WireError(f"the header is {len(raw)} bytes, more than {MAX_HEADER}")
    _set_timeout(sock, deadline)
    head = struct.pack(">I", len(raw)) + raw
    if fds:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        sent = sock.sendmsg([head], rights)
        head = head[sent:]
    if head:
        _send_all(sock, memoryview(head), deadline)
    for value in plain.values():
        if value.nbytes:
            _send_all(sock, memoryview(value.reshape(-1).view(np.uint8)), deadline)  # type: ignore[arg-type]


def receive(
    sock: socket.socket, max_bytes: int, deadline: float | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]], list[int]]:
    """Receive one frame; array bytes in all are at most `max_bytes`. Returns header, arrays, descriptors.

    Raises:
        WireClosed: The other side has closed the connection.
        WireError: What came is not a frame. Descriptors that came with it have been closed.
        TimeoutError: The deadline has passed.
    """
    _set_timeout(sock, deadline)
    fds = array.array("i")
    first, ancillary, _, _ = sock.recvmsg(4, socket.CMSG_SPACE(MAX_FDS * fds.itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    try:
        header, arrays = _receive_body(sock, first, max_bytes, deadline)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return header, arrays, list(fds)


def _receive_body(
    sock: socket.socket, first: bytes, max_bytes: int, deadline: float | None
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    if not first:
        raise WireClosed("the connection was closed")
    prefix = first + bytes(_receive_exact(sock, 4 - len(first), deadline))
    (length,) = struct.unpack(">I", prefix)
    if length > MAX_HEADER:
        raise WireError(f"a header of {length} bytes was announced, more than {MAX_HEADER}")
    try:
        header = json.loads(bytes(_receive_exact(sock, length, deadline)))
        listed = [(str(a["name"]), str(a["dtype"]), tuple(int(n) for n in a["shape"])) for a in header["arrays"]]
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
        raise WireError(f"the header is not what it should be: {error}") from None
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    left = max_bytes
    for name, dtype, shape in listed:
        if dtype not in DTYPES or len(shape) > 8 or any(n < 0 for n in shape):
            raise WireError(f"array {name!r} has dtype {dtype!r} and shape {shape}, which are not accepted")
        size = np.dtype(dtype).itemsize
        for n in shape:
            size *= n
        if size > left:
            raise WireError(f"array {name!r} of shape {shape} is larger than what was asked for")
        left -= size
        arrays[name] = _as_array(name, _receive_exact(sock, size, deadline), dtype, shape)
    return header, arrays


def _as_array(name: str, raw: bytearray, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    try:
        # A bool that is neither 0 nor 1 would be true, and yet differ from True.
        flat = np.frombuffer(raw, dtype="uint8") != 0 if dtype == "bool" else np.frombuffer(raw, dtype=dtype)
        return flat.reshape(shape)
    except (ValueError, OverflowError) as error:  # dimensions beside a 0 that no array can have
        raise WireError(f"array {name!r} cannot have the shape {shape}: {error}") from None


def _set_timeout(sock: socket.socket, deadline: float | None) -> None:
    if deadline is None:
        sock.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def _send_all(sock: socket.socket, view: memoryview, deadline: float | None) -> None:
    while view:
        _set_timeout(sock, deadline)
        view = view[sock.send(view[: 1 << 20]) :]


def _receive_exact(sock: socket.socket, size: int, deadline: float | None) -> bytearray:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        _set_timeout(sock, deadline)
        got = sock.recv_into(view[: 1 << 20])
        if not got:
            raise WireClosed("the connection was closed in the middle of a frame")
        view = view[got:]
    return buffer
