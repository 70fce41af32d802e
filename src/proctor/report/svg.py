"""A small SVG writer: scales, nice ticks, axes, step lines, markers with hover titles.

Colours and fonts are not in here: every element carries a class, and the page's style sheet gives it its look in light
and dark. All text is escaped, so that names written by an agent stay text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape


@dataclass(frozen=True)
class Scale:
    """Maps values in [low, high] to pixels in [start, end]; logarithmic if `log` (low must then be above 0)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"no scale goes from {self.low} to {self.high}")

    def __call__(self, value: float) -> float:
        """The pixel of a value; values beyond the ends land beyond the ends."""
        low, high, at = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def clamp(self, value: float) -> float:
        """The pixel of a value, held within the ends."""
        return self(min(max(value, self.low), self.high))

    def ticks(self, count: int = 5) -> list[float]:
        """Round values within the ends, about `count` of them."""
        return log_ticks(self.low, self.high, count) if self.log else nice_ticks(self.low, self.high, count)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high], at most about `count`."""
    if not low < high:
        return [low]
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) if step >= 1e-9 else i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Powers of ten within [low, high], with their 2 and 5 (or with all whole multiples) where there is room."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    chosen: list[float] = []
    for factors in ((1,), (1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)):
        values = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        inside = [v for v in values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if chosen and len(inside) > count + 1:
            break
        chosen = inside
    every = max(1, math.ceil(len(chosen) / (count + 1)))
    return chosen[::every] or [low]


def tick_label(value: float, ticks: Sequence[float]) -> str:
    """A tick's label, with the decimals that its neighbours need."""
    step = min((b - a for a, b in pairwise(ticks)), default=abs(value) or 1)
    size = max(abs(tick) for tick in ticks)
    if size >= 1e6 or (0 < step < 1e-4):
        return f"{value:.3g}".replace("-", "−")
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    return f"{value:.{decimals}f}".replace("-", "−")


class Svg:
    """A drawing in the making.

    Args:
        width, height: Size of the view box, in pixels at natural size.
        label: What the drawing shows, for those who cannot see it.
        css: Class of the whole drawing.
    """

    def __init__(self, width: float, height: float, label: str, css: str) -> None:
        self.width, self.height = width, height
        self._head = Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            css, _plain(width), _plain(height), label
        )
        self._parts: list[Markup] = []

    def add(
        self,
        tag: str,
        css: str = "",
        *,
        title: str | None = None,
        text: str | None = None,
        **attributes: float | str,
    ) -> None:
        """Add one element; underscores in attribute names become hyphens, numbers are rounded to 0.1."""
        shown = {"class": css, **attributes} if css else attributes
        pairs = "".join(f' {name.replace("_", "-")}="{escape(_plain(value))}"' for name, value in shown.items())
        inner = (f"<title>{escape(title)}</title>" if title is not None else "") + str(escape(text or ""))
        self._parts.append(Markup(f"<{tag}{pairs}>{inner}</{tag}>" if inner else f"<{tag}{pairs}/>"))

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str, title: str | None = None) -> None:
        self.add("line", css, title=title, x1=x1, y1=y1, x2=x2, y2=y2)

    def text(self, x: float, y: float, text: str, css: str, anchor: str = "start") -> None:
        self.add("text", css, text=text, x=x, y=y, text_anchor=anchor)

    def circle(self, x: float, y: float, r: float, css: str, title: str | None = None) -> None:
        self.add("circle", css, title=title, cx=x, cy=y, r=r)

    def path(self, points: Sequence[tuple[float, float]], css: str, title: str | None = None) -> None:
        """A polyline through pixels."""
        if points:
            moves = " ".join(f"{_plain(x)} {_plain(y)}" for x, y in points)
            self.add("path", css, title=title, d=f"M{moves}")

    def steps(self, points: Sequence[tuple[float, float]], until: float, css: str, title: str | None = None) -> None:
        """A step line: each level holds from its pixel to the next one's, the last one up to `until`."""
        corners: list[tuple[float, float]] = []
        for x, y in points:
            if corners:
                corners.append((x, corners[-1][1]))
            corners.append((x, y))
        if corners:
            corners.append((max(until, corners[-1][0]), corners[-1][1]))
        self.path(corners, css, title)

    def diamond(self, x: float, y: float, r: float, css: str, title: str | None = None) -> None:
        self.add(
            "path",
            css,
            title=title,
            d="M" + " ".join(_plain(v) for v in (x, y - r, x + r, y, x, y + r, x - r, y)) + "Z",
        )

    def cross(self, x: float, y: float, r: float, css: str, title: str | None = None) -> None:
        strokes = ((x - r, y - r, x + r, y + r), (x - r, y + r, x + r, y - r))
        d = "".join("M" + " ".join(_plain(v) for v in stroke) for stroke in strokes)
        self.add("path", css, title=title, d=d)

    def render(self) -> Markup:
        return self._head + Markup("").join(self._parts) + Markup("</svg>")


@dataclass(frozen=True)
class Plot:
    """The inner rectangle of a drawing, with its two scales (y grows upwards).

    `base` is the pixel of the base line. It lies below the y scale's start if there is to be a band for marks that
    have no value.
    """

    svg: Svg
    x: Scale
    y: Scale
    base: float

    @property
    def left(self) -> float:
        return self.x.start

    @property
    def right(self) -> float:
        return self.x.end

    @property
    def top(self) -> float:
        return self.y.end

    def axes(self, x_ticks: Sequence[tuple[float, str]], x_title: str, y_title: str, y_count: int = 5) -> None:
        """Grid lines with labels at round values, a base line, and the titles of both axes."""
        levels = self.y.ticks(y_count)
        for level in levels:
            at = self.y(level)
            self.svg.line(self.left, at, self.right, at, "grid")
            self.svg.text(self.left - 6, at + 3.5, tick_label(level, levels), "tick", "end")
        self.svg.line(self.left, self.base, self.right, self.base, "base")
        for value, label in x_ticks:
            at = self.x(value)
            self.svg.line(at, self.base, at, self.base + 4, "base")
            self.svg.text(at, self.base + 16, label, "tick", "middle")
        self.svg.text(self.right, self.base + 31, x_title, "axis-title", "end")
        self.svg.text(2, self.top - 10, y_title, "axis-title")


def _plain(value: float | str) -> str:
    """A number with one decimal at most; text as it is."""
    if isinstance(value, str):
        return value
    rounded = round(float(value), 1)
    return f"{int(rounded)}" if rounded == int(rounded) else f"{rounded}"
