"""The report in a real browser: it renders offline, fits a phone, prints, and can be read by eye, keyboard and screen reader."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leakgauge.audit.records import read
from leakgauge.report.page import write
from tests.report.browser.fitness import OPEN_ALL, SPILLS, assert_semantic

STRAYS = """[...document.querySelectorAll('svg.chart')].flatMap(s => { const box = s.getBoundingClientRect();
    return [...s.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();
        return b.left < box.left - 2 || b.right > box.right + 2 || b.bottom > box.bottom + 2; }).map(t => t.textContent); })"""
PAPER, DARK, LIGHT = "rgb(255, 255, 255)", "rgb(18, 22, 28)", "rgb(246, 245, 242)"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def address(whole_folder: Path) -> str:
    return write(whole_folder).as_uri()


@pytest.fixture(scope="module")
def shared(visit, address: str):
    """One page for all tests that leave it as they found it."""
    return visit(address)[0]


@pytest.fixture
def page(shared):
    shared.set_viewport_size({"width": 1280, "height": 900})
    shared.emulate_media(media="screen", color_scheme="light")
    return shared


def test_all_sections_are_there_without_requests_or_complaints(visit, address: str):
    page, log = visit(address)
    assert page.locator("h1").inner_text() == "Audit of " + address.split("/")[-2]
    assert page.locator("h2").all_inner_texts() == [
        "In short",
        "What could be reconstructed from updates?",
        "How does leakage move during training?",
        "Where may the network be cut?",
        "What do defenses buy?",
        "Appendix",
    ]
    assert page.locator("article.case").count() == 8 + 1
    assert page.locator("table.overview:not(.cuts) tbody tr").count() == 8
    assert page.locator("svg.chart").count() == 11 + 6 + 2 + 4  # set-ups, training, cuts, maps
    page.locator("nav a", has_text="Split").click()
    page.locator("#colours").click()
    assert {u for u in log.requests if not u.startswith("data:")} <= {address, f"{address}#split"}
    assert log.complaints == []
    page.close()


def test_the_contents_lead_everywhere_and_tell_what_is_missing(page):
    links = page.locator("nav.contents a").evaluate_all("found => found.map(a => [a.textContent, a.hash])")
    assert [words for words, _ in links] == [
        "In short",
        "Updates",
        "Training",
        "Split",
        "Defenses",
        "Records",
        "Methods",
    ]
    assert page.locator("nav.contents li.open").all_inner_texts() == ["Defenses not asked"]
    assert "nothing is known about it" in page.inner_text("#defenses")
    for _, target in links:
        page.locator(f'nav.contents a[href="{target}"]').click()
        top = page.evaluate(f"document.querySelector('{target}').getBoundingClientRect().top")
        end = page.evaluate("Math.abs(scrollY + innerHeight - document.documentElement.scrollHeight) < 2")
        assert -2 <= top < 120 or end, target  # below the bar that stays, or as high as the page allows
    dead = "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.querySelector(a.hash)).length"
    assert page.evaluate(dead) == 0


def test_the_page_fits_every_width(page):
    page.evaluate(OPEN_ALL)
    for width in (320, 390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(SPILLS) == [], width
        assert page.evaluate(STRAYS) == [], width
        beyond = page.evaluate(
            "[...document.querySelectorAll('.wide .scroll')].map(s => s.scrollWidth > s.clientWidth + 1)"
        )
        assert beyond == ([False] * 2 if width == 1280 else [True] * 2)  # wide tables scroll in a box of their own


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast(page, contrast: str, scheme: str):
    page.evaluate(OPEN_ALL)
    page.emulate_media(color_scheme=scheme)
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        worst = page.evaluate(contrast)
        assert worst["seen"] > 900
        assert worst["ratio"] >= 4.5, worst
    assert page.evaluate(BACKGROUND) == (DARK if scheme == "dark" else LIGHT)


def test_the_button_changes_the_colours_and_nothing_remembers_it(visit, address: str, contrast: str):
    page, _ = visit(address)
    button = page.locator("#colours")
    for before, label, after in ((LIGHT, "Dark colours", DARK), (DARK, "Light colours", LIGHT)):
        assert (page.evaluate(BACKGROUND), button.inner_text()) == (before, label)
        button.focus()
        page.keyboard.press("Enter")
        assert page.evaluate(BACKGROUND) == after
        assert page.evaluate(contrast)["ratio"] >= 4.5
    button.click()
    page.reload()
    assert page.evaluate(BACKGROUND) == LIGHT
    assert page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    page.close()


def test_the_keyboard_reaches_everything_that_can_be_operated(visit, address: str):
    page, _ = visit(address)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    met = []
    while len(met) < 60 and met[-1:] != ["case-1-cover"]:
        page.keyboard.press("Tab")
        met.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert met.count("sort") == 12
    assert met.index("scroll") < met.index("sort") < met.index("case-1-cover")
    for selector in ("#case-2-step", "#case-2-cover", ".cuts .sort", ".record summary"):
        page.locator(selector).first.focus()
        assert page.evaluate(f"document.activeElement === document.querySelector('{selector}')")
    page.keyboard.press("Enter")
    assert page.locator(".record").first.get_attribute("open") is not None
    page.close()


def seen(page, selector: str, size: tuple[int, int]) -> np.ndarray:
    shot = Image.open(io.BytesIO(page.locator(selector).screenshot()))
    return np.asarray(shot.convert("RGB").resize(size, Image.Resampling.BOX), dtype=float)


def test_the_slider_lays_the_original_over_every_step(page, whole_folder: Path):
    record = read(whole_folder)[1]  # four images, eight frames
    step, cover = page.locator("#case-2-step"), page.locator("#case-2-cover")
    name = "#case-2 .stage"

    def file(picture: str) -> np.ndarray:
        return np.asarray(Image.open(whole_folder / picture).convert("RGB"), dtype=float)

    truth, last = file(record.pictures["truth"]), file(record.progress[-1].picture)
    size = (truth.shape[1], truth.shape[0])
    assert step.get_attribute("aria-valuetext") == "step 4800, frame 8 of 8"
    assert cover.get_attribute("aria-valuetext") == "original on the left 50 percent of each image"
    half = seen(page, name, size)
    inner = slice(33 + 3, 33 + 13), slice(33 + 19, 33 + 29)  # left and right part of the second image
    assert np.abs(half - truth)[:, inner[0]].mean() < 6 < np.abs(half - last)[:, inner[0]].mean()
    assert np.abs(half - last)[:, inner[1]].mean() < 6 < np.abs(half - truth)[:, inner[1]].mean()
    cover.focus()
    page.keyboard.press("Home")
    assert np.abs(seen(page, name, size) - last).mean() < 6
    step.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    frame = record.progress[-3]
    assert step.get_attribute("aria-valuetext") == f"step {frame.step}, frame 6 of 8"
    assert page.locator("#case-2-step + output").inner_text() == f"step {frame.step}"
    assert np.abs(seen(page, name, size) - file(frame.picture)).mean() < 6
    assert f"step {frame.step}" in page.locator(f"{name} img").first.get_attribute("alt")
    cover.focus()
    page.keyboard.press("End")
    assert np.abs(seen(page, name, size) - truth).mean() < 6
    assert page.locator("#case-1-step").count() == 0  # a closed form has no steps, but can be compared
    assert page.locator("#case-1-cover").is_visible()


def test_tables_sort_by_number_with_infinite_first_or_last_and_missing_always_last(page, whole_folder: Path):
    records = read(whole_folder)
    value = {n: r.scores.mean("psnr") for n, r in enumerate(records, start=1) if r.status == "done"}
    missing = [n for n in range(1, 9) if n not in value]
    table = page.locator("table.overview:not(.cuts)")
    head = table.locator("th", has_text="PSNR").first

    def order() -> list[int]:
        names = table.locator("tbody th a:first-child").all_inner_texts()
        return [int(name.split(".")[0]) for name in names]

    rising = sorted(value, key=lambda n: value[n])
    for expected, way in (
        (rising + missing, "ascending"),
        (rising[::-1] + missing, "descending"),
        (list(range(1, 9)), None),
    ):
        head.locator("button").focus()
        page.keyboard.press("Enter")
        assert order() == expected
        assert head.get_attribute("aria-sort") == way
        assert table.locator("th[aria-sort]").count() == (way is not None)
    table.locator("button", has_text="Batch").click()
    assert order()[-1] == 8  # 64 images
    table.locator("button", has_text="Set-up").click()
    assert order() == list(range(1, 9))
    cuts = page.locator("table.cuts")
    cuts.locator("button", has_text="Bytes").click()
    sent = [int(text.replace("\u202f", "").split()[0]) for text in cuts.locator("td:nth-child(3)").all_inner_texts()]
    assert sent == sorted(sent)
    cuts.locator("button", has_text="FVU, regression").click()
    assert cuts.locator("tbody tr").last.inner_text().startswith("3.")  # refused
    assert cuts.locator("th[aria-sort]").count() == 1


def test_every_row_leads_to_its_record_and_its_command(page, whole_folder: Path):
    for rows, count in (("table.overview:not(.cuts)", 8), ("table.cuts", 5), ("#training-curve table", 15)):
        links = page.locator(f"{rows} tbody tr th a:last-child").evaluate_all("found => found.map(a => a.hash)")
        assert len(set(links)) == count
        assert all(
            page.evaluate(f"document.querySelector('{link} pre.command').textContent.startsWith('leakgauge ')")
            for link in links
        )
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = false)")
    page.locator("table.overview:not(.cuts) tbody tr", has_text="1. LeNet").locator("a.source").click()
    box = page.locator("#record-case-1")
    assert box.is_visible()
    assert 0 <= box.bounding_box()["y"] < 400
    first = (whole_folder / "records.jsonl").read_text("utf-8").splitlines()[0]
    assert json.loads(box.locator("pre.json").inner_text()) == json.loads(first)
    last = json.loads(page.locator("#record-training-750 pre.json").text_content())
    assert last["step"] == 750
    both = json.loads(page.locator("#record-cut-4 pre.json").text_content())
    assert [(r["attack"], r["epochs"]) for r in both] == [("ridge", 0), ("decoder", 1), ("decoder", 12)]


def test_without_scripts_all_frames_are_shown_and_nothing_looks_operable(visit, address: str):
    page, _ = visit(address, scripts=False)
    assert page.locator("#case-2 .frames img").count() == 8
    assert all(one.is_visible() for one in page.locator("#case-2 .frames img").all())
    assert page.locator(".wipe").first.is_hidden()
    assert page.locator("#colours").is_hidden()
    assert page.locator(".sort").count() == 0
    page.close()


def test_no_other_script_can_run(visit, address: str):
    page, log = visit(address)
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.broken = 1'}))")
    assert page.evaluate("window.broken === undefined")
    assert len(log.complaints) == 1
    assert "Content Security Policy" in log.complaints[0]
    page.close()


def test_structure_is_semantic(page):
    assert_semantic(page)
    assert page.evaluate("document.images.length") > 60


def test_prints_on_white_with_everything_unfolded(visit, address: str, contrast: str):
    page, _ = visit(address, scheme="dark")
    page.locator("#colours").click()
    page.locator("#colours").click()  # dark by choice: paper is white all the same
    pages = page.pdf(prefer_css_page_size=True).count(b"/Type /Page\n")
    assert 15 < pages < 45
    assert page.locator("details[open]").count() == 0  # what was opened for the paper is closed again
    page.emulate_media(media="print")
    assert page.evaluate(BACKGROUND) == PAPER
    assert page.evaluate(contrast)["ratio"] >= 4.5
    folded = "[...document.querySelectorAll('details')].filter(d => d.lastElementChild.getBoundingClientRect().height < 5).length"
    assert page.evaluate(folded) == 0
    for selector, shown in (("#case-2 .frames img", True), (".wipe", False), ("nav.contents", False)):
        assert page.locator(selector).first.is_visible() == shown
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(s => getComputedStyle(s).overflowX === 'visible')"
    )
    page.close()
