"""The section on defenses: its statement, its table and its chart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from leakgauge.audit.findings import Defenses, defenses_of, read_findings
from leakgauge.audit.questions import defense_records as store
from leakgauge.audit.verdict import Verdict, Way
from leakgauge.audit.wording import defense_words, on_defenses, statements
from leakgauge.errors import BadInput
from leakgauge.report import charts
from leakgauge.report.charts import Mark
from leakgauge.report.page import write
from leakgauge.report.sections import defenses
from leakgauge.report.sections.defenses import defense_chart
from tests.made import FEASIBLE, INFEASIBLE, PARTIAL, verdict
from tests.report.made_defenses import NONE, RECORDS, STOPPED, store_defenses, tried


def context(folder: Path) -> dict[str, Any]:
    return defenses.section(store.read(folder), folder, statements(read_findings(folder))[3])


def test_a_folder_without_trials(tmp_path: Path):
    (tmp_path / store.FILE).touch()
    with pytest.raises(BadInput):
        write(tmp_path)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gaussian_noise:relative=0.5", ("Gaussian noise", "0.5 × gradient norm")),
        ("laplacian_noise:std=0.01", ("Laplacian noise", "deviation 0.01")),
        ("prune:fraction=0.99", ("Pruning", "99 % of entries")),
        ("quantize:bits=8", ("Quantisation", "8 bits")),
        ("clip:1.0", ("Clipping", "to norm 1")),
        ("withhold:head+norms", ("Withheld", "head+norms")),
        ("mask_channels:0.5,seed=3", ("Mask channels", "0.5,seed=3")),
        ("my_own", ("My own", "")),
    ],
)
def test_defenses_in_words(spec: str, words: tuple[str, str]):
    assert defense_words(spec) == words


def test_members_are_hidden_only_where_the_interval_reaches_guessing():
    held = [tried("prune:0.9", INFEASIBLE, 0.1, auc=0.51), tried("clip:1.0", INFEASIBLE, 0.1, auc=0.53)]
    found = defenses_of([NONE, *held])
    assert isinstance(found, Defenses)
    said = on_defenses(found).text
    assert "guessing under prune:0.9 (AUC 0.51)." in said
    assert "With clip:1.0 an attacker infers batch membership with an AUC of 0.53" in said


def test_the_page_says_what_was_found(guarded_folder: Path):
    page = write(guarded_folder).read_text().replace("<wbr>", "")
    assert "<h1>Audit of guarded" in page
    assert "from trials of 7 defenses." in " ".join(page.split())
    assert page.count("1 of 7 defenses made the attack infeasible") == 2  # at the top and in the section
    assert "The attack knows the defense." in page
    assert "not shared: &lt;head&gt;" in page
    assert "learned &lt;nothing&gt;" in page
    assert "cnn&lt;b&gt;" in page
    assert "after 60 steps of training from fresh weights" in page
    assert "3 of 8 trials are not drawn" in page
    for wrong in ("nan", "None", "Undefined", "−0.0"):
        assert f">{wrong}<" not in page


def test_rows_hold_values_with_their_intervals(guarded_folder):
    rows = context(guarded_folder)["rows"]
    assert [row["number"] for row in rows] == list(range(1, 9))
    assert rows[2]["auc"] == ("0.980", "0.960 to 1.000")
    assert rows[2]["accuracy"] == ("74.0", "72.0 to 76.0")
    assert rows[2]["cost"] == ("6.0", "4.0 to 8.0")
    assert rows[4]["cost"] == ("−0.4", "−2.4 to 1.6")
    assert rows[5]["outcome"].key == "refused"
    assert (rows[5]["seen"], rows[5]["cost"][0]) == ("–", "4.0")  # the training went through
    assert rows[6]["outcome"].key == "error"
    assert (rows[6]["auc"], rows[6]["accuracy"]) == (("–", ""), ("–", ""))
    assert [row["front"] for row in rows] == [False, False, True, True, True, False, False, False]


def test_the_picture_shows_the_measured_trials_in_their_places(guarded_folder):
    svg = ElementTree.fromstring(str(context(guarded_folder)["svg"]))
    told = svg.find("desc").text
    assert "3 noise 10 ×: SSIM 0.20, 6.0 points of accuracy lost, infeasible" in told
    assert told.endswith("On the Pareto front: 3 noise 10 ×, 4 pruning 90 %, 5 quantisation 4 bits.")
    marks = [e for e in svg.iter() if (e.get("class") or "").startswith("mark ")]
    shapes = {e.get("class").split()[1]: e.tag for e in marks}
    assert shapes == {"feasible": "path", "partial": "path", "infeasible_within_budget": "circle"}
    assert len(marks) == 3 + 5  # the legend, then the trials
    (stopped,) = [e for e in marks if e.tag == "circle" and float(e.get("cy")) > 40]
    ticks = {e.text: float(e.get("y")) - 4 for e in svg.iter("text") if e.get("text-anchor") == "end"}
    assert float(stopped.get("cy")) == pytest.approx(ticks["0.2"], abs=0.2)
    across = {e.text: float(e.get("x")) for e in svg.iter("text") if e.get("text-anchor") == "middle"}
    assert float(stopped.get("cx")) == pytest.approx(across["6"], abs=0.2)
    (front,) = [e.get("d") for e in svg.iter("path") if e.get("class") == "front"]
    assert front.count("H") == front.count("V") == 2
    assert "nan" not in ElementTree.tostring(svg, encoding="unicode")


def seen_by(way: Way) -> Verdict:
    return replace(verdict(PARTIAL), glimpsed={way: 1})


def test_where_the_layout_shows_most_the_layout_is_shown(tmp_path: Path):
    plain = replace(NONE, verdict=seen_by(Way.LAYOUT))
    for one, at in ((plain, 0.71), (RECORDS[1], 0.4), (RECORDS[3], 0.6)):
        scores, null = replace(one.scores, layout=(at,)), replace(one.null, layout=(0.05,))
        store.append(tmp_path, replace(one, scores=scores, null=null))
    shown = context(tmp_path)
    assert [(row["seen"], row["null"]) for row in shown["rows"]] == [
        ("0.71", "0.05"),
        ("0.40", "0.05"),
        ("0.60", "0.05"),
    ]
    told = ElementTree.fromstring(str(shown["svg"])).find("desc").text
    assert "2 noise 0.1 ×: Layout 0.40" in told
    page = write(tmp_path).read_text()
    assert "Layout of the attack" in page
    assert "a correlation of 8 × 8 block means" in page


def test_where_the_patches_show_most_their_lead_is_shown(tmp_path: Path):
    plain = replace(NONE, verdict=seen_by(Way.PIECES))
    for one, at in ((plain, 0.31), (RECORDS[1], 0.02), (RECORDS[3], 0.2)):
        store.append(tmp_path, replace(one, scores=replace(one.scores, pieces_lead=(at,))))
    shown = context(tmp_path)
    assert [row["seen"] for row in shown["rows"]] == ["0.31", "0.02", "0.20"]
    assert shown["measure"] == "Patches"
    assert "finds the patches of the original, in another order" in write(tmp_path).read_text()


@pytest.mark.parametrize("count", [1, 2, 30])
def test_labels_cover_neither_marks_nor_each_other(count):
    rng = np.random.default_rng(count)
    marks = [
        Mark(i + 1, "pruning 90 %", cost, ssim, "mark partial", low=cost - 1, high=cost + 1, front=i % 5 == 0)
        for i, (cost, ssim) in enumerate(zip(rng.normal(0, 3, count), rng.uniform(-0.1, 1, count), strict=True))
    ]
    svg = ElementTree.fromstring(defense_chart(marks, uid="u"))
    labels = [e for e in svg.iter("text") if "of-mark" in e.get("class")]
    assert sorted(int(e.text.split()[0]) for e in labels) == list(range(1, count + 1))
    boxes = [
        (float(e.get("cx")) - 5, float(e.get("cy")) - 5, float(e.get("cx")) + 5, float(e.get("cy")) + 5)
        for e in list(svg.iter("circle"))[1:]  # the first one is in the legend
    ]
    for e in labels:
        width, x, y = len(e.text) * charts.LETTER, float(e.get("x")), float(e.get("y"))
        left = x - {"start": 0, "middle": width / 2, "end": width}[e.get("text-anchor")]
        box = (left + 0.1, y - 9.9, left + width - 0.1, y + 1.9)  # places are rounded
        assert not any(charts.meet(box, other) for other in boxes)
        boxes.append(box)


def test_without_costs_there_is_no_picture_and_the_page_says_so(tmp_path):
    store_defenses(tmp_path, [tried("", FEASIBLE, 0.9, cost=None), tried("prune:0.9", PARTIAL, 0.5, cost=None)])
    page = write(tmp_path).read_text()
    assert context(tmp_path)["svg"] is None
    assert "no trial has both a reconstruction and a known cost" in page
    assert "cost is unknown: learned &lt;nothing&gt;" in page


def test_an_attack_that_fails_anyway_makes_no_front(tmp_path):
    store_defenses(tmp_path, [replace(NONE, verdict=verdict(INFEASIBLE)), STOPPED])
    assert "There is no front: the attack fails even without a defense" in write(tmp_path).read_text()
    svg = str(context(tmp_path)["svg"])
    assert "1 no defense: SSIM 0.95" in svg
    assert "There is no front." in svg
    assert "Pareto front" not in svg
    assert 'class="front"' not in svg
