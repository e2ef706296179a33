"""What the report says, and what it must never do: load something, run a foreign script, or pass a failure off as a score."""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import json
import math
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PIL import Image

from leakgauge.audit.records import FILE, append
from leakgauge.errors import BadInput
from leakgauge.report import words
from leakgauge.report.charts import pictures
from leakgauge.report.page import render, write

EVIL = '<script>alert("1")</script> & "quoted"'


@pytest.fixture(scope="module")
def page(run_folder: Path) -> str:
    return write(run_folder).read_text(encoding="utf-8")


def text_of(page: str) -> str:
    body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", body.replace("<wbr>", "")).split()))


def article(page: str, number: int) -> str:
    return page[page.index(f'id="case-{number}"') :].split("</article>")[0]


def test_verdict_stands_in_one_sentence_with_the_right_counts(page: str):
    text = text_of(page)
    assert (
        "In 2 of 6 judged set-ups an honest-but-curious server could reconstruct private images; "
        "2 partially; 2 not within the budget spent." in text
    )
    assert "2 further set-ups gave no result (1 refused, 1 error) and count neither for nor against safety." in text
    assert "1 of the 2 feasible results rests on diagnostic assumptions" in text
    assert "A negative result is not a proof of safety." in text


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        (
            ["feasible"] * 3 + ["partial"] * 2 + ["infeasible_within_budget"] * 3,
            "In 3 of 8 set-ups an honest-but-curious server could reconstruct private images; 2 partially; "
            "3 not within the budget spent.",
        ),
        (["feasible"], "In the set-up an honest-but-curious server could reconstruct private images."),
        (
            ["partial", "infeasible_within_budget"],
            "In 1 of 2 set-ups an honest-but-curious server could partially reconstruct private images; "
            "1 not within the budget spent.",
        ),
        (
            ["infeasible_within_budget"] * 2,
            "In none of the 2 set-ups could an honest-but-curious server reconstruct private images within "
            "the budget spent.",
        ),
        (
            ["infeasible_within_budget"],
            "In the set-up an honest-but-curious server could not reconstruct private images within the budget spent.",
        ),
    ],
)
def test_headline(one, verdicts: list[str], sentence: str):
    assert words.headline([replace(one, verdict=v) for v in verdicts]) == sentence


def test_failure_with_help_is_not_called_an_upper_bound_reached(one):
    helped = replace(one, verdict="infeasible_within_budget", assumptions=({"what": "labels", "kind": "diagnostic"},))
    assert words.bound_sentence(helped).startswith("This is so although 1 diagnostic assumption")
    assert words.bound_sentence(one) == ""


def test_all_of_them_are_not_some_of_them(one):
    helped = replace(one, verdict="partial", assumptions=({"kind": "diagnostic", "what": "labels"},))
    assert words.qualifiers([helped])[0].startswith("The partial result rests on diagnostic assumptions")
    assert words.qualifiers([helped, helped])[0].startswith("All 2 partial results rest on")
    assert words.qualifiers([helped, replace(helped, assumptions=())])[0].startswith(
        "1 of the 2 partial results rests on"
    )


def test_headline_without_any_result_claims_nothing(one):
    refused = replace(one, status="refused", verdict=None)
    assert words.headline([refused]) == "The set-up gave no result; this run says nothing about leakage."
    assert words.headline([refused, refused]).startswith("None of the 2 set-ups gave a result;")
    assert words.qualifiers([refused]) == []


def test_everything_from_records_is_escaped(tmp_path: Path, make):
    record = make(tmp_path, "k", name=EVIL, model=EVIL, attack=EVIL, rule=EVIL, notes=(EVIL,), defenses=(EVIL,))
    record = replace(
        record,
        case={**record.case, "data": EVIL, "options": {EVIL: EVIL}},
        versions={EVIL: EVIL},
        assumptions=({"what": EVIL, "kind": EVIL},),
        restarts={EVIL: [1.0, 2.0]},
        metrics={**record.metrics, EVIL: {"mean": 1.0, "min": 1.0, "max": 1.0}},
        pictures={**record.pictures, "truth": "<script>.png"},
        command=EVIL,
        channel=EVIL,
    )
    page = render([record, replace(record, key="l", status="refused", reason=EVIL)], folder=tmp_path, title=EVIL)
    assert page.lower().count("<script") == 1  # our own
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
    assert not re.search(r"PSNR|SSIM|<img|<svg|Rule that decided", part)


def test_refused_record_with_leftover_metrics_still_has_no_score(tmp_path: Path, one):
    page = render([replace(one, status="refused", reason="not shared: x")], folder=tmp_path, title="t")
    assert "no score: refused" in page
    assert "<img" not in page
    assert words.outcome(replace(one, status="error")).key == "error"


