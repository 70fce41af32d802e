"""The run folder: where everything of one run lies, and who is working in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from proctor.errors import ProctorError
from proctor.jsonio import write_json
from proctor.spec import SCHEMA, Result, RunSpec


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
            text = self.spec_file.read_text(encoding="utf-8")
        except OSError as error:
            raise ProctorError(
                f"{self.root} is not a run folder: {self.spec_file.name} cannot be read ({error.strerror})",
                "give a folder runs/<run id> of an experiment",
            ) from None
        try:
            spec = RunSpec.model_validate_json(text)
        except ValidationError as error:
            raise ProctorError(f"{self.spec_file} is not a run specification: {_first(error)}") from None
        if spec.schema_ > SCHEMA:
            raise ProctorError(
                f"{self.spec_file} has schema {spec.schema_}; this Proctor reads {SCHEMA}", "use a newer Proctor"
            )
        return spec

    def result(self) -> Result | None:
        """The run's result, or None if it has none yet."""
        try:
            text = self.result_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            return Result.model_validate_json(text)
        except ValidationError as error:
            raise ProctorError(f"{self.result_file} is not a result: {_first(error)}") from None

    def write_spec(self, spec: RunSpec) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        write_json(self.spec_file, spec)

    def write_result(self, result: Result) -> None:
        write_json(self.result_file, result)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the run's one worker; freed by the kernel when the worker dies.

        Raises:
            ProctorError: Another worker has it.
        """
        fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ProctorError(f"another worker is busy with {self.root}", "wait for it, or stop it") from None
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
            yield
        finally:
            os.close(fd)

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


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    place = ".".join(map(str, problem["loc"])) or "the document"
    return f"{place}: {problem['msg']}"
