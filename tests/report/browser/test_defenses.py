"""The page on defenses in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakgauge.report.page import write
from tests.report.browser.fitness import OPEN_ALL, SPILLS, assert_semantic


@pytest.fixture
def page_of(visit, guarded_folder: Path):
    """Opens the page, which may not ask a network for anything."""
    address, opened = write(guarded_folder).as_uri(), []

    def page(**options):
        opened.append(visit(address, **options))
        return opened[-1][0]

    yield page
    for shown, log in opened:
        shown.close()
        assert {u for u in log.requests if not u.startswith("data:")} == {address}


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_page_does_not_scroll_sideways(page_of, width: int):
    page = page_of(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(SPILLS) == []


def test_everything_is_described(page_of):
    page = page_of()
    assert page.evaluate("document.images.length") == 7  # the original, and what the attack made of it in six trials
    assert_semantic(page)
    assert page.evaluate("[...document.querySelectorAll('tbody a')].every(a => document.querySelector(a.hash))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(page_of, scheme: str, contrast: str):
    page = page_of(scheme=scheme)
    page.evaluate(OPEN_ALL)
    assert page.evaluate(contrast)["ratio"] >= 4.5
