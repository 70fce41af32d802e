"""The SVG writer and the figures made with it."""

from __future__ import annotations

import math
import tempfile
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.report import figures, load
from proctor.report.standings import standings
from proctor.report.svg import Scale, Svg, log_ticks, nice_ticks, tick_label
from proctor.report.tables import exams
from proctor.spec import ScoreEntry
from proctor.stats import best_so_far, score_points
from tests.support.results import BEGAN, EXAMS, INJECTION, a_result, a_spec, an_experiment, score_log, write_experiment

ends = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(ends, st.integers(2, 10))
def test_ticks_are_round_inside_and_few(interval: tuple[float, float], count: int) -> None:
    low, high = interval
    ticks = nice_ticks(low, high, count)
    assert 1 <= len(ticks) <= count + 1
    slack = 1e-6 * (high - low) + 1e-9
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    steps = {f"{b - a:.3g}" for a, b in pairwise(ticks)}
    assert len(steps) <= 1
    assert all(step.lstrip("0.").strip("0.")[:1] in ("1", "2", "5") for step in steps)


def test_ticks_read_well() -> None:
    assert nice_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(2.02, 3.44, 4) == [2.5, 3.0]
    assert nice_ticks(5, 5) == [5]
    assert log_ticks(1, 1000, 4) == [1, 10, 100, 1000]
    assert log_ticks(1, 12, 5) == [1, 2, 5, 10]
    assert [tick_label(t, [0.0, 0.2, 0.4]) for t in (0.0, 0.2)] == ["0.0", "0.2"]
    assert tick_label(-0.5, [-0.5, 0.0]) == "−0.5"
    assert tick_label(20.0, [0.0, 20.0]) == "20"


def test_scales_map_ends_and_hold_within_them() -> None:
    y = Scale(2.0, 4.0, 200, 0)
    assert [y(2.0), y(3.0), y(4.0)] == [200, 100, 0]
    assert y(5.0) < 0
    assert y.clamp(5.0) == 0
    x = Scale(1, 100, 0, 200, log=True)
    assert x(10) == pytest.approx(100)
    for low, high, log in ((1, 1, False), (2, 1, False), (0, 1, True)):
        with pytest.raises(ValueError, match="no scale"):
            Scale(low, high, 0, 1, log=log)


def test_text_in_a_drawing_is_escaped() -> None:
    svg = Svg(10, 10, f'label "{INJECTION}"', "figure")
    svg.circle(1, 2, 3, 'dot" onload="x', f"</title>{INJECTION}")
    svg.text(1, 2, INJECTION, "tick")
    root = ElementTree.fromstring(svg.render())
    assert [element.tag for element in root.iter()] == ["svg", "circle", "title", "text"]
    assert root.attrib["aria-label"] == f'label "{INJECTION}"'
    assert root.findtext("text") == INJECTION


def test_a_step_line_holds_each_level_until_the_next() -> None:
    svg = Svg(10, 10, "", "figure")
    svg.steps([(0, 9), (4, 5)], 8, "best")
    svg.steps([], 8, "best")
    (path,) = ElementTree.fromstring(svg.render())
    assert path.attrib["d"] == "M0 9 4 9 4 5 8 5"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[figures.Exam]:
    return exams(load([an_experiment(tmp_path_factory.mktemp("figures"))]))


def count(drawing: str, css: str) -> int:
    """Elements with exactly this class."""
    return sum(element.attrib.get("class") == css for element in ElementTree.fromstring(drawing).iter())


def test_a_run_shows_every_scoring(shown: list[figures.Exam]) -> None:
    drawn = 0
    for exam in shown:
        frame = figures.frame_of(exam)
        assert frame is not None
        for record in exam.records:
            drawing = figures.run_figure(exam, record, frame)
            visible = [e for e in record.scores if e.split == "visible"]
            inside = [e for e in visible if e.score is not None and frame.low <= e.score <= frame.high]
            beyond = sum(e.score is not None for e in visible) - len(inside)
            without = sum(e.score is None for e in record.scores)
            assert count(drawing, "visible") == len(inside)
            assert count(drawing, "visible off") == beyond
            assert count(drawing, "invalid") == without
            assert count(drawing, "hidden") == sum(e.origin == "silent" for e in record.scores)
            assert count(drawing, "seal") == sum(e.origin == "seal" and e.score is not None for e in record.scores)
            assert count(drawing, "best") == bool(inside)
            assert count(drawing, "deadline") == 1
            assert count(drawing, "ref start") == count(drawing, "ref reference") == 1
            drawn += len(visible)
    assert drawn > 100


