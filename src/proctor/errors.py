"""Errors that reach a person: what was wrong, where, and what to do about it."""

from __future__ import annotations


class ProctorError(Exception):
    """A fault that the user, or the machine's owner, can do something about.

    Args:
        message: What is wrong and where (one sentence).
        hint: What to do about it (one sentence), or nothing.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  -> {self.hint}" if self.hint else self.message


class UsageError(ProctorError):
    """The command was given something that cannot be (exit code 1)."""


class InfrastructureError(ProctorError):
    """This machine, or Proctor itself, failed; never the agent's fault (exit code 2)."""


class InvalidSubmission(Exception):
    """The submission cannot be scored; the message goes to the agent as it is.

    Raised by a task's evaluation and by the candidate runner. It is an ordinary outcome, not a fault of ours.
    """
