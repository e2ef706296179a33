"""What every page owes its reader: nothing sticks out, and it can be understood without being seen."""

from __future__ import annotations

from itertools import pairwise

OPEN_ALL = "document.querySelectorAll('details').forEach(d => d.open = true)"
SPILLS = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, pre, svg') && e.checkVisibility() &&
    e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 90)).slice(0, 3)"""


def assert_semantic(page) -> None:
    """Headings without gaps, and words for every picture, table and control."""
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.evaluate("document.documentElement.lang") == "en"
    for claim in (
        "[...document.querySelectorAll('th')].every(t => ['row', 'col'].includes(t.scope))",
        "[...document.querySelectorAll('table')].every(t => t.caption && t.caption.textContent.trim())",
        "[...document.querySelectorAll('svg')].every(s => s.querySelector('title').textContent && s.querySelector('desc').textContent)",
        "[...document.querySelectorAll('input')].every(i => i.labels.length === 1)",
        "[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)",
    ):
        assert page.evaluate(claim), claim