def test_a_score_far_beyond_the_others_does_not_flatten_the_picture() -> None:
    records = one_exam([2.5, 900.0, 2.4]).records
    exam = one_exam([2.5, 900.0, 2.4])
    frame = figures.frame_of(exam)
    assert frame is not None
    assert frame.high < 5
    drawing = figures.run_figure(exam, records[0], frame)
    assert (count(drawing, "visible"), count(drawing, "visible off")) == (2, 1)


def one_exam(scores: list[float]) -> figures.Exam:
    log = [
        ScoreEntry(
            n=i, origin="agent", split="visible", elapsed_s=100.0 * i, at=BEGAN, status="scored", score=s, message=""
        )
        for i, s in enumerate(scores)
    ]
    with tempfile.TemporaryDirectory() as folder:
        (exam,) = exams(load([write_experiment(Path(folder), "unit", [(a_spec(), a_result(), log)])]))
    return exam


def test_an_exam_shows_its_seals_and_dashes_runs_that_do_not_count(shown: list[figures.Exam]) -> None:
    exam = next(exam for exam in shown if exam.key.task == "image_classification")
    frame = figures.frame_of(exam)
    assert frame is not None
    drawing = figures.exam_figure(exam, frame, {cell.agent: i for i, cell in enumerate(exam.cells)}, 1080)
    assert drawing is not None
    classes = [element.attrib.get("class", "") for element in ElementTree.fromstring(drawing).iter()]
    assert sum("seal" in css for css in classes) == 2
    assert sum("thin lost" in css for css in classes) == 2
    assert sum(css.endswith("thin") for css in classes) == 2
    assert sum("mean" in css for css in classes) == 0, "no agent has two scored runs"


def test_a_strip_has_a_dot_per_scored_run_and_better_is_to_the_right(shown: list[figures.Exam]) -> None:
    for exam in shown:
        for cell in exam.cells:
            drawing = figures.strip(exam, cell, {cell.agent: 0})
            assert drawing is not None
            root = ElementTree.fromstring(drawing)
            dots = [e for e in root if e.attrib.get("class") == "agent c0 dot"]
            assert len(dots) == cell.summary.n_valid
            at = {css: float(next(e for e in root if e.attrib["class"] == css).attrib["x1"]) for css in REFS}
            assert at["ref start"] < at["ref reference"]


REFS = ("ref start", "ref reference")


def test_an_exam_without_scores_has_no_figure(tmp_path: Path) -> None:
    (exam,) = exams(load([write_experiment(tmp_path, "unit", [(a_spec(), None, ())])]))
    assert figures.frame_of(exam) is None
    assert figures.strip(exam, exam.cells[0], {}) is None


def test_best_of_k_needs_more_than_two_attempts(tmp_path: Path, shown: list[figures.Exam]) -> None:
    colours = {cell.agent: 0 for exam in shown for cell in exam.cells}
    assert figures.best_of_k_figure(standings(shown), colours) is None
    runs = [(a_spec(run_id=f"r{i}"), a_result(run_id=f"r{i}", raw_score=2.0 + i / 10), ()) for i in range(12)]
    rows = standings(exams(load([write_experiment(tmp_path, "unit", runs)])))
    drawing = figures.best_of_k_figure(rows, {rows[0].agent: 3})
    assert drawing is not None
    assert count(drawing, "agent c3 dot") == 12


def test_long_logs_are_thinned_but_keep_every_improvement() -> None:
    exam = EXAMS[0]
    entries = [e for e in score_log(exam, "long", BEGAN, calls=3000) if e.split == "visible"]
    kept = figures.thinned(entries, exam.direction)
    assert len(kept) <= figures.MAX_MARKS + 1
    moments = {e.elapsed_s for e in kept}
    assert {t for t, _ in best_so_far(score_points(entries), exam.direction)[-100:]} <= moments
    assert figures.thinned(entries[:50], exam.direction) == entries[:50]


@pytest.mark.parametrize(
    ("seconds", "labels", "unit"),
    [
        (120, ["0", "30", "60", "90", "120"], "seconds"),
        (2400, ["0", "10", "20", "30", "40"], "minutes"),
        (7200, ["0", "30", "60", "90", "120"], "minutes"),
        (8 * 3600, ["0", "2", "4", "6", "8"], "hours"),
    ],
)
def test_time_axes_have_round_times(seconds: float, labels: list[str], unit: str) -> None:
    ticks, name = figures.Frame(seconds, 0, 1).time_axis(5)
    assert [label for _, label in ticks] == labels
    assert name == unit
    assert math.isclose(ticks[-1][0], seconds)
