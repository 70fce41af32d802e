"""How numbers, times and foreign text are written."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import pytest

from proctor.report import words
from tests.support.results import HARDWARE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (math.nan, "—"),
        (0.0, "0"),
        (2.2325, "2.232"),
        (-0.405, "−0.4050"),
        (0.00012345, "0.0001234"),
        (9.99996, "10.00"),
        (1234.5, "1,234"),
        (123456.0, "123,456"),
        (3e-7, "3.000e-07"),
        (2.5e9, "2.500e+09"),
    ],
)
def test_numbers_have_four_significant_digits(value: float | None, text: str) -> None:
    assert words.number(value) == text


def test_shares_have_three_decimals_unless_that_hides_them() -> None:
    assert words.share(0.2926, sign=True) == "+0.293"
    assert words.share(-0.2926) == "−0.293"
    assert words.share(0.0004) == "0.0004"
    assert words.share(0.0) == "0.000"
    assert words.share(None) == "—"


def test_deviation_has_the_decimals_of_the_mean_unless_it_would_vanish() -> None:
    assert words.spread(2.2325, 0.20971) == "2.232 ± 0.210"
    assert words.spread(0.8322, 0.0074) == "0.8322 ± 0.0074"
    assert words.spread(2.2325, 0.0004) == "2.232 ± 0.00040"
    assert words.spread(-0.05588, 0.14267) == "−0.056 ± 0.143"
    assert words.spread(0.0, 0.5) == "0.000 ± 0.500"
    assert words.spread(0.0, 0.0) == "0 ± 0"
    assert words.spread(0.5, 0.0) == "0.5000 ± 0.0000"
    assert words.spread(2.2325, None) == "2.232"
    assert words.spread(None, None) == "—"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "—"),
        (0, "0 s"),
        (0.8231, "0.82 s"),
        (48, "48.0 s"),
        (59.97, "1 min"),
        (725, "12 min 05 s"),
        (3599.7, "1 h"),
        (7380, "2 h 03 min"),
        (7199, "2 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


def test_moments_are_in_utc() -> None:
    when = datetime(2026, 12, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert words.moment(when) == "2026-11-30 23:30:00 UTC"
    assert words.day(when) == "30 November 2026"
    assert words.moment(None) == "—"


def test_foreign_text_becomes_one_printable_line() -> None:
    assert words.clean("a\x1b[31mred\x00\nb\u202egnp\u2066 \t c") == "a[31mred bgnp c"
    assert words.clean("Ångström-агент 🦊 <b>") == "Ångström-агент 🦊 <b>"
    assert words.clean("x" * 50, 10) == "x" * 9 + "…"


def test_a_missing_number_needs_a_reason() -> None:
    assert words.Maybe.of(None, "no run").why == "no run"
    assert words.Maybe.of(1.0, "no run").why == ""
    with pytest.raises(ValueError, match="reason"):
        words.Maybe(None)


def test_hardware_is_described_in_a_line() -> None:
    brief = words.facts(HARDWARE, brief=True)
    assert brief == "AMD EPYC 9654 96-Core Processor, 16 cores, 128 GiB memory, 1 × NVIDIA H200 (140 GiB)"
    assert "driver 580.65.06" in words.facts(HARDWARE)
    assert words.facts({"gpus": [{"name": "A"}, {"name": "A"}, "B"], "cores": 2.5}) == "2 × A, 1 × B, 2.5 cores"
    assert words.facts({}) == ""


def test_listing_and_count() -> None:
    assert [words.listing(list("abc")[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert words.count(1, "run") == "1 run"
    assert words.count(0, "run") == "0 runs"
