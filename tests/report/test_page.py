"""What the report says, and what it must never do: load something, run a foreign script, or pass a failure off as a score."""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import json
import os
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PIL import Image

from leakgauge.audit.case import Case
from leakgauge.audit.findings import read_findings
from leakgauge.audit.records import FILE, Curve, Record, VictimFacts, append
from leakgauge.audit.scoring import Interval
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import bound_sentence, ending, statements
from leakgauge.core import Assumption
from leakgauge.errors import BadInput
from leakgauge.report.charts import pictures
from leakgauge.report.page import render, write
from tests.made import verdict
from tests.report.reading import text_of

EVIL = '<script>alert("1")</script> & "quoted"'


@pytest.fixture(scope="module")
def page(run_folder: Path) -> str:
    return write(run_folder).read_text(encoding="utf-8")


def article(page: str, number: int) -> str:
    return page[page.index(f'id="case-{number}"') :].split("</article>")[0]


def drawn(folder: Path, *records: Record) -> str:
    """The page of these records, with pictures from the folder."""
    (folder / FILE).unlink(missing_ok=True)
    for record in records:
        append(folder, record)
    return render(folder)


def test_the_verdict_is_that_of_the_statement_with_the_right_counts(page: str, run_folder: Path):
    section = text_of(page[page.index('<section class="question" id="updates"') :].split("</section>")[0])
    (said,) = [one for one in statements(read_findings(run_folder)) if one.question == "updates"]
    assert all(sentence in section for sentence in said.sentences)
    assert "2 further set-ups gave no result (1 refused, 1 failed)" in section
    assert [int(n) for n in re.findall(r'class="count"[^>]*>(\d+)<', page)] == [2, 2, 2, 1, 1]
    assert "A negative result does not prove safety." in section


def test_failure_with_help_is_not_called_an_upper_bound_reached(one: Record):
    helped = replace(one, verdict=verdict(Outcome.INFEASIBLE), assumptions=(Assumption("labels", "diagnostic"),))
    assert bound_sentence(helped).startswith("This holds although 1 diagnostic assumption")
    assert bound_sentence(one) == ""


def test_a_run_without_any_result_claims_nothing(tmp_path: Path, one: Record):
    refused = replace(one, status="refused", verdict=None, reason="not shared: x")
    page = drawn(tmp_path, refused)
    assert page.count("This was tried and gave no result: not shared: x.") == 2  # at the top and in the section
    assert "could reconstruct" not in text_of(page)


def test_everything_from_records_is_escaped(tmp_path: Path, make):
    record = make(tmp_path, "k", name=EVIL, model=EVIL, attack="dlg", notes=(EVIL,), defenses=(EVIL,))
    record = replace(
        record,
        case=replace(record.case, data=EVIL, options={EVIL: EVIL}),
        versions={EVIL: EVIL},
        assumptions=(Assumption(EVIL, "deployable"),),
        restarts={EVIL: [1.0, 2.0]},
        pictures={**record.pictures, "truth": "<script>.png"},
        command=EVIL,
        channel=EVIL,
        attack=EVIL,
        stated=((EVIL, EVIL),),
    )
    folder = tmp_path / "<b>"
    folder.mkdir()
    page = drawn(folder, record, replace(record, key="l", status="refused", verdict=None, reason=EVIL))
    assert page.lower().count("<script") == 1  # our own
    assert "<h1>Audit of &lt;b&gt;</h1>" in page
    assert page.count("&lt;script&gt;") > 20
    assert EVIL in text_of(page)


def test_page_is_complete_in_itself(page: str):
    assert not re.search(r"https?:|//[a-z]|url\(|@import|javascript:", re.sub(r"base64,[^\"]+", "", page))
    assert all(u.startswith("data:image/png;base64,") for u in re.findall(r'<img src="([^"]+)"', page))
    assert all(u.startswith("#") or u == "data:," for u in re.findall(r'href="([^"]*)"', page))


