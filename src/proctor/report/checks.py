"""Whether the numbers of a run agree with one another and with its score log.

A score that is in no line of the log, or a gain that does not follow from the scores beside it, is shown, not mended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from proctor.spec import Protocol, Result, RunSpec, ScoreEntry
from proctor.stats import normalise, relative_gain

TOLERANCE = 1e-6


def problems(spec: RunSpec, result: Result | None, scores: Sequence[ScoreEntry]) -> tuple[str, ...]:
    """What does not agree within a run folder, one sentence each; empty if everything does."""
    found = []
    numbers = [entry.n for entry in scores]
    if numbers != list(range(len(scores))):
        found.append(f"The score log is not whole: its {len(scores)} lines do not number 0 to {len(scores) - 1}.")
    if result is None:
        return tuple(found)
    if result.agent != spec.agent.label:
        found.append(f"The result names the agent {result.agent!r}; the run was planned for {spec.agent.label!r}.")
    if result.valid:
        found += _score_problems(result, scores)
    found += _derived_problems(result)
    return tuple(found)


def _score_problems(result: Result, scores: Sequence[ScoreEntry]) -> list[str]:
    found = []
    logged = [entry for entry in scores if entry.score is not None and _same(entry.score, result.raw_score)]
    if not logged:
        found.append(f"The score {result.raw_score:.6g} is in no line of the score log.")
    elif result.artefact_sha256 and not any(e.sha256 in (None, result.artefact_sha256) for e in logged):
        found.append("The score log has that score for another artefact than the result names.")
    if result.protocol is Protocol.SEALED and not _same(result.raw_score, result.sealed_score):
        found.append(f"The score {result.raw_score:.6g} is not the sealed score, {result.sealed_score}.")
    return found


def _derived_problems(result: Result) -> list[str]:
    """Recorded gains that do not follow from the recorded scores; what is not recorded is not missed."""
    score = result.raw_score
    derived = {
        "relative gain": (result.relative_gain, relative_gain(score, result.start_score, result.direction)),
        "normalised score": (result.normalised_score, normalise(score, result.start_score, result.reference_score)),
    }
    return [
        f"The recorded {name} {recorded:.6g} does not follow from the scores beside it ({computed})."
        for name, (recorded, computed) in derived.items()
        if recorded is not None and not _same(recorded, computed)
    ]


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
