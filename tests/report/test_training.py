"""The section on a training: it says what the statement says, draws what counts, and claims nothing else."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakgauge.audit import records
from leakgauge.audit.findings import SETTLED, Findings, Training, training_of
from leakgauge.audit.questions import training as monitor_records
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.records import Record
from leakgauge.audit.wording import TOO_SHORT, statements, training_ended
from leakgauge.errors import BadInput
from leakgauge.report.page import live_section, write
from leakgauge.report.sections import training
from tests.report.made_training import store_monitored
from tests.report.reading import text_of

EVIL = '<script>alert("1")</script> & "quoted"'
FIGURES = [
    "Who was in the batch",
    "Leakage estimate with its interval",
    "The critic and its controls",
    "Evidence of the alarm",
    "Leakage by layer",
    "Leakage by layer over time",
]
Made = Callable[..., MonitorRun]


def section(run: MonitorRun, *, live: bool = False) -> dict[str, Any]:
    found = training_of(run)
    known = Findings(training=found) if isinstance(found, Training) else Findings(unanswered=(found,))
    return training.section(run, statements(known)[1], live=live)


def test_a_run_of_the_monitor_alone(tmp_path: Path, monitored: Made):
    store_monitored(tmp_path, monitored())
    page = write(tmp_path).read_text("utf-8")
    text = text_of(page)
    assert f"Monitoring of {tmp_path.name}" in text
    assert "from a monitored training with leakgauge\xa00.1.0" in text
    assert "Verdict" not in text
    assert "A low value does not mean that nothing leaks." in text
    assert [f"<h4>{heading}</h4>" in page for heading in FIGURES] == [True] * 6


def test_a_run_with_attacks_and_a_monitored_training(tmp_path: Path, monitored: Made, eight: list[Record]):
    for record in eight:
        records.append(tmp_path, record)
    store_monitored(tmp_path, monitored())
    text = text_of(write(tmp_path).read_text("utf-8"))
    assert "from 8 recorded set-ups and a monitored training" in text
    assert "How does leakage move during training?" in text


def test_a_folder_with_neither(tmp_path: Path):
    with pytest.raises(BadInput, match="is not a run folder"):
        write(tmp_path)


def test_the_top_and_the_section_say_the_same_and_the_record_of_each_number_is_linked(tmp_path: Path, monitored: Made):
    run = monitored()
    store_monitored(tmp_path, run)
    page = write(tmp_path).read_text("utf-8").replace("<wbr>", "")
    found = training_of(run)
    assert isinstance(found, Training)
    for sentence in statements(Findings(training=found))[1].sentences:
        assert page.count(html.escape(sentence)) == 2
    assert found.steps_stated == (50, 750)
    assert all(f'href="#record-training-{step}"' in page for step in found.steps_stated)


@pytest.mark.parametrize("pairs", [0.0, SETTLED - 1.0])
def test_numbers_from_too_few_steps_are_nowhere(tmp_path: Path, monitored: Made, pairs: float):
    run = monitored(reports=6)
    rough = {"privacy/pairs": pairs, "privacy/infonce_nats": 99.0}
    reports = tuple({**r, "scalars": {**r["scalars"], **rough}} for r in run.reports)
    store_monitored(tmp_path, replace(run, reports=reports))
    text = text_of(write(tmp_path).read_text("utf-8")).split("Appendix")[0]
    assert text.count(TOO_SHORT) == 2  # at the top and in the section
    assert "99" not in text
    assert FIGURES[1] not in text


def test_a_report_from_too_few_steps_is_left_out_of_curve_and_table(monitored: Made):
    run = monitored(reports=6)
    rough = {**run.reports[2]["scalars"], "privacy/pairs": 2.0, "privacy/infonce_nats": 99.0}
    reports = (*run.reports[:2], {**run.reports[2], "scalars": rough}, *run.reports[3:])
    found = section(replace(run, reports=reports))
    assert "99" not in found["statement"].text
    assert "99" not in str(found["figures"][1]["svg"])
    row = found["curve"][2]
    assert row[2:6] == ["not measured"] * 4
    assert "not measured" not in (row[1], row[6])


def test_a_silent_alarm_looks_silent(monitored: Made):
    found = section(monitored(alarm=False, probe=False))
    assert (found["statement"].badge, found["looks"]) == ("Alarm silent", "infeasible_within_budget")
    assert "no evidence of safety" in found["statement"].text
    assert "alarm, step" not in str(found["figures"][2]["svg"])


def test_without_the_probe_nothing_is_said_about_members(monitored: Made):
    found = section(monitored(probe=False))
    assert "candidate" not in found["statement"].text
    assert "Who was in the batch" not in [figure["heading"] for figure in found["figures"]]
    assert found["numbers"][0]["value"] == "not measured"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ({"how": "interrupted", "step": 40}, "interrupted after 40 steps; these are the measurements up to then"),
        ({"how": "failed", "why": "it raised", "step": 40}, "failed after 40 steps (it raised)"),
        ({"how": "failed", "why": "it raised", "step": 1}, "failed after 1 step (it raised)"),
        ({}, "it is still running, or it was killed"),
    ],
)
def test_how_it_ended(monitored: Made, end: dict[str, Any], said: str):
    run = replace(monitored(), end=end)
    assert said in training_ended(run)
    assert section(run)["ended"] == training_ended(run)


def test_a_live_training_has_not_ended(monitored: Made):
    assert section(replace(monitored(), end={}), live=True)["ended"] == ""


def test_before_the_first_report(tmp_path: Path):
    found = section(MonitorRun(about={}))
    assert "no step was measured" in found["statement"].text
    assert found["figures"] == []
    assert "Waiting for the first report." in live_section(MonitorRun(about={}))
    monitor_records.append(tmp_path, "run", {"model": "LeNet"})
    assert "no step was measured" in write(tmp_path).read_text("utf-8")


def test_a_single_report_can_be_drawn(monitored: Made):
    assert len(section(monitored(reports=1))["figures"]) == 2  # the probe and the alarm; no critic, no layers yet
    assert len(section(monitored(reports=2))["figures"]) == 6


def test_the_papers_gap_is_drawn_with_decoy_and_null(monitored: Made):
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
    store_monitored(tmp_path, run)
    page = write(tmp_path).read_text("utf-8")
    assert page.lower().count("<script") == 1  # our own
    assert page.count("&lt;script&gt;") > 8
    assert "<script" not in live_section(run).lower()


def test_ids_are_unique_and_references_have_targets(tmp_path, monitored, eight):
    for record in eight:
        records.append(tmp_path, record)
    store_monitored(tmp_path, monitored())
    page = write(tmp_path).read_text("utf-8")
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    named = {n for group in re.findall(r'aria-labelledby="([^"]+)"', page) for n in group.split()}
    assert named | set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|javascript:", re.sub(r"base64,[^\"]+", "", page))
