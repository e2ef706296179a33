"""The report in a real browser: it renders offline, fits a phone, prints, and can be read in light and in dark."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from leakgauge.report.html import write


@pytest.fixture(scope="module")
def address(run_folder: Path) -> str:
    return write(run_folder).as_uri()


@pytest.fixture
def visit(browser, address: str):
    """Opens the report offline at a width and in a colour scheme, and notes what the browser complains about."""
    contexts = []

    def opened(width: int = 1280, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        log = SimpleNamespace(requests=[], complaints=[])
        page.on("request", lambda r: log.requests.append(r.url))
        page.on("console", lambda m: log.complaints.append(m.text))
        page.on("pageerror", lambda e: log.complaints.append(str(e)))
        page.goto(address)
        return page, log

    yield opened
    for context in contexts:
        context.close()


def test_renders_offline_without_requests_or_complaints(visit, address: str):
    page, log = visit()
    assert page.locator("h1").inner_text() == "Audit of " + address.split("/")[-2]
    assert page.locator("h2").all_inner_texts() == ["VERDICT", "Overview", "The set-ups one by one"]
    assert page.locator("article.case").count() == 8
    assert page.locator("table.overview tbody tr").count() == 8
    assert page.locator("svg.chart").count() == 11  # six bar charts, and five curves: the closed form has none
    assert [u for u in log.requests if not u.startswith("data:")] == [address]
    assert log.complaints == []


def test_every_picture_is_loaded_and_described(visit):
    page, _ = visit()
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    broken = (
        "[...document.images].filter(i => !(i.complete && i.naturalWidth > 0 && i.alt && i.clientWidth > 0)).length"
    )
    assert page.evaluate("document.images.length") > 40
    assert page.evaluate(broken) == 0


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_page_does_not_scroll_sideways(visit, width: int):
    page, _ = visit(width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.body.scrollWidth") <= width
    spills = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg') &&
        e.getBoundingClientRect().right > innerWidth + 1).map(e => e.className).slice(0, 3)"""
    assert page.evaluate(spills) == []


def test_overview_fits_a_desk_and_scrolls_in_its_own_box_on_a_phone(visit):
    beyond = "(() => { const s = document.querySelector('.scroll'); return s.scrollWidth - s.clientWidth })()"
    page, _ = visit(1280)
    assert page.evaluate(beyond) <= 0
    page, _ = visit(390)
    assert page.evaluate(beyond) > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_all_text_has_contrast(visit, contrast: str, scheme: str, width: int):
    page, _ = visit(width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    worst = page.evaluate(contrast)
    assert worst["seen"] > 300
    assert worst["ratio"] >= 4.5, worst
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    assert dark == (scheme == "dark")


def test_keyboard_reaches_skip_link_tables_and_details(visit):
    page, _ = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "scroll"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.locator("details.json summary").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('details.json').open")


def test_structure_is_semantic(visit):
    page, _ = visit()
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.evaluate("[...document.querySelectorAll('th')].every(t => ['row', 'col'].includes(t.scope))")
    assert page.evaluate("[...document.querySelectorAll('svg.chart')].every(s => s.querySelector('title, desc'))")
    assert page.evaluate("document.documentElement.lang") == "en"


def test_prints_on_white_with_details_closed(visit, contrast: str, tmp_path: Path):
    page, _ = visit(scheme="dark")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    data = page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    assert data.startswith(b"%PDF")
    assert 8 < data.count(b"/Type /Page\n") < 30
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("details.json pre").first.is_hidden()
    assert page.evaluate(contrast)["ratio"] >= 4.5
