"""The run folder: where everything of one run lies, and who is working in it."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from proctor.errors import InfrastructureError, ProctorError
from proctor.jsonio import write_json
from proctor.spec import SCHEMA, Result, RunSpec

Model = TypeVar("Model", bound=BaseModel)
LOCK_PATIENCE_S = 2.0
"""Whoever looks whether a worker lives holds its lock for a moment."""
LOCK_POLL_S = 0.02


class BusyError(ProctorError):
    """Another worker has the run."""


class RunFolder:
    """Names of the files of a run; reading and writing its two contracts."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.spec_file = self.root / "run.json"
        self.result_file = self.root / "result.json"
        self.events = self.root / "events.jsonl"
        self.scores = self.root / "scores.jsonl"
        self.silent = self.root / "silent.jsonl"
        self.stdout = self.root / "agent.stdout"
        self.stderr = self.root / "agent.stderr"
        self.worker_log = self.root / "worker.log"
        self.live = self.root / "live.json"
        self.snapshots = self.root / "snapshots"
        self.workspace = self.root / "workspace"
        self.socket = self.root / "broker.sock"
        self.scratch = self.root / ".scratch"
        self.lock_file = self.root / "worker.lock"

    def spec(self) -> RunSpec:
        """The run's specification.

        Raises:
            ProctorError: The folder holds none that this version can read.
        """
        try:
            raw = self.spec_file.read_bytes()
        except OSError as error:
            raise ProctorError(
                f"{self.root} is not a run folder: {self.spec_file.name} cannot be read ({error.strerror})",
                "give a folder runs/<run id> of an experiment",
            ) from None
        return _parse(raw, RunSpec, self.spec_file, "a run specification")

    def result(self) -> Result | None:
        """The run's result, or None if it has none yet.

        Raises:
            ProctorError: There is one, and this version cannot read it.
        """
        try:
            raw = self.result_file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ProctorError(f"{self.result_file} cannot be read: {error.strerror}") from None
        result = _parse(raw, Result, self.result_file, "a result")
        for name, value in result:
            if isinstance(value, float) and not math.isfinite(value):
                raise ProctorError(f"{self.result_file} is not a result: {name} is {value}")
        return result

    def write_spec(self, spec: RunSpec) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        write_json(self.spec_file, spec)

    def write_result(self, result: Result) -> None:
        """Write the result, whole or not at all.

        Raises:
            InfrastructureError: The disk does not take it.
        """
        try:
            write_json(self.result_file, result)
        except OSError as error:
            raise InfrastructureError(
                f"{self.result_file} cannot be written: {error.strerror}",
                "make room (or the folder writable); `proctor status` then closes the run from its logs",
            ) from error

    @contextmanager
    def lock(self, patience_s: float = LOCK_PATIENCE_S) -> Iterator[None]:
        """Be the run's one worker; freed by the kernel when the worker dies.

        Raises:
            BusyError: Another worker has it.
        """
        fd = self._locked(patience_s)
        try:
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
            yield
        finally:
            os.close(fd)

    def _locked(self, patience_s: float) -> int:
        """The lock file, locked. It appears under its name already locked: a free one means that a worker died."""
        mine = self.root / f".worker.lock.{os.getpid()}"
        fd = os.open(mine, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.link(mine, self.lock_file)
            return fd
        except FileExistsError:
            os.close(fd)
        finally:
            mine.unlink(missing_ok=True)
        fd = os.open(self.lock_file, os.O_RDWR | os.O_CLOEXEC)
        until = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                if time.monotonic() >= until:
                    os.close(fd)
                    raise BusyError(f"another worker is busy with {self.root}", "wait for it, or stop it") from None
                time.sleep(LOCK_POLL_S)

    def worker_alive(self) -> bool:
        """Whether some worker holds the run at this moment."""
        try:
            fd = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


def _parse(raw: bytes, kind: type[Model], place: Path, what: str) -> Model:
    """A contract from its file; a schema of the future is named as such."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ProctorError(f"{place} is not {what}: {error}") from None
    schema = value.get("schema", SCHEMA) if isinstance(value, dict) else SCHEMA
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ProctorError(f"{place} has schema {schema}; this Proctor reads {SCHEMA}", "use a newer Proctor")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise ProctorError(f"{place} is not {what}: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = ".".join(map(str, problem["loc"])) or "the document"
    return f"{place}: {problem['msg']}"
