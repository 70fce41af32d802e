"""The HTML page in a real browser: quiet, offline, inert, and no wider than the screen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proctor.report import load, write
from tests.support.results import INJECTION, an_experiment

CHROMIUM = Path("/usr/bin/chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed, so no page can be rendered"),
]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write(load([an_experiment(folder)]), folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield started
        started.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 760, 1400])
def test_the_page_is_quiet_offline_and_fits(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(run => { run.open = true })")
    assert said == []
    assert asked == [page_file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_injected_markup_is_inert_text(browser: Any, page_file: Path) -> None:
    page = browser.new_page()
    page.goto(page_file.as_uri())
    assert page.evaluate("window.pwned") is None
    assert page.locator("img, iframe, script:not([type='application/json'])").count() == 0
    assert INJECTION in page.locator("#integrity").text_content()
    data = json.loads(page.locator("#proctor-data").text_content())
    assert any(INJECTION in run["agent"] for run in data["runs"])
    page.close()


def test_a_link_to_a_run_opens_it(browser: Any, page_file: Path) -> None:
    page = browser.new_page()
    page.goto(page_file.as_uri())
    assert page.locator("details[open]").count() == 0
    page.locator("#integrity a").first.click()
    page.wait_for_selector("details[open]")
    opened = page.locator("details[open]")
    assert opened.count() == 1
    assert "voided" in opened.text_content()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_marks_have_enough_contrast(browser: Any, page_file: Path, scheme: str) -> None:
    """WCAG: 4.5 for text, 3 for the marks of figures."""
    page = browser.new_page(color_scheme=scheme)
    page.goto(page_file.as_uri())
    read = "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
    colour = {name: page.evaluate(read, f"--{name}") for name in (*TEXT, *MARKS, "paper", "alarm-ink", "alarm-paper")}
    for name in TEXT:
        assert contrast(colour[name], colour["paper"]) >= 4.5, name
    for name in MARKS:
        assert contrast(colour[name], colour["paper"]) >= 3, name
    assert contrast(colour["alarm-ink"], colour["alarm-paper"]) >= 4.5
    page.close()


TEXT = ("ink", "muted", "accent", "good", "warn", "bad", "machine")
MARKS = ("hidden", *(f"a{i}" for i in range(8)))


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours written as #rrggbb (WCAG 2)."""
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
