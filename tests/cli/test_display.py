"""What is shown while runs go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from proctor.cli.display import Display, clock_text, score_text
from proctor.run.plan import Experiment
from tests.support.runs import planned


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3600, "1:00:00"), (36061, "10:01:01")]
)
def test_clocks(seconds: float | None, text: str) -> None:
    assert clock_text(seconds) == text


def test_a_score_of_zero_is_shown_and_none_is_not() -> None:
    assert (score_text(0.0), score_text(None), score_text(0.123456)) == ("0", "", "0.1235")


def shown(display: Display, width: int = 100) -> str:
    console = Console(width=width, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(display)
    return capture.get()


def test_the_life_of_a_run(tmp_path: Path) -> None:
    run = planned(tmp_path, "exit 0")
    display = Display(Experiment(run.root.parents[1], (run,)))
    display.refresh()
    assert list(display.changes()) == [] and "planned" in shown(display) and "GPU" not in shown(display)
    with run.lock():
        display.refresh()
        assert "preparing" in shown(display)
        live = {
            "phase": "running",
            "elapsed_s": 65.0,
            "remaining_s": 10.0,
            "best": 0.5,
            "scorings": 3,
            "gpu_busy": 0.756,
        }
        run.live.write_text(json.dumps(live))
        display.refresh()
        assert list(display.changes()) == [f"{run.root.name}: started"] and list(display.changes()) == []
        assert all(word in shown(display) for word in ("running", "1:05", "0:10", "0.5", "3", "76 %"))
        assert display.summary() == f"0/1 ended; {run.root.name} running 1:05, best 0.5"
        for damage in ("", "[1]", '"x"', "{}", "\0"):
            run.live.write_text(damage)
            display.refresh()
            shown(display)
    run.live.unlink()
    gone = Display(Experiment(run.root.parents[1], (run,)), probe=True)
    gone.refresh()
    assert "worker gone" in shown(gone)
    run.result_file.write_text("{")
    display.refresh()
    (line,) = display.changes()
    assert line.startswith(f"{run.root.name}: unreadable, no valid score (")
    assert "unreadable" in shown(display) and run.root.name in shown(display, 200)


def test_long_names_are_folded_and_not_cut(tmp_path: Path) -> None:
    run = planned(tmp_path, "exit 0")
    display = Display(Experiment(run.root.parents[1], (run,)))
    display.refresh()
    narrow = shown(display, 60)
    assert "…" not in narrow and max(map(len, narrow.splitlines())) <= 60