def test_case_section_shows_rule_assumptions_cost_and_command(page: str):
    part = text_of(article(page, 2))
    for said in (
        "mean PSNR is at least 18 dB",
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
    page = render([one], folder=tmp_path, title="t")
    assert ("picture cannot be read" if content else "picture missing") in page
    assert "Confidential." not in page


def test_record_without_pictures_says_so(tmp_path: Path, one):
    assert "picture missing: none was recorded" in render([replace(one, pictures={})], folder=tmp_path, title="t")


def test_picture_outside_the_run_folder_is_refused(tmp_path: Path, one):
    inside = tmp_path / "run"
    inside.mkdir()
    for name in ("../secret.png", "/etc/hostname"):
        with pytest.raises(BadInput, match="outside the run folder"):
            render([replace(one, pictures={"truth": name})], folder=inside, title="t")


def test_strip_is_cut_into_pieces_that_fit(tmp_path: Path):
    Image.new("L", (6 * 9 - 1, 8)).save(tmp_path / "s.png")
    pieces = pictures(tmp_path, "s.png", count=6)
    assert [(p.first, p.count, p.width) for p in pieces] == [(0, 4, 35), (4, 2, 17)]
    odd = pictures(tmp_path, "s.png", count=5)
    assert [(p.count, p.width) for p in odd] == [(1, 53)]


def test_case_that_was_run_again_counts_once(tmp_path: Path, one):
    page = render([replace(one, status="error", reason="killed"), one], folder=tmp_path, title="t")
    assert "killed" not in page
    assert "1 earlier record of a set-up that was run again is not shown." in text_of(page)


def test_unknown_verdict_status_and_nan_are_refused(tmp_path: Path, one):
    for wrong in (replace(one, verdict="safe"), replace(one, status="lost"), replace(one, seconds=math.nan)):
        with pytest.raises(BadInput, match="'k'"):
            render([wrong], folder=tmp_path, title="t")


def test_done_without_a_verdict_is_no_verdict(tmp_path: Path, one):
    page = render([replace(one, verdict=None)], folder=tmp_path, title="t")
    assert "No verdict" in page
    assert "gave no result; this run says nothing" in page


def test_bare_record_renders(tmp_path: Path, one):
    bare = replace(
        one, metrics={}, null={}, baseline={}, restarts={}, curve={}, pictures={}, progress=(), case={}, victim={}
    )
    text = text_of(render([replace(bare, versions={}, command="", assumptions=())], folder=tmp_path, title="t"))
    assert "No curve" in text
    assert "not measured" in text


def test_the_reduced_size_is_shown_for_large_images_alone(tmp_path: Path, one):
    measured = {"mean": 0.853, "min": 0.7, "max": 0.95, "per_image": [0.853]}
    for found, shown in ((measured, True), (None, False)):
        record = replace(one, metrics={**one.metrics, "ssim_reduced": found, "reid": None})
        text = text_of(render([record], folder=tmp_path, title="t"))
        assert ("SSIM at reduced size" in text) == shown
        assert "Re-identification rank" in text  # this one is missed, and says so


def test_curve_that_does_not_fit_is_said_and_not_hidden(tmp_path: Path, one):
    page = render([replace(one, curve={"steps": [0, 1], "losses": [[1.0]]})], folder=tmp_path, title="t")
    assert "The curve cannot be drawn" in page


def test_write_replaces_atomically_and_leaves_no_draft(run_folder: Path, monkeypatch: pytest.MonkeyPatch):
    before = write(run_folder).read_bytes()
    assert [p.name for p in run_folder.iterdir() if "report" in p.name] == ["report.html"]

    def full(self: Path, *_: object, **__: object) -> None:
        with self.open("wb") as file:
            file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="disk full"):
        write(run_folder)
    assert (run_folder / "report.html").read_bytes() == before
    assert [p.name for p in run_folder.iterdir() if "report" in p.name] == ["report.html"]


def test_same_records_and_time_give_the_same_page(tmp_path: Path, eight):
    made = datetime(2025, 3, 1, 12, tzinfo=UTC)
    pages = [render(eight, folder=tmp_path, title="t", made=made) for _ in range(2)]
    assert pages[0] == pages[1]
    assert "01 March 2025, 12:00 UTC" in pages[0]


def test_written_page_reads_back_from_appended_records(tmp_path: Path, one):
    append(tmp_path, one)
    assert "In the set-up an honest-but-curious server" in write(tmp_path).read_text(encoding="utf-8")


def test_report_imports_records_and_what_follows_from_them_only():
    import leakgauge.report as package

    records = {
        "answers",
        "compare",
        "defense_records",
        "monitor_records",
        "questions",
        "records",
        "scan_records",
        "stopped",
    }
    allowed = {"numpy", "PIL", "jinja2", "markupsafe", "leakgauge.errors", "leakgauge.audit"}
    allowed |= {
        f"leakgauge.audit.{name}"
        for name in records | {"advice", "advice.sentences", "advice.text", "files", "findings", "phrasing"}
    }
    for path in Path(package.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
                assert node.module != "leakgauge.audit" or {a.name for a in node.names} <= records
            else:
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                known = name in allowed or name.split(".")[0] in allowed | sys.stdlib_module_names
                assert known or name.startswith("leakgauge.report"), f"{path.name} imports {name}"


def test_the_interval_over_restarts_is_shown_where_there_is_one(tmp_path: Path, one):
    found = {"mean": 0.2, "low": 0.125, "high": 0.275, "n": 3, "level": 0.95}
    record = replace(one, restarts={"ssim": [0.1, 0.2, 0.3]}, intervals={"ssim": found})
    assert "0.125 to 0.275" in text_of(render([record], folder=tmp_path, title="t"))
    assert " to 0.275" not in text_of(render([replace(record, intervals={})], folder=tmp_path, title="t"))


def test_a_gradient_has_no_learning_rate(tmp_path: Path, one):
    case = {**one.case, "local_steps": 1, "local_lr": 0.01}
    plain = render([replace(one, case=case, channel="Gradient()")], folder=tmp_path, title="t")
    assert "(learning rate 0.01)" not in plain
    averaged = replace(one, case={**case, "local_steps": 2}, channel="FedAvg(steps=2, lr=0.01)")
    assert "2 (learning rate 0.01)" in render([averaged], folder=tmp_path, title="t")
