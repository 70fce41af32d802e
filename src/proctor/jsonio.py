"""JSON files that survive a crash: whole or not there, and a log whose every line is on disk before it counts."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel


def to_json(value: Any) -> str:
    """One line of strict JSON (no NaN), from a model or from plain data."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, *, sync: bool = True) -> None:
    """`write_atomic` of indented JSON."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    write_atomic(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n", sync=sync)


def append_line(path: Path, value: Any, *, sync: bool = True) -> None:
    """Append one JSON line with a single write; on disk when this returns if `sync`."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview((to_json(value) + "\n").encode())
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
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
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value
