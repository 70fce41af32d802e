"""JSON files that survive a crash: whole or not there, and a log whose every line is on disk before it counts."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel


def clean_text(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates (from broken names and from "\\ud800" in JSON) become `?`."""
    return text.encode("utf-8", "replace").decode()


def to_json(value: Any) -> str:
    """One line of strict JSON (no NaN), from a model or from plain data."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    return clean_text(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def to_plain(value: Any, depth: int = 12) -> Any:
    """The nearest thing to `value` that JSON can hold: numpy scalars and arrays become numbers and lists, what is not
    finite becomes None, and anything else its text."""
    if value is None or type(value) in (bool, str, int):
        return value
    if isinstance(value, np.generic | np.ndarray) and value.size <= 10_000:
        return to_plain(value.tolist(), depth)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        if depth == 0:
            return f"<{type(value).__name__}>"
        if isinstance(value, Mapping):
            return {str(key): to_plain(item, depth - 1) for key, item in value.items()}
        return [to_plain(item, depth - 1) for item in value]
    return str(value)[:1000]


def write_atomic(path: Path, data: str | bytes, *, sync: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new, never a part; on disk if `sync`."""
    raw = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # less the user's umask
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(raw)
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
        if sync:
            _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, *, sync: bool = True) -> None:
    """`write_atomic` of indented JSON."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    text = clean_text(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2))
    write_atomic(path, text + "\n", sync=sync)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; file systems that cannot do that for a folder are left alone."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def append_line(path: Path, value: Any, *, sync: bool = True) -> None:
    """Append one JSON line; on disk when this returns if `sync`, and whole or not there if it raises.

    A torn last line, left by a writer that was killed, is closed first: it must not spoil the line that follows it.
    """
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        view = memoryview(("\n" * torn + to_json(value) + "\n").encode())
        try:
            while view:
                view = view[os.write(fd, view) :]
            if sync:
                os.fsync(fd)
        except OSError:  # a full disk takes a part of a line
            with suppress(OSError):
                os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a JSON-lines file; a torn last line (the writer was killed) is left out."""
    if not path.exists():
        return
    with path.open("rb") as stream:
        for raw in stream:
            if not raw.endswith(b"\n"):
                return
            try:
                value = json.loads(raw)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value
