"""The same numbers in every format, and no foreign mark-up in any."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from proctor.clock import ManualClock
from proctor.errors import UsageError
from proctor.report import COLUMNS, FORMATS, RunRecord, load, render, terminal_table, write
from proctor.report.markdown import escape
from proctor.spec import AgentSpec
from proctor.stats import Outcome
from tests.support.results import (
    BEGAN,
    EXAMS,
    INJECTION,
    RIVAL,
    a_result,
    a_spec,
    an_experiment,
    score_log,
    write_experiment,
)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    return load([an_experiment(tmp_path_factory.mktemp("formats"))])


def terminal(records: list[RunRecord], width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(terminal_table(records))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_csv_has_one_row_per_planned_run(records: list[RunRecord]) -> None:
    rows = list(csv.DictReader(io.StringIO(render(records, "csv"))))
    assert [row["run_id"] for row in rows] == [record.spec.run_id for record in records]
    assert list(rows[0]) == [column.name for column in COLUMNS]
    for row, record in zip(rows, records, strict=True):
        assert row["outcome"] == record.outcome.value
        counted = float(row["raw_score"]) if row["outcome"] == "scored" else None
        assert counted == record.score, "full precision"
    (unfinished,) = (row for row in rows if row["outcome"] == "unfinished")
    assert unfinished["raw_score"] == unfinished["used_s"] == unfinished["valid"] == ""
    assert unfinished["budget_s"] == "7200.0"


def test_every_column_is_documented_once() -> None:
    assert all(column.meaning for column in COLUMNS)
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


def test_csv_starts_no_formula(tmp_path: Path) -> None:
    spec = a_spec(agent=AgentSpec(name="=HYPERLINK(1)"))
    result = a_result(agent=spec.agent.label, model="+1", reason="-2", limit="@x", raw_score=-1.5)
    records = load([write_experiment(tmp_path, "unit", [(spec, result, ())])])
    (row,) = csv.DictReader(io.StringIO(render(records, "csv")))
    assert (row["agent"], row["model"], row["reason"], row["limit"]) == ("'=HYPERLINK(1)", "'+1", "'-2", "'@x")
    assert row["raw_score"] == "-1.5"
    (run,) = json.loads(render(records, "json"))["runs"]
    assert run["agent"] == "=HYPERLINK(1)"


def test_json_has_the_tables_and_explains_itself(records: list[RunRecord]) -> None:
    document = json.loads(render(records, "json"))
    assert sum(document["outcomes"].values()) == len(document["runs"]) == 12
    assert set(document["runs"][0]) == set(document["columns"])
    assert len(document["cells"]) == 6
    lost = next(c for c in document["cells"] if c["outcomes"]["infrastructure"])
    assert (lost["std"], lost["std_why"]) == (None, "one valid run")
    assert document["findings"][0]["severity"] == "void"
    assert RIVAL.label in {row["agent"] for row in document["standings"]}


def cells_of(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line)


def test_markdown_tables_are_whole_and_carry_no_foreign_markup(records: list[RunRecord]) -> None:
    text = render(records, "md")
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) >= 6
    for block in tables:
        assert len({len(cells_of(line)) for line in block.splitlines()}) == 1, block
    assert "<" not in text
    assert not re.search(r"(?<!\\)[\[*]star", text)
    assert "**NO BOX**" in text
    assert "1 has no result yet" in text


def test_markdown_escape_is_literal() -> None:
    assert escape("a|b <i>*x*</i> [l](u) `c` & _d_\n# e") == (
        r"a\|b &lt;i&gt;\*x\*&lt;/i&gt; \[l\]\(u\) \`c\` &amp; \_d\_ \# e"
    )


def test_terminal_table_reads_names_as_text(records: list[RunRecord]) -> None:
    text = terminal(records)
    assert "NO BOX" in text
    assert "Ångström" in text
    assert "<script>" in text
    assert "12 runs were planned" in text


def test_terminal_table_fits_eighty_columns(records: list[RunRecord]) -> None:
    text = terminal(records, width=80)
    assert "…" not in "".join(line for line in text.splitlines() if "mean ± dev." in line)
    assert "39 min 42 s" in text
    assert "−0.556 ± 0.171" in text


def test_terminal_table_lets_no_control_character_through(tmp_path: Path) -> None:
    spec = a_spec(agent=AgentSpec(name="x\x1b]0;owned\x07[bold]y"))
    records = load([write_experiment(tmp_path, "unit", [(spec, a_result(agent=spec.agent.label), ())])])
    text = terminal(records)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]y" in text


@pytest.mark.parametrize("fmt", FORMATS)
def test_missing_is_never_shown_as_zero(tmp_path: Path, fmt: str) -> None:
    """A run that failed where lower is better: any 0 in the place of its score would be a perfect one."""
    failed = a_result(valid=False, raw_score=None, start_score=None, reference_score=None, used_s=None)
    records = load([write_experiment(tmp_path, "unit", [(a_spec(), failed, ())])])
    document = json.loads(render(records, "json"))
    (cell,) = document["cells"]
    for name in ("mean", "std", "relative_gain", "normalised", "visible_best", "sealed", "optimism", "used_s"):
        assert cell[name] is None
        assert cell[f"{name}_why"]
    text = render(records, fmt, ManualClock())
    if fmt == "csv":
        (row,) = csv.DictReader(io.StringIO(text))
        assert {row[name] for name in ("raw_score", "start_score", "relative_gain", "normalised_score", "used_s")} == {
            ""
        }
    elif fmt == "md":
        row_text = next(line for line in text.splitlines() if line.startswith("| tuner"))
        assert row_text.count("—") == 7
    elif fmt == "html":
        (row_html,) = re.findall(r"<tr>\s*<th scope=\"row\">(?:(?!</tr>).)*Mean ±(?:(?!</tr>).)*</tr>", text, re.DOTALL)
        assert row_html.count('class="na"') == 8, "seven numbers and the strip"


@pytest.mark.parametrize("fmt", FORMATS)
def test_reports_are_reproducible(records: list[RunRecord], fmt: str) -> None:
    assert render(records, fmt, ManualClock()) == render(records, fmt, ManualClock())


@pytest.mark.parametrize("fmt", ["html", "md"])
def test_every_outcome_is_counted_in_words(records: list[RunRecord], fmt: str) -> None:
    text = render(records, fmt, ManualClock())
    for part in ("12 runs were planned", "8 have a valid score", "1 left nothing valid", "1 has no result yet"):
        assert part in text
    for outcome in {record.outcome for record in records}:
        assert outcome.value in text


def test_html_asks_for_nothing_and_runs_nothing(records: list[RunRecord]) -> None:
    text = render(records, "html", ManualClock())
    assert INJECTION not in text
    assert re.findall(r"<script[^>]*>", text) == ['<script type="application/json" id="proctor-data">']
    assert not re.search(r"<(img|iframe|object|embed|video|audio|form)\b", text)
    assert re.findall(r"<link[^>]*>", text) == ['<link rel="icon" href="data:,">'], "or browsers ask a server for one"
    assert not re.search(
        r"\b(src|srcset|action|data)\s*=|url\(|@import", text.split('id="proctor-data"')[0].replace(ESCAPED, "")
    )
    assert "default-src 'none'" in text
    assert len(text.encode()) < 500_000


ESCAPED = "src=&#34;http://outside.invalid/x&#34;"


def test_the_data_in_the_page_are_the_json_report(records: list[RunRecord]) -> None:
    text = render(records, "html", ManualClock())
    (inline,) = re.findall(r'id="proctor-data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(inline) == json.loads(render(records, "json"))
    assert "<" not in inline
    assert ">" not in inline


def test_every_run_has_every_fact_in_the_page(records: list[RunRecord]) -> None:
    text = render(records, "html", ManualClock())
    assert text.count('<details class="run">') == len(records)
    for label in (
        "Limit that fired",
        "Exit code",
        "Calibration",
        "Data seed",
        "Artefact, sha256",
        "Versions",
        "Hardware",
    ):
        assert text.count(f"<dt>{label}</dt>") >= sum(record.result is not None for record in records), label
    for record in records:
        if record.result is not None and record.result.artefact_sha256:
            assert record.result.artefact_sha256 in text


def test_long_logs_say_what_they_leave_out(tmp_path: Path) -> None:
    scores = score_log(EXAMS[0], "long", BEGAN, calls=2000)
    sealed = scores[-1].score
    result = a_result(raw_score=sealed, sealed_score=sealed)
    records = load([write_experiment(tmp_path, "unit", [(a_spec(), result, scores)])])
    text = render(records, "html", ManualClock())
    assert f"{len(scores) - 120} lines left out here" in text
    assert len(text.encode()) < 250_000


def test_problems_of_a_run_are_shown(tmp_path: Path) -> None:
    records = load([write_experiment(tmp_path, "unit", [(a_spec(), a_result(), ())])])
    for fmt in ("html", "md", "csv"):
        assert "is in no line of the score log" in render(records, fmt, ManualClock()).replace("\\", "")


def test_a_report_of_unfinished_runs_only(tmp_path: Path) -> None:
    records = load([write_experiment(tmp_path, "unit", [(a_spec(), None, ())])])
    assert records[0].outcome is Outcome.UNFINISHED
    for fmt in FORMATS:
        assert "unfinished" in render(records, fmt, ManualClock())
    assert "1 run was planned" in terminal(records)


def test_write_takes_the_format_from_the_ending(records: list[RunRecord], tmp_path: Path) -> None:
    write(records, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == render(records, "csv")
    write(records, tmp_path / "out.txt", "md")
    assert (tmp_path / "out.txt").read_text() == render(records, "md")
    with pytest.raises(UsageError, match="no report format 'pdf'"):
        write(records, tmp_path / "out.pdf")
    with pytest.raises(UsageError, match="does not exist"):
        write(records, tmp_path / "nowhere" / "out.html")
