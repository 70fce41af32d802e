"""`tuner`: no language model. Optuna proposes changes to the starting script's constants; the best of them is kept."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from proctor.agents.base import Agent, Launch, Sitting

SCRIPT = Path(__file__).resolve().parent / "inbox" / "tune.py"


class Tuner(Agent):
    name = "tuner"
    kind = "search"
    summary = "Optuna over the starting script's constants: trains, scores, keeps the best, watches the clock"
    needs = "optuna in the runtime (pip install 'proctor[tasks]')"

    def version(self) -> str | None:
        try:
            return f"optuna {version('optuna')}"
        except PackageNotFoundError:
            return None

    def missing(self) -> str | None:
        return None if self.version() else "optuna is not installed (pip install 'proctor[tasks]')"

    def launch(self, sitting: Sitting) -> Launch:
        command = sitting.task.start_command
        script = command[-1] if command else sitting.task.artefact.targets[0]
        return Launch(
            argv=(
                "python",
                f"{sitting.paths.agent}/tune.py",
                script,
                "train" if command else "edit",
                sitting.task.metric.direction.value,
                str(sitting.spec.seed + sitting.spec.repeat),
            ),
            files={"tune.py": SCRIPT.read_bytes()},
        )


AGENT = Tuner()
