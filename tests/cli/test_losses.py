"""Targets that are no classes, from the command line: they are given to the adversary, and every verdict says so."""

from __future__ import annotations

import pytest

from leakgauge.audit import records
from leakgauge.core import LABELS_GIVEN

MODELS = """
import torch
import torch.nn.functional as F
from torch import nn
from leakgauge import Pixels, Victim

rng = torch.Generator().manual_seed(0)
SPACE = Pixels((1, 8, 8))
X = torch.rand(30, 1, 4, 4, generator=rng).repeat_interleave(2, 2).repeat_interleave(2, 3)

def network(outputs):
    return nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1), nn.Sigmoid(), nn.Flatten(), nn.Linear(512, outputs))

def mean_error(out, y):
    return F.mse_loss(out.squeeze(1), y)

def regression():
    return Victim(network(1), SPACE, loss=mean_error)

def regression_data():
    return X, X.mean((1, 2, 3))

def several():
    return Victim(network(5), SPACE, loss=F.binary_cross_entropy_with_logits)

def several_data():
    return X, torch.randint(2, (30, 5), generator=rng).float()

def soft():
    return network(4), SPACE

def soft_data():
    return X, torch.randn(30, 4, generator=rng).softmax(1)

def segmentation():
    return nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1), nn.Sigmoid(), nn.Conv2d(8, 3, 3, 1, 1)), SPACE

def segmentation_data():
    return X, (3 * X[:, 0]).long()

def hot_data():
    return X, torch.eye(4)[torch.arange(30) % 4].long()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path


@pytest.mark.parametrize("name", ["regression", "several", "soft", "segmentation"])
def test_other_losses_are_attacked_with_their_targets_declared(folder, leakgauge, name):
    said = leakgauge(
        "attack", f"models.py:{name}", "--data", f"models.py:{name}_data", "--attack", "inverting_gradients", "--option", "steps=150",
        "--option", "tv=0.001", "--out", "run",
    )  # fmt: skip
    assert said.code == 0, said
    (record,) = records.read(folder / "run")
    assert record.status == "done", record.reason
    assert LABELS_GIVEN in record.assumed("diagnostic")
    assert record.scores.labels is None
    assert record.outcome.leaks
    assert record.scores.mean("ssim") > record.null.mean("ssim") + 0.3
    assert "upper bound" in (folder / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("soft", "hot_data", "does not take its output (2, 4) with targets of torch.int64"),
        ("soft", "several_data", "does not take its output (2, 4) with targets of torch.float32"),
        ("several", "segmentation_data", "does not take its output (2, 5)"),
        ("soft", "regression_data", "holds labels that are not class numbers"),
    ],
)
def test_targets_that_a_loss_does_not_take_are_refused(folder, leakgauge, model, data, message):
    said = leakgauge("attack", f"models.py:{model}", "--data", f"models.py:{data}", "--out", "run")
    assert message in said.sentence


def test_an_audit_of_several_labels_runs_and_leaves_accuracy_out(folder, leakgauge):
    said = leakgauge(
        "audit", "models.py:several", "--data", "models.py:several_data", "--only", "updates", "--batch-size", "2", "--option", "steps=5",
        "--out", "run",
    )  # fmt: skip
    assert said.code == 0, said
    found = records.read(folder / "run")
    assert {record.status for record in found} <= {"done", "refused"}
    assert any("imprint" in record.case.server for record in found)
