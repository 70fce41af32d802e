"""`reference`: runs our own strong solution, and submits. For calibration; its score is y_r."""

from __future__ import annotations

from dataclasses import replace

from proctor.agents.base import Agent, Launch, Sitting
from proctor.agents.starter import run_and_submit


class Reference(Agent):
    name = "reference"
    kind = "control"
    summary = "runs Proctor's own strong solution and submits it (for calibration)"

    def launch(self, sitting: Sitting) -> Launch:
        launch = run_and_submit(sitting.task.reference_command, "reference solution")
        return replace(launch, workspace=sitting.task.reference_files(sitting.spec.tier))


AGENT = Reference()
