"""How numbers, times and foreign text are written: four significant digits, units, a dash for the unknown."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

DASH = "—"
MINUS = "\N{MINUS SIGN}"
GIB = 1024**3


@dataclass(frozen=True)
class Maybe:
    """A number, or the reason why there is none. The reason is shown beside the dash."""

    value: float | None
    why: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.why:
            raise ValueError("a missing number needs a reason")

    @classmethod
    def of(cls, value: float | None, why: str) -> Maybe:
        return cls(value, "" if value is not None else why)


def number(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits; trailing zeros are kept, since they were measured."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    decimals = _decimals(value, digits)
    size = abs(value)
    text = f"{size:.{digits - 1}e}" if size < 1e-4 or size >= 1e7 else f"{size:,.{decimals}f}"
    return (MINUS if value < 0 else "") + text


def share(value: float | None, *, sign: bool = False) -> str:
    """A gain or a normalised score: three decimals, or two significant digits where those would hide it."""
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{abs(value):.3f}" if abs(value) >= 0.01 or value == 0 else f"{abs(value):.2g}"
    return (MINUS if value < 0 else "+" if sign and value > 0 else "") + text


def difference(value: float | None) -> str:
    """A signed difference in the metric's unit, three significant digits."""
    text = number(value, 3)
    return f"+{text}" if value is not None and value > 0 else text


def spread(mean: float | None, std: float | None) -> str:
    """Mean and standard deviation with the same decimals: as many as the mean's four digits or the deviation's three
    need, whichever are fewer. A deviation that would vanish keeps two digits of its own."""
    if mean is None or std is None:
        return number(mean)
    wanted = [_decimals(value, digits) for value, digits in ((mean, 4), (std, 3)) if value]
    decimals = min(wanted, default=0)
    sign = MINUS if mean < 0 else ""
    small = 0 < std < 10.0**-decimals
    return f"{sign}{abs(mean):,.{decimals}f} ± {number(std, 2) if small else f'{std:,.{decimals}f}'}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.0f} %"


def duration(seconds: float | None) -> str:
    """Seconds as people say them: 0.82 s, 48.0 s, 12 min 05 s, 2 h 03 min."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    minutes = round(seconds / 60)
    return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")


def moment(when: datetime | None) -> str:
    return DASH if when is None else f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def day(when: datetime) -> str:
    utc = when.astimezone(UTC)
    return f"{utc.day} {utc:%B %Y}"


def count(n: int, one: str, many: str | None = None) -> str:
    """`1 run`, `2 runs`."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listing(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""


def clean(text: str, limit: int | None = None) -> str:
    """Foreign text (an agent wrote it) as one line of printable characters, cut to `limit` characters.

    Control and direction characters could move a terminal's cursor or reorder a line, so they become spaces or go.
    Markup is not touched: each format escapes it in its own way.
    """
    kept = (
        " " if char in "\t\n\r\v\f" else "" if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn") else char
        for char in text
    )
    line = " ".join("".join(kept).split())
    return line if limit is None or len(line) <= limit else line[: limit - 1].rstrip() + "…"


def facts(values: Mapping[str, Any], *, brief: bool = False) -> str:
    """A flat description of a result's hardware; `brief` keeps what a heading has room for."""
    parts = []
    for name, value in values.items():
        if value in (None, "", [], {}) or (brief and name in ("driver", "kernel", "python")):
            continue
        if name == "gpus" and isinstance(value, list):
            parts.append(_gpus(value))
        elif name.endswith("_bytes") and isinstance(value, (int, float)):
            parts.append(f"{value / GIB:.0f} GiB {name.removesuffix('_bytes')}")
        elif name == "cores":
            parts.append(f"{value:g} cores" if isinstance(value, (int, float)) else f"{value} cores")
        elif name == "cpu":
            parts.append(str(value))
        else:
            parts.append(f"{name} {value}")
    return clean(", ".join(parts))


def _gpus(gpus: Sequence[Any]) -> str:
    """`2 × NVIDIA H200 (140 GiB)`."""
    names = []
    for gpu in gpus:
        name = str(gpu.get("name", "GPU")) if isinstance(gpu, Mapping) else str(gpu)
        size = gpu.get("memory_bytes") if isinstance(gpu, Mapping) else None
        names.append(f"{name} ({size / GIB:.0f} GiB)" if isinstance(size, (int, float)) else name)
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def _decimals(value: float, digits: int) -> int:
    """Decimals that show `value` with that many significant digits, after rounding."""
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    return max(0, digits - 1 - exponent)
