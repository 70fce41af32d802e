"""What is shown while runs go on: a table on a terminal, lines elsewhere. Reads run folders only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from proctor.errors import ProctorError
from proctor.run.folder import RunFolder
from proctor.run.plan import Experiment


def clock_text(seconds: float | None) -> str:
    """Seconds as 1:23 or 1:02:03."""
    if seconds is None:
        return ""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def score_text(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


class Display:
    """The state of every run of an experiment, refreshed from disk.

    Args:
        experiment: Whose runs.
        probe: Look whether workers live; for those who did not start them.
    """

    def __init__(self, experiment: Experiment, *, probe: bool = False) -> None:
        self._experiment = experiment
        self._probe = probe
        self._rows: dict[str, dict[str, Any]] = {}
        self._told: dict[str, str] = {}

    def refresh(self) -> None:
        for run in self._experiment.runs:
            known = self._rows.get(run.root.name)
            if known is None or known["state"] != "ended":
                self._rows[run.root.name] = _row(run, self._probe)

    def rows(self) -> list[dict[str, Any]]:
        return list(self._rows.values())

    def summary(self) -> str:
        """One line on everything, for a log."""
        running = [r for r in self.rows() if r["state"] not in ("ended", "planned")]
        ended = sum(1 for r in self.rows() if r["state"] == "ended")
        now = "; ".join(
            f"{r['run']} {r['state']} {clock_text(r['elapsed_s'])}, best {score_text(r['best']) or 'none'}"
            for r in running
        )
        return f"{ended}/{len(self._rows)} ended{'; ' + now if now else ''}"

    def changes(self) -> Iterator[str]:
        """A line for each run whose state has changed since the last call."""
        for row in self.rows():
            state = row["state"] if row["state"] != "ended" else f"ended {row['ended']}"
            if self._told.get(row["run"]) == state or state == "planned":
                continue
            self._told[row["run"]] = state
            if row["state"] == "ended":
                came = (
                    f"score {score_text(row['score'])}" if row["valid"] else f"no valid score ({row['reason'][:300]})"
                )
                after = f" after {clock_text(row['elapsed_s'])}" if row["elapsed_s"] is not None else ""
                yield f"{row['run']}: {row['ended']}{after}, {came}"
            elif row["state"] == "running":
                yield f"{row['run']}: started"

    def __rich__(self) -> RenderableType:
        with_gpu = any(row["gpu_busy"] is not None for row in self.rows())
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("run", overflow="fold")
        table.add_column("state", overflow="fold")
        for name in ("clock", "left", "best", "scorings", *(["GPU"] if with_gpu else []), "result"):
            table.add_column(name, justify="right", overflow="fold")
        for row in self.rows():
            ended = row["state"] == "ended"
            gpu = f"{100 * row['gpu_busy']:.0f} %" if row["gpu_busy"] is not None else ""
            style = "" if not ended or row["valid"] else "red"
            table.add_row(
                Text(row["run"]),
                Text(row["ended"] if ended else row["state"], style=style),
                clock_text(row["elapsed_s"]),
                "" if ended else clock_text(row["remaining_s"]),
                score_text(row["best"]),
                str(row["scorings"] or ""),
                *([gpu] if with_gpu else []),
                Text(score_text(row["score"]) if row["valid"] else "invalid" if ended else "", style=style),
            )
        return table


def _row(run: RunFolder, probe: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "run": run.root.name,
        "state": "planned",
        "elapsed_s": None,
        "remaining_s": None,
        "best": None,
        "scorings": None,
        "gpu_busy": None,
        "ended": None,
        "valid": None,
        "score": None,
        "reason": "",
    }
    try:
        result = run.result()
    except ProctorError as error:
        return {**row, "state": "ended", "ended": "unreadable", "valid": False, "reason": error.message}
    if result is not None:
        return {
            **row,
            "state": "ended",
            "ended": result.ended.value,
            "valid": result.valid,
            "score": result.raw_score,
            "best": result.visible_best,
            "elapsed_s": result.used_s,
            "scorings": result.score_calls,
            "gpu_busy": result.gpu_busy_fraction,
            "reason": result.reason,
        }
    if not run.lock_file.exists():
        return row
    if probe and not run.worker_alive():
        return {**row, "state": "worker gone"}
    try:
        live = json.loads(run.live.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        live = None
    if not isinstance(live, dict):
        return {**row, "state": "preparing"}
    return {
        **row,
        "state": live.get("phase", "running"),
        "elapsed_s": live.get("elapsed_s"),
        "remaining_s": live.get("remaining_s"),
        "best": live.get("best"),
        "scorings": live.get("scorings"),
        "gpu_busy": live.get("gpu_busy"),
    }
