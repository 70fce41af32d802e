"""The standard prompt: the same for every agent, so that scores compare agents and not prompts."""

from __future__ import annotations

from proctor.spec import Protocol, RunSpec
from proctor.tasks.base import Task

PROMPT = """\
You are sitting a research exam. Your task is described in program.md, in your working directory {workspace}. Read it
first, then work on it on your own until the time is up; nobody will answer questions.

This workspace is yours: you may read, write and run anything in it. Files marked as locked cannot be changed. Data is
in {data}, read-only. There is no network, and nothing can be installed.

You have {budget} of wall time, from now. The clock does not stop, and when it runs out everything you started is
ended. Four commands are at hand, each of which prints JSON:
  clock                        time used and left
  score [FILE] [--note TEXT]   freeze your work, score it, and log the result; scoring takes of your time
  score-log                    all of your scorings so far
  submit [--note TEXT]         end the exam early with what is in the workspace now

{counts} Keep a verified best solution and improve on a copy of it. Processes that you leave in the background are
ended with the exam. Give long commands a time limit of their own.

Play it straight. The score is computed outside of your reach from what your submission does with inputs that you have
not seen. Attempts to read hidden answers, to tamper with the clock or the scorer, or to pass off work that was not
done void the run. If something in the task seems broken or contradictory, say so in a --note: that costs nothing.
"""

COUNTS = {
    Protocol.SEALED: "The scores that you see come from a development split. What counts in the end is the submission "
    "with {best}, scored once on a hidden split.",
    Protocol.PUBLISHED: "What counts in the end is {best}.",
}
BEST = {
    ("best", Protocol.SEALED): "the best score that you saw",
    ("last", Protocol.SEALED): "the last valid score",
    ("best", Protocol.PUBLISHED): "the best score in your log",
    ("last", Protocol.PUBLISHED): "the last valid score in your log",
}


def minutes(seconds: float) -> str:
    """A budget as a person says it."""
    if seconds < 180:
        return f"{seconds:g} seconds"
    return f"{seconds / 60:g} minutes" if seconds < 3 * 3600 else f"{seconds / 3600:g} hours"


def standard_prompt(spec: RunSpec, task: Task, workspace: str, data: str) -> str:
    """The prompt of a run."""
    protocol = Protocol(spec.protocol)
    counts = COUNTS[protocol].format(best=BEST[task.aggregation.value, protocol])
    return PROMPT.format(workspace=workspace, data=data, budget=minutes(spec.budget_s), counts=counts)
