"""A folder of images without classes, of 12 bits: audited and scanned, without anything that made-up labels would decide."""

from __future__ import annotations

import html

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from leakgauge import run_audit
from leakgauge.audit.findings import read_findings
from leakgauge.audit.questions import defense_records as defenses
from leakgauge.audit.questions import split_records
from leakgauge.audit.wording import MADE_UP, NO_CLASSES, split_notes, statements
from leakgauge.data.facts import DataFacts
from leakgauge.data.levels import Levels

READ = "The images are read at 12 bits (black is 0, white is 4095), because their largest value fits in that."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """All four questions, on a model with more classes than there are images."""
    folder = tmp_path_factory.mktemp("x-rays")
    rng = np.random.default_rng(0)
    for i in range(220):
        blobs = rng.integers(0, 4096, (2, 2)).astype(np.uint16).repeat(4, 0).repeat(4, 1)
        Image.fromarray(blobs).save(folder / f"{i:03d}.png")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(36, 500))
    return run_audit(
        model, folder, budget=None, options={"steps": 3}, training_steps=6, epochs=1, changes=False, defenses=["prune:0.9"]
    )  # fmt: skip


def test_every_question_is_answered(run):
    assert run.findings.unanswered == ()
    assert {record.status for record in run.records} == {"done"}


def test_what_is_known_about_the_data_is_on_record(run):
    facts = DataFacts(labelled=False, levels=Levels(0, 4095, "values"))
    assert {record.data for record in run.records} == {facts}
    assert split_records.read_plan(run.folder).data == facts
    assert read_findings(run.folder).training.data == facts


def test_labels_are_not_scored(run):
    assert {(r.scores.labels, r.null.labels) for r in run.records} == {(None, None)}
    assert all(row["labels"] is None for row in run.rows())
    assert all(record.scores.labels is None for record in defenses.read(run.folder))
    assert not any("labels" in item.title.lower() for item in run.advice)


def test_there_is_no_accuracy(run):
    assert {r.risk.get("accuracy") for r in split_records.read(run.folder)} == {None}
    assert {r.risk.get("fvu_of_class_mean") for r in split_records.read(run.folder)} == {None}
    assert run.findings.split.accuracy is None
    for record in defenses.read(run.folder):
        assert record.accuracy == {"unknown": "the images have no classes, so there is no accuracy to measure"}


def test_both_are_said(run):
    updates, training, *_ = statements(run.findings)
    for said in (updates, training):
        assert MADE_UP in said.text
        assert READ in said.text
    assert split_notes(run.findings.split)[:2] == [NO_CLASSES, READ]
    page = html.unescape((run.folder / "report.html").read_text())
    assert "no classes (labels made up, not scored)" in page
    assert "Labels recovered" not in page
