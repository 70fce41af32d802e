"""`starter`: runs the starting solution as it is, and submits. Its score is y_s."""

from __future__ import annotations

import shlex

from proctor.agents.base import Agent, Launch, Sitting


def run_and_submit(command: tuple[str, ...] | None, note: str) -> Launch:
    """Run a solution's own command, if it has one, score what came of it, and submit."""
    steps = ["set -e", *([shlex.join(command)] if command else [])]
    # A score of an invalid submission is an answer too: the run goes on to submit.
    steps += [f"score --note {shlex.quote(note)} || true", "submit"]
    return Launch(argv=("/bin/sh", "-c", "\n".join(steps)))


class Starter(Agent):
    name = "starter"
    kind = "control"
    summary = "runs the starting solution and submits it"

    def launch(self, sitting: Sitting) -> Launch:
        return run_and_submit(sitting.task.start_command, "starting solution")


AGENT = Starter()
