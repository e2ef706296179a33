"""The top of the report: answers first, a short list of what to do with links that lead somewhere, and the limits."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from leakgauge.audit import records
from leakgauge.audit.advice import SHOWN, advise
from leakgauge.audit.findings import Findings, Unanswered, read_findings
from leakgauge.audit.wording import LIMITS
from leakgauge.report.page import write
from leakgauge.report.sections.summary import section
from leakgauge.report.templating import environment
from tests.report.made_training import store_monitored


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, eight_records, monitored, scan_into) -> Path:
    """A run with updates, a training and a scan of which no decoder was trained; defenses were not asked."""
    folder = tmp_path_factory.mktemp("whole")
    eight_records(folder)
    scan_into(folder)
    store_monitored(folder, monitored())
    write(folder)
    return folder


@pytest.fixture(scope="module")
def page(whole: Path) -> str:
    return (whole / "report.html").read_text(encoding="utf-8")


def first_of(page: str) -> str:
    (found,) = re.findall(r'<section class="summary".*?</section>', page, re.DOTALL)
    return found


def plain(markup: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", "", markup.replace("<wbr>", "")).replace("&#39;", "'").split())


def test_it_is_above_all_sections_and_answers_each_question_once(page: str):
    first = first_of(page)
    assert page.index('class="summary"') < page.index('<section class="question')
    assert re.findall(r'<dt><a href="#(\w+)">', first) == ["updates", "training", "split", "defenses"]
    assert "Not asked" in first


def test_every_link_leads_to_a_place_of_the_page(page: str):
    links = re.findall(r'href="#([^"]+)"', first_of(page))
    assert len(links) > 8
    assert set(links) <= set(re.findall(r'\sid="([^"]+)"', page))
    assert any(link.startswith("case-") for link in links)


def test_what_to_do_is_short_in_order_and_complete(page: str, whole: Path):
    first = plain(first_of(page))
    advice = advise(read_findings(whole))
    assert len(advice) > SHOWN
    places = [first.index(one.title) for one in advice]
    assert places == sorted(places)
    assert all(one.why in first for one in advice)
    folded = first_of(page)[first_of(page).index("<details") :]
    assert [one.title in plain(folded) for one in advice] == [number >= SHOWN for number in range(len(advice))]
    numbers = [int(n) for n in re.findall(r'<li value="(\d+)"', first_of(page))]
    assert numbers == list(range(1, len(advice) + 1))


def test_answers_have_assumptions_and_budget_and_the_limits_follow(page: str):
    first = plain(first_of(page))
    assert first.count("budget ") >= 3
    assert "diagnostic (upper bound) for the AUC" in first
    assert all(limit in first for limit in LIMITS)


def test_everything_from_records_is_escaped(tmp_path: Path, make):
    nasty = "<script>alert(1)</script> & co"
    made = make(tmp_path, "a", name=nasty)
    records.append(tmp_path, replace(made, case=replace(made.case, model=nasty)))
    first = first_of(write(tmp_path).read_text(encoding="utf-8"))
    assert "<script" not in first
    assert "&lt;script&gt;alert(1)" in first.replace("<wbr>", "")
    assert "& co" in plain(first).replace("&amp;", "&")


def test_a_run_that_says_nothing_shows_that():
    def shown(found: Findings) -> str:
        return environment().get_template("summary.html.j2").render(summary=section(found))

    text = shown(Findings(unanswered=(Unanswered("updates", "RuntimeError: <b>", failed=True),)))
    assert "No result" in text
    assert "RuntimeError: &lt;b&gt;" in text
    assert "Nothing follows from what was measured." in shown(Findings())
