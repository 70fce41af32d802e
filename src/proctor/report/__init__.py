"""Reports on experiments: tables, figures, and what they rest on, as HTML, Markdown, CSV, JSON or terminal text.

    records = load(["results/autumn"])
    write(records, Path("report.html"))

Reports read result files and know nothing of running.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from proctor.clock import Clock, SystemClock
from proctor.errors import UsageError
from proctor.jsonio import write_atomic
from proctor.report.export import COLUMNS, to_csv, to_json
from proctor.report.html import to_html
from proctor.report.load import RunRecord, load
from proctor.report.markdown import to_markdown
from proctor.report.text import terminal_table

Format = Literal["html", "md", "csv", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)

__all__ = ["COLUMNS", "FORMATS", "Format", "RunRecord", "load", "render", "terminal_table", "write"]


def render(records: Sequence[RunRecord], fmt: str, clock: Clock | None = None) -> str:
    """The report as text.

    Args:
        records: What `load` gave.
        fmt: `html` (one self-contained page), `md`, `csv` (one row per run, see `COLUMNS`) or `json` (everything).
        clock: Dates the HTML page; the system's if None.

    Raises:
        UsageError: There is no such format.
        ProctorError: The results contradict one another.
    """
    if fmt == "html":
        return to_html(records, clock or SystemClock())
    if fmt == "md":
        return to_markdown(records)
    if fmt == "csv":
        return to_csv(records)
    if fmt == "json":
        return to_json(records)
    raise UsageError(f"there is no report format {fmt!r}", f"choose one of {', '.join(FORMATS)}")


def write(records: Sequence[RunRecord], path: Path, fmt: str | None = None, clock: Clock | None = None) -> None:
    """Write the report to a file, whole or not at all.

    Args:
        records: What `load` gave.
        path: Where to; its ending gives the format unless `fmt` does.
        fmt: As in `render`.
        clock: As in `render`.

    Raises:
        UsageError: The format is unknown, or the folder does not exist.
    """
    chosen = fmt or {".htm": "html", ".markdown": "md"}.get(path.suffix.lower(), path.suffix.lower().lstrip("."))
    text = render(records, chosen, clock)
    if not path.parent.is_dir():
        raise UsageError(f"the folder {path.parent} does not exist", "create it, or name another place with -o")
    write_atomic(path, text)
