"""The page of a comparison: everything is on it, nothing can break out of it, and words say what colours do."""

from __future__ import annotations

import re
from dataclasses import replace

from leakgauge.audit.case import Case
from leakgauge.audit.compare import CasePair, Comparison, Difference, OtherChange
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import Outcome
from leakgauge.report.compare_page import render
from tests.made import verdict

HOSTILE = "<script>alert('x')</script>\"&"


def record(outcome: Outcome | None) -> Record:
    return Record(
        key="k", status="done" if outcome else "error", case=Case(name=HOSTILE), attack="", channel="", defenses=(), versions={},
        seconds=1.0, peak_bytes=0, verdict=None if outcome is None else verdict(outcome), reason="" if outcome else HOSTILE,
    )  # fmt: skip


FOUND = Comparison(
    before=f"runs/{HOSTILE}",
    after="runs/new",
    cases=(
        CasePair(
            HOSTILE, record(Outcome.PARTIAL), record(Outcome.FEASIBLE), "worse",
            (Difference("ssim", 0.4, 0.6, False, f"within {HOSTILE}"), Difference("psnr", 10.0, float("inf"), True)),
            notes=(HOSTILE,),
        ),
        CasePair("lost", record(Outcome.PARTIAL), record(None), "lost", (Difference("ssim", 0.4, None), Difference("psnr", 1.0, None))),
    ),
    changes=(OtherChange("split", HOSTILE, "1", HOSTILE, "worse", HOSTILE),),
    only_before=(HOSTILE,),
    settings=(("seed", HOSTILE, "1"),),
    warnings=(HOSTILE,),
)  # fmt: skip


def test_names_are_escaped_everywhere():
    page = render(FOUND)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 12


def test_words_say_what_colours_do():
    page = render(FOUND)
    assert page.count(">WORSE</span>") == 3  # in the tally, the set-up and the cut
    assert ">NOT JUDGED ANY MORE</span>" in page
    assert "within the spread" in page
    assert "0.400&nbsp;→&nbsp;0.600" in page
    assert "+0.200" in page
    assert "10.0&nbsp;→&nbsp;∞" in page


def test_it_needs_nothing_from_outside():
    page = render(FOUND)
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", page)
    assert "default-src 'none'" in page


def test_parts_that_are_empty_are_left_out():
    empty = replace(FOUND, cases=(), changes=(), only_before=(), settings=(), warnings=())
    page = render(empty)
    assert "nothing in common" in page
    assert "<table" not in page
    assert 'id="only"' not in page
