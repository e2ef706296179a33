"""The live page in a real browser, while a training runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leakgauge.audit.questions.training import MonitorRun
from leakgauge.cli.monitor.live import LivePage


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_live_page_follows_the_training_to_its_end(visit, monitored, contrast, width, scheme):
    whole = monitored()
    with LivePage(0) as live:
        page, log = visit(live.address, width, scheme)
        page.wait_for_selector("#training-run")
        assert "Waiting for the first report" in page.inner_text("#section")
        assert page.locator("svg.chart").count() == 0
        live.show(MonitorRun(about=whole.about, reports=whole.reports[:2]))
        page.locator("#state", has_text="step 50 · alarm silent").wait_for()
        page.evaluate("document.getElementById('training-curve').open = true")
        live.show(replace(whole, end={}))
        page.locator("#state", has_text="ALARM at step 60").wait_for()
        headings = [h.upper() for h in page.locator("h4").all_inner_texts()]
        for heading in ("Leakage estimate with its interval", "The critic and its controls", "Leakage by layer"):
            assert heading.upper() in headings
        assert page.evaluate("document.getElementById('training-curve').open")  # what was open stays open
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(contrast)["ratio"] >= 4.5
        live.show(whole)
        page.wait_for_selector("body[data-ended=finished]")
    page.wait_for_timeout(1200)  # longer than a pause between two looks: it has stopped asking
    assert {u for u in log.requests if not u.startswith("data:")} == {live.address, live.address + "state.json"}
    assert log.complaints == []


def test_no_script_of_a_run_can_be_smuggled_into_the_live_page(visit, monitored):
    evil = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    run = monitored(name=evil)
    with LivePage(0) as live:
        live.show(replace(run, about={**run.about, "model": evil, "training": evil}, end={}))
        page, log = visit(live.address)
        page.wait_for_selector("svg.chart")
        assert page.locator("#section img, #section script").count() == 0
        assert "onerror" in page.inner_text("#training-run-h")
        assert page.title() != "broken"
        assert log.complaints == []


def test_a_server_that_went_away_is_said(visit, monitored):
    with LivePage(0) as live:
        live.show(replace(monitored(), end={}))
        page, _ = visit(live.address)
        page.wait_for_selector("svg.chart")
    page.locator("#state", has_text="cannot be reached").wait_for()
    assert page.locator("svg.chart").count() == 6
