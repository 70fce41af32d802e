"""`files:DIR`: an outside submission, scored as it is; nothing is run but the submission itself."""

from __future__ import annotations

import os
from pathlib import Path

from proctor.agents.base import Agent, Launch, Sitting
from proctor.errors import UsageError
from proctor.spec import GIB
from proctor.tasks.base import files_under

MAX_BYTES = 8 * GIB


class Files(Agent):
    name = "files"
    kind = "outside"
    summary = "a folder laid over the starting solution and scored as it is, no agent"
    needs = "files:DIR, the folder"

    def version(self) -> str | None:
        return None

    def check(self, argument: str | None) -> None:
        if not argument:
            raise UsageError("files needs a folder", "write --agent files:DIR")
        folder = _folder(argument)
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder", "write --agent files:DIR with an existing folder")
        files = files_under(folder)
        if not files:
            raise UsageError(f"{folder} holds no files, so there is nothing to score")
        for path in files.values():
            if not os.access(path, os.R_OK, effective_ids=True):
                raise UsageError(f"{path} cannot be read", "make it readable, or take it out of the folder")
        size = sum(path.stat().st_size for path in files.values())
        if size > MAX_BYTES:
            raise UsageError(f"{folder} holds {size / GIB:.1f} GiB; at most {MAX_BYTES // GIB} GiB are taken")

    def launch(self, sitting: Sitting) -> Launch:
        folder = _folder(sitting.spec.agent.argument or "")
        content = {name: path.read_bytes() for name, path in files_under(folder).items()}
        return Launch(argv=("/bin/sh", "-c", "score --note 'outside submission' || true; submit"), workspace=content)


def _folder(argument: str) -> Path:
    try:
        return Path(argument).expanduser()
    except RuntimeError as error:
        raise UsageError(f"files:{argument} cannot be read: {error}", "write --agent files:DIR") from None


AGENT = Files()
