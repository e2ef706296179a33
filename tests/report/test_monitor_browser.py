"""The monitor's pages in a real browser: its section of the report, and the live page while a training runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from leakgauge.audit import monitor_records
from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.monitor_command.server import LivePage
from leakgauge.report.html import write


@pytest.fixture
def opened(browser):
    """Opens an address at a width and in a colour scheme, and notes requests and complaints."""
    contexts = []

    def visit(address: str, width: int = 1280, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        log = SimpleNamespace(requests=[], complaints=[])
        page.on("request", lambda r: log.requests.append(r.url))
        page.on("console", lambda m: log.complaints.append(m.text))
        page.on("pageerror", lambda e: log.complaints.append(str(e)))
        page.goto(address)
        return page, log

    yield visit
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(monitored, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("watched")
    run = monitored(name="encoder.layers.11.attention.output.dense.weight")
    monitor_records.append(folder, "run", run.about)
    for line in run.reports:
        monitor_records.append(folder, "report", line)
    monitor_records.append(folder, "end", run.end)
    return write(folder).as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_section_fits_and_can_be_read(opened, report, contrast, width, scheme):
    page, log = opened(report, width, scheme)
    assert page.locator("svg.chart").count() == 6
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    worst = page.evaluate(contrast)
    assert worst["seen"] > 80
    assert worst["ratio"] >= 4.5, worst
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.evaluate("[...document.querySelectorAll('svg.chart')].every(s => s.querySelector('desc').textContent)")
    assert [u for u in log.requests if not u.startswith("data:")] == [report]
    assert log.complaints == []


def test_no_word_of_a_figure_leaves_it(opened, report):
    page, _ = opened(report, 390)
    outside = """[...document.querySelectorAll('svg.chart')].flatMap(s => { const box = s.getBoundingClientRect();
        return [...s.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();
            return b.left < box.left - 2 || b.right > box.right + 2 || b.bottom > box.bottom + 2; })
            .map(t => t.textContent); })"""
    assert page.evaluate(outside) == []


def test_the_section_prints(opened, report, contrast, tmp_path):
    page, _ = opened(report, scheme="dark")
    assert page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True).startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(contrast)["ratio"] >= 4.5


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_live_page_follows_the_training_to_its_end(opened, monitored, contrast, width, scheme):
    whole = monitored()
    with LivePage(0) as live:
        page, log = opened(live.address, width, scheme)
        page.wait_for_selector("#monitor-run")
        assert "Nothing was measured yet" in page.inner_text("#section")
        assert page.locator("svg.chart").count() == 0
        live.show(MonitorRun(about=whole.about, reports=whole.reports[:2]))
        page.locator("#state", has_text="step 50 · alarm silent").wait_for()
        page.evaluate("document.getElementById('monitor-curve').open = true")
        live.show(replace(whole, end={}))
        page.locator("#state", has_text="ALARM at step 60").wait_for()
        headings = [h.upper() for h in page.locator("h4").all_inner_texts()]
        for heading in ("Leakage curve with its interval", "The critic beside its controls", "Which layer tells"):
            assert heading.upper() in headings
        assert page.evaluate("document.getElementById('monitor-curve').open")  # what was open stays open
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(contrast)["ratio"] >= 4.5
        live.show(whole)
        page.wait_for_selector("body[data-ended=finished]")
    page.wait_for_timeout(1200)  # longer than a pause between two looks: it has stopped asking
    assert {u for u in log.requests if not u.startswith("data:")} == {live.address, live.address + "state.json"}
    assert log.complaints == []


def test_no_script_of_a_run_can_be_smuggled_into_the_live_page(opened, monitored):
    evil = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    run = monitored(name=evil)
    with LivePage(0) as live:
        live.show(replace(run, about={**run.about, "model": evil, "training": evil}, end={}))
        page, log = opened(live.address)
        page.wait_for_selector("svg.chart")
        assert page.locator("#section img, #section script").count() == 0
        assert "onerror" in page.inner_text("#monitor-run-h")
        assert page.title() != "broken"
        assert log.complaints == []


def test_a_server_that_went_away_is_said(opened, monitored):
    with LivePage(0) as live:
        live.show(replace(monitored(), end={}))
        page, _ = opened(live.address)
        page.wait_for_selector("svg.chart")
    page.locator("#state", has_text="cannot be reached").wait_for()
    assert page.locator("svg.chart").count() == 6
