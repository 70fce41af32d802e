"""Reads experiment folders. Every planned run comes back exactly once, or the folder is refused with its name."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from proctor.errors import ProctorError
from proctor.jsonio import read_lines
from proctor.report.checks import problems
from proctor.spec import SCHEMA, Result, RunSpec, ScoreEntry
from proctor.stats import Outcome, outcome_of

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class RunRecord:
    """One planned run, as its folder tells it.

    Attributes:
        dir: The run folder.
        experiment_dir: The experiment folder that planned it (the run folder itself if it was read alone).
        spec: What the run was told.
        result: What it came to, or None if it has no result (yet).
        scores: Its score log.
        problems: What does not agree within the folder, in words; empty if everything does.
    """

    dir: Path
    experiment_dir: Path
    spec: RunSpec
    result: Result | None
    scores: tuple[ScoreEntry, ...]
    problems: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        return outcome_of(self.result)

    @property
    def agent(self) -> str:
        return self.spec.agent.label

    @property
    def box(self) -> str:
        """The box that was used, or was to be used if there is no result."""
        return self.result.box if self.result is not None else self.spec.box

    @property
    def score(self) -> float | None:
        """The raw score if it counts, otherwise None."""
        return self.result.raw_score if self.result is not None and self.outcome is Outcome.SCORED else None


def load(paths: Sequence[Path | str]) -> list[RunRecord]:
    """Read experiment folders (or single run folders).

    Args:
        paths: Folders with an `experiment.json`, or run folders with a `run.json`.

    Returns:
        One record for each planned run, in the order of the plans. A run without a result is among them.

    Raises:
        ProctorError: A file is missing, unreadable, of a higher schema, or contradicts the plan; the message names
            it. Nothing is left out instead, since a report that drops runs is wrong in a way that no one sees.
    """
    records: list[RunRecord] = []
    for path in map(Path, paths):
        if (path / "experiment.json").is_file():
            records += _experiment(path)
        elif (path / "run.json").is_file():
            records.append(_run(path, path))
        else:
            raise ProctorError(
                f"{path} is neither an experiment folder nor a run folder",
                "give a folder that `proctor run` has written: it holds experiment.json",
            )
    if not records:
        raise ProctorError("there are no runs to report on", "the experiment folders given plan no runs")
    _refuse_doubles(records)
    return records


def _experiment(folder: Path) -> list[RunRecord]:
    place = folder / "experiment.json"
    plan = _json(place)
    _check_schema(place, plan)
    planned = plan.get("runs")
    if not isinstance(planned, list) or not all(isinstance(run, str) and run for run in planned):
        raise ProctorError(f"{place} has no list of run names under 'runs'")
    runs = folder / "runs"
    found = {p.parent.name for p in runs.glob("*/run.json")}
    if missing := [run for run in planned if run not in found]:
        raise ProctorError(
            f"{place} plans the run {missing[0]!r}, but {runs / missing[0] / 'run.json'} is not there",
            "restore the run folder: leaving a planned run out would change the means",
        )
    if extra := sorted(found - set(planned)):
        raise ProctorError(
            f"{runs / extra[0]} is a run that {place} does not plan",
            "move it out, or report on it alone by giving its own folder",
        )
    return [_run(runs / run, folder) for run in planned]


def _run(folder: Path, experiment_dir: Path) -> RunRecord:
    spec = _model(folder / "run.json", RunSpec)
    place = folder / "result.json"
    result = _model(place, Result) if place.exists() else None
    if result is not None:
        _check_result(place, spec, result)
    log = folder / "scores.jsonl"
    scores = tuple(_valid(log, entry, ScoreEntry, f"line {i + 1}") for i, entry in enumerate(_lines(log)))
    return RunRecord(folder, experiment_dir, spec, result, scores, problems(spec, result, scores))


def _check_result(place: Path, spec: RunSpec, result: Result) -> None:
    """Refuse a result that is of another run, or that cannot be."""
    for name in ("run_id", "suite", "task", "tier", "protocol"):
        told, came = getattr(spec, name), getattr(result, name)
        if told != came:
            raise ProctorError(f"{place} says {name} {came!r}, but run.json beside it says {told!r}")
    for name, value in result:
        if isinstance(value, float) and not math.isfinite(value):
            raise ProctorError(f"{place}: {name} is {value}, not a finite number")
    if result.valid and result.raw_score is None:
        raise ProctorError(f"{place} calls the run valid but holds no raw_score")


def _refuse_doubles(records: Iterable[RunRecord]) -> None:
    seen: dict[tuple[str, str], Path] = {}
    for record in records:
        key = (record.spec.experiment, record.spec.run_id)
        if key in seen:
            raise ProctorError(
                f"the run {key[1]!r} of experiment {key[0]!r} is in {seen[key]} and in {record.dir}",
                "give each experiment folder once: a run that counts twice would change the means",
            )
        seen[key] = record.dir


def _json(place: Path) -> dict[str, Any]:
    try:
        value = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ProctorError(f"{place} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ProctorError(f"{place} does not hold a JSON object")
    return value


def _lines(place: Path) -> list[dict[str, Any]]:
    try:
        return list(read_lines(place))
    except OSError as error:
        raise ProctorError(f"{place} cannot be read: {error}") from None


def _check_schema(place: Path, value: dict[str, Any]) -> None:
    schema = value.get("schema", SCHEMA)
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ProctorError(
            f"{place} has schema {schema!r}, and this Proctor reads up to {SCHEMA}",
            "make the report with the version of Proctor that ran the experiment, or a later one",
        )


def _model(place: Path, kind: type[Model]) -> Model:
    value = _json(place)
    _check_schema(place, value)
    return _valid(place, value, kind)


def _valid(place: Path, value: dict[str, Any], kind: type[Model], where: str = "") -> Model:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or kind.__name__
        at = f"{place}, {where}" if where else str(place)
        raise ProctorError(f"{at} is not a valid {kind.__name__}: {field}: {first['msg']}") from None
