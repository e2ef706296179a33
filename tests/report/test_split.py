"""The section on the split: what it says, and what its charts show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from leakgauge.audit.findings import read_findings
from leakgauge.audit.questions.split_records import read_plan, save_plan
from leakgauge.audit.wording import statements
from leakgauge.report.page import write
from leakgauge.report.sections import split
from leakgauge.report.sections.split import MOST_SHOWN, cut_chart, cut_cost_chart


def context(folder: Path) -> dict[str, Any]:
    return split.section(folder, statements(read_findings(folder))[2])


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory, scan_into) -> Path:
    folder = tmp_path_factory.mktemp("edge-camera")
    scan_into(folder)
    return folder


def test_the_page_says_what_was_found(scanned):
    page = write(scanned).read_text().replace("<wbr>", "")
    assert "<h1>Scan of edge-camera" in page
    assert (
        page.count(
            "At stage3.pool or deeper. There the best attack (decoder) leaves 42 % of the image variance unexplained"
        )
        == 2
    )
    assert "note &lt;one&gt;" in page
    assert "no score: the features hold &lt;NaN&gt;" in page
    assert "&gt; image, JPEG" in page
    assert "stage2.&lt;pool&gt;" in page
    assert 'id="case-1"' not in page
    for wrong in ("nan", "None", "Undefined"):
        assert f">{wrong}<" not in page


def test_the_better_attack_is_shown(scanned):
    rows = context(scanned)["rows"]
    assert rows[3]["strip"]["by"] == "decoder, 12 epochs"
    assert rows[3]["decoder"] == "0.420"
    assert rows[0]["strip"]["by"] == "ridge"
    assert rows[2]["strip"] is None
    assert [row["recommended"] for row in rows] == [False, False, False, True, False]


def test_an_unfinished_scan(tmp_path, scan_into):
    scan_into(tmp_path, finished=False)
    page = write(tmp_path).read_text()
    assert page.count("not finished: 5 of 5 cuts are done. Resume it with leakgauge scan --resume.") == 2


def test_an_unfinished_scan_of_an_audit_is_resumed_with_the_audit(tmp_path, scan_into):
    scan_into(tmp_path, finished=False)
    plan = read_plan(tmp_path)
    save_plan(tmp_path, replace(plan, audited=True))
    assert "Resume it with leakgauge audit --resume." in write(tmp_path).read_text()


def test_many_cuts_show_some_pictures_and_all_rows(tmp_path, scan_into):
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
    assert "Cuts 1 to 2 leak. The threshold of 0.4 held from cut 4 on." in str(found["curve"])
    assert "On the Pareto front: 1 stem.relu, 4 stage3.pool." in str(found["pareto"])


def test_the_zones_begin_and_end_at_their_cuts(scanned):
    root = ElementTree.fromstring(str(context(scanned)["curve"]))
    zones = {e.get("class"): e for e in root.iter("rect")}
    numbers = {e.text: float(e.get("x")) for e in root.iter("text") if e.text in list("12345")}
    leaks, holds = zones["zone-leaks"], zones["zone-holds"]
    end = float(leaks.get("x")) + float(leaks.get("width"))
    assert numbers["2"] < end < numbers["3"]
    assert numbers["3"] < float(holds.get("x")) < numbers["4"]


def test_a_single_cut_can_be_drawn(tmp_path, scan_into):
    scan_into(tmp_path, names=["a", "b", "c", "d"], fvu=[0.1, 0.2, 0.3, 0.4])
    points = context(tmp_path)["rows"][:1]
    one = [points[0]["cut"]]
    drawn = cut_chart(one, threshold=0.2, class_mean=None, leaking=0, recommended=None, uid="u")
    ElementTree.fromstring(drawn)
    ElementTree.fromstring(cut_cost_chart(one, raw=9, jpeg=None, recommended=None, numbers="int8", uid="v"))
    assert "No cut held." in drawn