def test_only_our_script_may_run(page: str):
    found = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    assert len(found) == 1
    assert "eval" not in found[0]
    assert "innerHTML" not in found[0]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
    rules = dict(rule.strip().split(" ", 1) for rule in html.unescape(policy[1]).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert not re.search(r"\son\w+=", re.sub(r"<script>.*?</script>", "", page, flags=re.S))


def test_size(page: str):
    assert len(page) < 3_000_000


def test_ids_are_unique_and_every_reference_has_its_target(page: str):
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    named = {n for group in re.findall(r'aria-labelledby="([^"]+)"', page) for n in group.split()}
    assert named | set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


@pytest.mark.parametrize(("number", "reason"), [(7, "not shared: pos_embed"), (8, "CUDA out of memory")])
def test_set_up_without_result_shows_its_reason_and_no_score(page: str, number: int, reason: str):
    part = article(page, number).split("<details")[0]
    assert reason in text_of(part)
    assert "there is no score" in text_of(part)
    assert not re.search(r"PSNR|SSIM|<img|<svg|Decided by", part)


def test_refused_record_with_leftover_metrics_still_has_no_score(tmp_path: Path, one):
    page = drawn(tmp_path, replace(one, status="refused", reason="not shared: x"))
    assert "no score: refused" in page
    assert "<img" not in page
    assert ending(replace(one, status="error")).key == "error"


def test_case_section_shows_rule_assumptions_cost_and_command(page: str):
    part = text_of(article(page, 2))
    for said in (
        "Decided by 4 of 4 images pass every check (diagnostic)",
        "It rests on 2 diagnostic assumptions and is an upper bound.",
        "diagnostic (upper bound) true labels given to the adversary",
        "deployable batch size known",
        "3 min 22 s",
        "1.3 GiB",
        "TF32 off",
        "leakgauge attack lenet --attack inverting_gradients --batch 4",
        "Spread over restarts",
    ):
        assert said in part


def test_numbers_are_written_one_way(page: str):
    row = re.search(r'<th scope="row"><a href="#case-1">.*?</tr>', page, flags=re.S)
    assert row
    assert re.findall(r'<td class="num[^"]*">([^<]+)</td>', row[0])[2:5] == ["∞", "1.000", "not measured"]
    assert re.fullmatch(r"\d+\.\d", re.findall(r'<td class="num">([^<]+)</td>', row[0])[-1])


def test_whole_record_is_in_the_page(page: str, run_folder: Path):
    first = (run_folder / FILE).read_text(encoding="utf-8").splitlines()[0]
    found = re.search(r'id="record-case-1".*?<pre class="json".*?<code>(.*?)</code>', page, flags=re.S)
    assert found
    assert json.loads(html.unescape(re.sub(r"</?(b|span)[^>]*>", "", found[1]))) == json.loads(first)
    assert 'href="#record-case-1"' in article(page, 1)


def test_empty_run_is_refused(tmp_path: Path):
    (tmp_path / FILE).touch()
    with pytest.raises(BadInput, match="no records"):
        write(tmp_path)
    with pytest.raises(BadInput, match="not a run folder"):
        write(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [None, b"not a picture"])
def test_missing_or_damaged_picture_becomes_a_placeholder(tmp_path: Path, one, content: bytes | None):
    path = tmp_path / one.pictures["truth"]
    path.unlink()
    if content:
        path.write_bytes(content)
    page = drawn(tmp_path, one)
    assert ("picture cannot be read" if content else "picture missing") in page
    assert "Confidential." not in page


def test_record_without_pictures_says_so(tmp_path: Path, one):
    assert "picture missing: none was recorded" in drawn(tmp_path, replace(one, pictures={}))


def test_picture_outside_the_run_folder_is_refused(tmp_path: Path, one):
    inside = tmp_path / "run"
    inside.mkdir()
    for name in ("../secret.png", "/etc/hostname"):
        with pytest.raises(BadInput, match="outside the run folder"):
            drawn(inside, replace(one, pictures={"truth": name}))


def test_strip_is_cut_into_pieces_that_fit(tmp_path: Path):
    Image.new("L", (6 * 9 - 1, 8)).save(tmp_path / "s.png")
    pieces = pictures(tmp_path, "s.png", count=6)
    assert [(p.first, p.count, p.width) for p in pieces] == [(0, 4, 35), (4, 2, 17)]
    odd = pictures(tmp_path, "s.png", count=5)
    assert [(p.count, p.width) for p in odd] == [(1, 53)]


def test_case_that_was_run_again_counts_once(tmp_path: Path, one):
    page = drawn(tmp_path, replace(one, status="error", reason="killed"), one)
    assert "killed" not in page
    assert "1 earlier record of a set-up that was run again is not shown." in text_of(page)


def test_done_without_a_verdict_is_no_verdict(tmp_path: Path, one: Record):
    page = drawn(tmp_path, replace(one, verdict=None))
    assert "No verdict" in page
    assert "could reconstruct" not in text_of(page)


def test_bare_record_renders(tmp_path: Path, one: Record):
    bare = replace(
        one, null=None, baseline=None, restarts={}, curve=Curve(), pictures={}, progress=(), case=Case(batch_size=2)
    )
    text = text_of(drawn(tmp_path, replace(bare, victim=VictimFacts(), versions={}, command="", assumptions=())))
    assert "No curve" in text
    assert "not measured" in text


def test_metrics_of_large_images_and_patches_are_not_missed_elsewhere(tmp_path: Path, one: Record):
    assert one.scores
    for found, shown in (((0.853, 0.9), True), (None, False)):
        record = replace(one, scores=replace(one.scores, ssim_reduced=found, pieces=found))
        text = text_of(drawn(tmp_path, record))
        assert ("SSIM at reduced size" in text) == shown
        assert ("Patch correlation" in text) == shown
        assert "Re-identification rank" in text  # this one is missed, and says so


def test_curve_that_does_not_fit_is_said_and_not_hidden(tmp_path: Path, one):
    page = drawn(tmp_path, replace(one, curve=Curve((0, 1), ((1.0,),))))
    assert "The curve cannot be drawn" in page


def test_write_replaces_atomically_and_leaves_no_draft(run_folder: Path, monkeypatch: pytest.MonkeyPatch):
    before = write(run_folder).read_bytes()
    assert [p.name for p in run_folder.iterdir() if "report" in p.name] == ["report.html"]

    def full(descriptor: int, *_: object) -> None:
        os.write(descriptor, b"half")
        os.close(descriptor)
        raise OSError("disk full")

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(OSError, match="disk full"):
        write(run_folder)
    assert (run_folder / "report.html").read_bytes() == before
    assert [p.name for p in run_folder.iterdir() if "report" in p.name] == ["report.html"]


def test_same_records_and_time_give_the_same_page(run_folder: Path):
    made = datetime(2025, 3, 1, 12, tzinfo=UTC)
    pages = [render(run_folder, made=made) for _ in range(2)]
    assert pages[0] == pages[1]
    assert "01 March 2025, 12:00 UTC" in pages[0]


def test_the_report_reads_records_findings_and_wording_only():
    import leakgauge.report as package

    may_read = {
        "advice", "bracket", "compare", "evidence", "files", "findings", "phrasing", "prompt_record", "questions", "records",
        "scoring", "text_record", "verdict", "wording",
    }  # fmt: skip
    allowed = {"numpy", "PIL", "jinja2", "markupsafe", "leakgauge.errors"} | sys.stdlib_module_names
    for path in Path(package.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                inside = node.module == "leakgauge.audit"
                names = [f"{node.module}.{a.name}" for a in node.names] if inside else [str(node.module)]
            for name in names:
                ours = name.startswith("leakgauge.report")
                known = name in allowed or name.split(".")[0] in allowed
                read = name.startswith("leakgauge.audit.") and name.split(".")[2] in may_read
                assert ours or known or read, f"{path.name} imports {name}"


READABLE = {
    "FILE", "PLAN", "CONCLUSION", "exists", "read", "read_plan", "read_conclusion", "to_json",
    "MonitorRun", "ScanPlan", "CutRecord", "Conclusion", "RIDGE", "LEAST_SQUARES", "DECODER", "DefenseRecord", "evidence", "worth_having",
    "PropertyRecord", "strongest",
}  # fmt: skip
"""What the report may use of a question: its records and what reads them, nothing that runs or trains a model."""


def test_of_a_question_the_report_uses_the_records_only():
    import leakgauge.report as package

    used: set[str] = set()
    for path in Path(package.__path__[0]).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "leakgauge.audit.questions":
                modules |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("leakgauge.audit.questions."):
                used |= {alias.name for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                used.add(node.attr)
    assert {"read", "MonitorRun"} <= used <= READABLE


def test_the_interval_over_restarts_is_shown_where_there_is_one(tmp_path: Path, one):
    found = Interval(0.2, 0.125, 0.275, 3, 0.95)
    record = replace(one, restarts={"ssim": [0.1, 0.2, 0.3]}, intervals={"ssim": found})
    assert "0.125 to 0.275" in text_of(drawn(tmp_path, record))
    assert " to 0.275" not in text_of(drawn(tmp_path, replace(record, intervals={})))


def test_a_gradient_has_no_learning_rate(tmp_path: Path, one: Record):
    assert "learning rate 0.1" not in drawn(tmp_path, one)
    averaged = replace(one, case=replace(one.case, local_epochs=2))
    assert "2 on the same batch of" in drawn(tmp_path, averaged)
    assert "learning rate 0.1, SGD" in drawn(tmp_path, averaged)
