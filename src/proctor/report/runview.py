"""Every fact of one run in words, grouped, for the run lists of the HTML page and the Markdown."""

from __future__ import annotations

from typing import NamedTuple

from proctor.report.load import RunRecord
from proctor.report.tables import run_gain, run_normalised, run_optimism
from proctor.report.words import DASH, clean, count, difference, duration, facts, moment, number, percent, share
from proctor.spec import Result
from proctor.stats import behaviour


class Fact(NamedTuple):
    """A label, and what is known; `missing` marks a dash with its reason."""

    label: str
    text: str
    missing: bool = False


def run_facts(record: RunRecord) -> list[tuple[str, list[Fact]]]:
    """All facts of a run, under four headings. A run without a result has those of its specification."""
    groups = [("How it ended", _end(record)), ("Score", _score(record)), ("Time and use", _use(record))]
    return [*groups, ("Conditions", _conditions(record))]


def _known(label: str, text: str | None, why: str = "not recorded") -> Fact:
    """A fact, or the reason why it is not known."""
    if text is None or text in ("", DASH):
        return Fact(label, why, missing=True)
    return Fact(label, text)


def _end(record: RunRecord) -> list[Fact]:
    result = record.result
    found = [Fact("Outcome", record.outcome.value)]
    if result is None:
        return [*found, Fact("Result", "no result yet: running, or its worker died", missing=True)]
    found += [
        Fact("Ended", result.ended.value),
        _known("Limit that fired", result.limit, "none"),
        _known("Exit code", None if result.exit_code is None else str(result.exit_code), "none: it was ended"),
        Fact("Valid artefact", "yes" if result.valid else "no"),
    ]
    if result.reason:
        found.append(Fact("Reason", clean(result.reason, 400)))
    return found + [Fact("Does not agree", clean(problem, 300)) for problem in record.problems]


def _score(record: RunRecord) -> list[Fact]:
    result = record.result
    if result is None:
        return [Fact("Score", "no result yet", missing=True)]
    none = "does not count" if result.raw_score is not None else "no valid score"
    score = number(record.score) if record.score is not None else None
    return [
        _known(f"Score, {clean(result.metric, 40)} ({result.direction.value} is better)", score, none),
        _known("Start", number(result.start_score)),
        _known("Reference", number(result.reference_score)),
        _known("Calibration", clean(result.calibration, 200), "not stated"),
        _known("Relative gain", share(run_gain(record), sign=True), none if score is None else "no start score, or 0"),
        _known("Normalised", share(run_normalised(record)), none if score is None else "no start or reference"),
        _known("Visible best", number(result.visible_best), "none"),
        _known("Sealed", number(result.sealed_score), "none"),
        _known("Optimism", difference(run_optimism(record)), "needs both"),
        _known("Artefact, sha256", result.artefact_sha256, "none"),
    ]


def _use(record: RunRecord) -> list[Fact]:
    result = record.result
    used = result.used_s if result is not None else None
    found = [Fact("Budget", duration(record.spec.budget_s)), _known("Used", duration(used))]
    if result is None:
        return [*found, Fact("Score calls so far", str(sum(entry.origin == "agent" for entry in record.scores)))]
    seen = behaviour(record.scores, result.direction, used)
    logged = f"{seen.valid} scored, {seen.invalid} invalid, {seen.errors} failed on our side"
    rate = None if seen.calls_per_hour is None else f"{seen.calls_per_hour:.1f} an hour"
    return [
        *found,
        _known("Of that, scoring", duration(result.scoring_s)),
        _known("Of that, frozen", duration(result.frozen_s)),
        _known("Waiting for the model", duration(result.model_s)),
        _known("Waiting for rate limits", duration(result.rate_limit_s)),
        _known("GPU busy", percent(result.gpu_busy_fraction)),
        Fact("Score calls", f"{result.score_calls}; in the log {logged}"),
        _known("Score calls, rate", rate),
        _known("First valid score after", duration(seen.first_valid_s), "there was none"),
        _known("Last improvement after", duration(seen.last_gain_s), "there was none"),
        _known("Scripts launched", None if result.scripts_launched is None else str(result.scripts_launched)),
        _known("Tokens", _tokens(result)),
        _known("Cost", None if result.cost_usd is None else f"{result.cost_usd:.2f} US dollars"),
    ]


def _tokens(result: Result) -> str | None:
    tokens = result.tokens
    parts = [("input", tokens.input), ("cached", tokens.cached_input), ("output", tokens.output)]
    return ", ".join(f"{n:,} {name}" for name, n in parts if n is not None) or None


def _conditions(record: RunRecord) -> list[Fact]:
    result, spec = record.result, record.spec
    found = [
        Fact("Experiment", clean(spec.experiment, 80)),
        Fact("Agent", clean(record.agent, 200)),
        Fact("Repeat and seed", f"{spec.repeat}, {spec.seed}"),
        Fact("Data seed", clean(spec.data_seed, 40)),
        Fact("Device", f"{spec.device}, {count(spec.gpus, 'GPU')}"),
        Fact("Box", "none: nothing was enforced" if record.box == "none" else clean(record.box, 40)),
    ]
    if result is None:
        return found
    return [
        *found,
        _known("Agent version", clean(result.agent_version or "", 80)),
        _known("Model", clean(result.model or "", 80), "none, or not recorded"),
        _known("Started", moment(result.started_at)),
        _known("Hardware", facts(result.hardware)),
        _known("Versions", clean(", ".join(f"{name} {value}" for name, value in result.versions.items()), 300)),
        _known("Data", clean(", ".join(f"{name} {value}" for name, value in result.data.items()), 300)),
    ]
