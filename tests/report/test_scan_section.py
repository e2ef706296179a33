"""The scan's part of the report: what stands on the page, and how it looks in a real browser."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from leakgauge.audit import scan_records as store
from leakgauge.audit.scan_records import DECODER, RIDGE, Conclusion, CutRecord, ScanPlan
from leakgauge.report.html import write
from leakgauge.report.scan_figures import leakage_svg, pareto_svg
from leakgauge.report.scan_section import MOST_SHOWN, context

NAMES = ["stem.relu", "stage1.a_block_with_quite_a_long_name.pool", "stage2.<pool>", "stage3.pool", "head"]
RATIOS = """() => {
  const parts = c => c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  const light = c => { const [r, g, b] = parts(c); return .2126 * r + .7152 * g + .0722 * b; };
  return [...document.querySelectorAll('.cuts .recommended > *, .cuts .recommended small, .cuts .recommended .bound')].map(e => {
    const a = light(getComputedStyle(e).color), b = light(getComputedStyle(e.closest('th, td')).backgroundColor);
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  });
}"""
RIDGE_FVU = [0.04, 0.2, math.nan, 0.45, 0.7]


def strip(folder: Path, name: str, seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 4 * 9 - 1, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name)
    return name


def scan_into(folder: Path, *, names: list[str] = NAMES, fvu: list[float] = RIDGE_FVU, finished: bool = True) -> None:
    rng = np.random.default_rng(0)
    cuts = tuple(
        {
            "name": n,
            "shape": [8, 4, 4],
            "bytes": 4000 // (i + 1),
            "edge_flops": 1000000 * i,
            "edge_share": i / len(names),
        }
        for i, n in enumerate(names)
    )
    plan = ScanPlan(
        case={"model": "vgg", "data": "fashion", "defenses": [], "seed": 0},
        cuts=cuts, threshold=0.4, epochs=12, budget=None, require="", numbers="fp32", raw_bytes=1200, jpeg_bytes=900.0,
        auxiliary=80, tested=20, traced="torch.export", labels=tuple(i % 12 for i in range(30)),
        truth=strip(folder, "truth.png", 0), shown=4, versions={"torch": "2"}, command="leakgauge scan vgg --seed 0",
    )  # fmt: skip
    store.save_plan(folder, plan)
    for i, (name, value) in enumerate(zip(names, fvu, strict=True)):
        refused = math.isnan(value)
        risk = {"refusal": "the features hold <NaN>", "seconds": 1.0} if refused else {
            "fvu": value, "fvu_low": value - 0.02, "fvu_high": value + 0.02, "ssim": 0.5, "reidentified": 0.5,
            "accuracy": 0.9, "within": 0.5, "effective_rank": 12.0, "seconds": 1.0,
        }  # fmt: skip
        places = () if refused else tuple((float(a), float(b)) for a, b in rng.random((30, 2)).round(3))
        picture = "" if refused else strip(folder, f"{i}.png", i)
        store.append(folder, CutRecord(name, RIDGE, 0, risk, picture, places))
    for epochs, value in ((1, 0.9), (12, 0.42)):
        risk = {"fvu": value, "seconds": 1.0}
        store.append(folder, CutRecord(names[3], DECODER, epochs, risk, strip(folder, f"d{epochs}.png", 9)))
    if finished:
        best = (0.04, 0.2, 0.42, 0.42, 0.7) if names is NAMES else tuple(fvu)
        line = tuple(0.04 + 0.66 * i / (len(names) - 1) for i in range(len(names)))
        found = Conclusion(
            names[3], names[1], True, f"Recommended cut: {names[3]}, which keeps an FVU of 0.42.", "t", "b",
            (names[0], names[3]), best, line, names[2], 0.63, 13, 60, ("note <one>",),
        )  # fmt: skip
        store.save_conclusion(folder, found)


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edge-camera")
    scan_into(folder)
    return folder


def test_a_folder_without_a_scan(tmp_path):
    assert context(tmp_path) is None


def test_the_page_says_what_was_found(scanned):
    page = write(scanned).read_text().replace("<wbr>", "")
    assert "<h1>Scan of edge-camera" in page
    assert "Recommended cut: stage3.pool, which keeps an FVU of 0.42." in page
    assert "note &lt;one&gt;" in page
    assert "no score: the features hold &lt;NaN&gt;" in page
    assert "&gt; image, JPEG" in page
    assert "stage2.&lt;pool&gt;" in page
    assert "The set-ups one by one" not in page
    for wrong in ("nan", "None", "Undefined"):
        assert f">{wrong}<" not in page


def test_the_better_attack_is_shown(scanned):
    rows = context(scanned)["rows"]
    assert rows[3]["strip"]["by"] == "decoder, 12 epochs"
    assert rows[3]["decoder"] == "0.420"
    assert rows[0]["strip"]["by"] == "ridge"
    assert rows[2]["strip"] is None
    assert [row["recommended"] for row in rows] == [False, False, False, True, False]


def test_an_unfinished_scan(tmp_path):
    scan_into(tmp_path, finished=False)
    page = write(tmp_path).read_text()
    assert "not finished: 5 of 5 cuts are done" in page


def test_many_cuts_show_some_pictures_and_all_rows(tmp_path):
    names = [f"block{i}" for i in range(40)]
    scan_into(tmp_path, names=names, fvu=[0.01 + i / 50 for i in range(40)])
    found = context(tmp_path)
    assert len(found["rows"]) == 40
    assert len(found["maps"]) <= MOST_SHOWN + 1
    assert 3 in found["pictured"]


def test_figures_are_well_formed_and_tell_what_they_show(scanned):
    found = context(scanned)
    for svg in (found["curve"], found["pareto"], *(m["svg"] for m in found["maps"] if m["svg"])):
        root = ElementTree.fromstring(str(svg))
        assert root.find("title").text
        assert root.find("desc").text
        assert "nan" not in "".join(v for e in root.iter() for k, v in e.attrib.items() if k not in ("class", "id"))
    assert "Cuts 1 to 2 leak. From cut 4 on the threshold of 0.4 was kept." in str(found["curve"])
    assert "On the Pareto front: 1 stem.relu, 4 stage3.pool." in str(found["pareto"])


def test_the_zones_begin_and_end_at_their_cuts(scanned):
    root = ElementTree.fromstring(str(context(scanned)["curve"]))
    zones = {e.get("class"): e for e in root.iter("rect")}
    numbers = {e.text: float(e.get("x")) for e in root.iter("text") if e.text in list("12345")}
    leaks, holds = zones["zone-leaks"], zones["zone-holds"]
    end = float(leaks.get("x")) + float(leaks.get("width"))
    assert numbers["2"] < end < numbers["3"]
    assert numbers["3"] < float(holds.get("x")) < numbers["4"]


def test_a_single_cut_can_be_drawn(tmp_path):
    scan_into(tmp_path, names=["a", "b", "c", "d"], fvu=[0.1, 0.2, 0.3, 0.4])
    points = context(tmp_path)["rows"][:1]
    one = [points[0]["point"]]
    drawn = leakage_svg(one, threshold=0.2, class_mean=None, leaking=0, recommended=None, uid="u")
    ElementTree.fromstring(drawn)
    ElementTree.fromstring(pareto_svg(one, raw=9, jpeg=None, recommended=None, numbers="int8", uid="v"))
    assert "No cut held." in drawn


# --- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture
def visit(browser, scanned):
    contexts = []

    def opened(width: int = 1280, scheme: str = "light"):
        made = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(made)
        page = made.new_page()
        page.goto(write(scanned).as_uri())
        return page

    yield opened
    for made in contexts:
        made.close()


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_page_does_not_scroll_sideways(visit, width: int):
    page = visit(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    spills = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll, pre, svg') &&
        e.getBoundingClientRect().right > innerWidth + 1).map(e => e.className).slice(0, 3)"""
    assert page.evaluate(spills) == []


def test_pictures_load_and_everything_is_described(visit):
    page = visit()
    assert page.evaluate("document.images.length") == 5
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)")
    assert page.evaluate(
        "[...document.querySelectorAll('svg')].every(s => s.querySelector('title') && s.querySelector('desc'))"
    )
    assert page.evaluate("[...document.querySelectorAll('th')].every(t => ['row', 'col'].includes(t.scope))")
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_in_the_highlighted_row_can_be_read(visit, scheme: str):
    page = visit(1280, scheme)
    ratios = page.evaluate(RATIOS)
    assert len(ratios) > 10
    assert min(ratios) >= 4.5


def test_prints_on_white(visit, tmp_path: Path):
    page = visit(scheme="dark")
    assert page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True).startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
