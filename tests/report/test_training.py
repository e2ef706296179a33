"""The report's section on a monitored training: what it says, what it draws, and what it must not claim."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from leakgauge.audit import monitor_records, records
from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.errors import BadInput
from leakgauge.report import live
from leakgauge.report.page import render, write
from leakgauge.report.sections.training import section

EVIL = '<script>alert("1")</script> & "quoted"'
FIGURES = [
    "Who was in the batch",
    "Leakage curve with its interval",
    "The critic beside its controls",
    "When the alarm fired",
    "Which layer tells",
    "Which layer tells, over time",
]


def text_of(page: str) -> str:
    body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", body.replace("<wbr>", "")).split()))


def save(folder: Path, run: MonitorRun) -> None:
    monitor_records.append(folder, "run", run.about)
    for report in run.reports:
        monitor_records.append(folder, "report", report)
    monitor_records.append(folder, "end", run.end)


def test_a_run_of_the_monitor_alone(tmp_path, monitored):
    save(tmp_path, monitored())
    page = write(tmp_path).read_text("utf-8")
    text = text_of(page)
    assert f"Monitoring of {tmp_path.name}" in text
    assert "from a monitored training with leakgauge\xa00.1.0" in text
    assert "Verdict" not in text
    assert "The alarm fired at step 60" in text
    assert "could tell almost all members of a batch from others (AUC 0.980 at every look)" in text
    assert "A low value does not mean that nothing leaks." in text
    assert [f"<h4>{heading}</h4>" in page for heading in FIGURES] == [True] * 6


def test_a_run_with_attacks_and_a_monitored_training(tmp_path, monitored, eight):
    for record in eight:
        records.append(tmp_path, record)
    save(tmp_path, monitored())
    text = text_of(write(tmp_path).read_text("utf-8"))
    assert "In 2 of 6 judged set-ups" in text
    assert "from 8 recorded set-ups and a monitored training" in text
    assert "How does leakage move during training?" in text


def test_a_folder_with_neither(tmp_path):
    with pytest.raises(BadInput, match="is not a run folder"):
        write(tmp_path)


def test_the_critic_is_quoted_with_its_controls_at_the_same_step(monitored):
    said = section(monitored())["sentences"][2]
    assert said.startswith("The critic read most at step 50: 0.935 nats of at most 2.773 (null 0.010, decoy −0.467 at")
    assert said.endswith("and 0.028 at the last report.")


def test_silence_is_not_called_safe(monitored):
    found = section(monitored(alarm=False))
    assert not found["alarmed"]
    assert found["badge"] == "Alarm silent"
    assert "no evidence of safety" in found["sentences"][1]
    assert "The alarm stayed silent" in [figure["heading"] for figure in found["figures"]]


@pytest.mark.parametrize(
    ("auc", "low", "said"),
    [
        (0.7, 0.55, "told members better than by guessing (AUC 0.700 at every look)"),
        (0.6, 0.45, "was not shown to do better than guessing (AUC 0.600 at every look); that is no proof"),
    ],
)
def test_members_are_told_by_the_interval_not_by_the_value(monitored, auc, low, said):
    run = monitored()
    changed = {"privacy/whitebox/auc": auc, "privacy/whitebox/auc_low": low}
    reports = tuple({**r, "scalars": {**r["scalars"], **changed}} for r in run.reports)
    assert said in section(replace(run, reports=reports))["sentences"][0]


def test_without_the_probe_nothing_is_said_about_members(monitored):
    found = section(monitored(probe=False))
    assert "was not measured" in found["sentences"][0]
    assert "Who was in the batch" not in [figure["heading"] for figure in found["figures"]]
    assert found["numbers"][0]["value"] == "not measured"


def test_estimates_from_hardly_any_steps_are_not_drawn(monitored):
    run = monitored(reports=6)
    rough = {**run.reports[2]["scalars"], "privacy/pairs": 2.0, "privacy/infonce_nats": 99.0}
    reports = (*run.reports[:2], {**run.reports[2], "scalars": rough}, *run.reports[3:])
    found = section(replace(run, reports=reports))
    assert "99" not in found["sentences"][2]
    assert "99" not in str(found["figures"][1]["svg"])
    row = found["curve"][2]  # the table would contradict the sentence about where the critic read most
    assert row[2:6] == ["not measured"] * 4
    assert "not measured" not in (row[1], row[6])


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"how": "interrupted", "step": 40}, "interrupted after 40 steps; this is what was measured until then"),
        ({"how": "failed", "why": "it raised", "step": 40}, "broke off after 40 steps (it raised)"),
        ({"how": "failed", "why": "it raised", "step": 1}, "broke off after 1 step (it raised)"),
        ({}, "it still runs, or it was killed"),
    ],
)
def test_how_it_ended(monitored, end, said):
    assert said in section(replace(monitored(), end=end))["ended"]


def test_a_live_training_has_not_ended(monitored):
    assert section(replace(monitored(), end={}), live=True)["ended"] == ""


def test_before_the_first_report(tmp_path):
    found = section(MonitorRun(about={}))
    assert found["sentences"] == ["Nothing was measured yet, so nothing can be said."]
    assert found["figures"] == []
    assert "No report yet" in live.section(MonitorRun(about={}))
    monitor_records.append(tmp_path, "run", {"model": "LeNet"})
    assert "Nothing was measured yet" in write(tmp_path).read_text("utf-8")


def test_a_single_report_can_be_drawn(monitored):
    assert len(section(monitored(reports=1))["figures"]) == 2  # the probe and the alarm; no critic, no layers yet
    assert len(section(monitored(reports=2))["figures"]) == 6


def test_the_papers_gap_stands_beside_decoy_and_null(monitored):
    rows = [{"sub_epoch": i, "collected": 2.0 * i, "decoy": 1.9 * i, "null": 0.1, "held_out": 0.0} for i in (0, 1, 5)]
    found = section(replace(monitored(), paper=tuple(rows)))
    svg = next(str(f["svg"]) for f in found["figures"] if f["heading"] == "The privacy-token paper’s gap")
    assert "decoy: first 0, highest 9.5, last 9.5." in svg
    assert "null: first 0.1" in svg


def test_everything_is_escaped(tmp_path, monitored):
    run = monitored(name=EVIL)
    about = {key: EVIL if isinstance(value, str) else value for key, value in run.about.items()}
    reports = tuple({**r, "notes": [EVIL], "skipped": {EVIL: 1}} for r in run.reports)
    run = MonitorRun(about=about, reports=reports, end={"how": "failed", "why": EVIL, "step": 1})
    page = render([], folder=tmp_path, title="t", monitored=run)
    assert page.lower().count("<script") == 1  # our own
    assert page.count("&lt;script&gt;") > 8
    assert "<script" not in live.section(run).lower()


def test_ids_are_unique_and_references_have_targets(tmp_path, monitored, eight):
    page = render(eight, folder=tmp_path, title="t", monitored=monitored())
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    named = {n for group in re.findall(r'aria-labelledby="([^"]+)"', page) for n in group.split()}
    assert named | set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|javascript:", re.sub(r"base64,[^\"]+", "", page))
