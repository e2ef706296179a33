"""Tables and series from the command line to record and page."""

from __future__ import annotations

import csv

import pytest
import torch

from leakgauge.audit import records
from leakgauge.audit.verdict import Outcome

MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 2))

def one():
    return nn.Sequential(nn.Linear(6, 1))

def narrow():
    return nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 2))
"""
PLAN = """
from torch import nn
from leakgauge.data import read_table

def victim():
    return nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 2))

def data():
    return read_table("rows.csv", label="back")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "audit.py").write_text(PLAN)
    rng = torch.Generator().manual_seed(0)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("age", "ward", "smoker", "back"))
        for _ in range(80):
            age, ward, smoker, back = torch.rand(4, generator=rng).tolist()
            table.writerow(
                (round(20 + 70 * age, 1), "abc"[int(3 * ward)], "no" if smoker < 0.7 else "yes", int(back > 0.5))
            )
    return tmp_path


@pytest.mark.parametrize("words", [["model.py:make", "--data", "rows.csv", "--target", "back"], ["audit.py"]])
def test_rows_of_a_csv_file_are_attacked_and_shown(folder, leakgauge, words):
    said = leakgauge("attack", *words, "--batch-size", "2", "--option", "steps=60", "--out", "run")
    assert said.code == 0, said.sentence
    (record,) = records.read(folder / "run")
    assert record.outcome is Outcome.FEASIBLE
    assert record.verdict.unit == "row"
    first = (folder / "rows.csv").read_text().splitlines()[1].split(",")
    assert list(record.table.rows[0].truth) == first[:3]
    assert record.table.columns == ("age", "ward", "smoker")
    assert sum(record.table.cells) / 2 > sum(record.table.null) / 2
    assert {"means of the columns", "typical row", "drawn rows"} <= set(record.table.guesses)
    assert "cells right" in said.out
    page = (folder / "run" / "report.html").read_text()
    assert "private rows" in page
    assert "1, original" in page
    assert first[0] in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.py:make", "--data", "rows.csv"], "say which column the model predicts with --target COLUMN"),
        (["model.py:make", "--data", "rows.csv", "--target", "nope"], "no column 'nope'"),
        (["model.py:narrow", "--data", "rows.csv", "--target", "back"], "does not take rows of 6 entries (3 columns"),
        (
            ["model.py:one", "--data", "rows.csv", "--target", "back"],
            "must return scores for the 2 classes of the target",
        ),
    ],
)
def test_tables_that_do_not_fit_are_refused_in_a_sentence(folder, leakgauge, words, message):
    said = leakgauge("attack", *words, "--out", "run")
    assert said.code == 2
    assert message in said.sentence


def test_an_audit_of_a_table_says_what_to_use(folder, leakgauge):
    said = leakgauge(
        "audit", "model.py:make", "--data", "rows.csv", "--target", "back", "--budget", "1m", "--out", "run"
    )
    assert said.code == 2
    assert "use leakgauge attack" in said.sentence
