"""A run folder knows which model, data and settings it measured, and every edit after the fact has an author and a reason."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
from torch import nn

from leakgauge.audit import evidence, gate, records
from leakgauge.audit.case import Case
from leakgauge.audit.findings import read_findings
from leakgauge.audit.run import run_all, versions
from leakgauge.audit.session import Session, embedded, keep_evidence
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import statements
from leakgauge.errors import BadInput
from tests.made import record

IMAGES, LABELS = torch.rand(2, 1, 4, 4), torch.tensor([0, 1])


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4))


def test_equal_models_have_equal_hashes_and_any_value_counts(model):
    assert evidence.hash_model(model) == evidence.hash_model(deepcopy(model))
    other = deepcopy(model)
    with torch.no_grad():
        other[1].bias[0] += 1e-6
    assert evidence.hash_model(other) != evidence.hash_model(model)
    counted = deepcopy(model)
    counted[2].num_batches_tracked += 1
    assert evidence.hash_model(counted) != evidence.hash_model(model)


def test_the_classes_of_layers_count(model):
    assert evidence.hash_model(nn.Sequential(nn.ReLU())) != evidence.hash_model(nn.Sequential(nn.Sigmoid()))


def test_shapes_and_types_count_beside_the_bytes():
    plain = torch.zeros(4, 2)
    hashes = {
        evidence.hash_tensors([one]) for one in (plain, plain.reshape(2, 4), plain.to(torch.int32), plain.bfloat16())
    }
    assert len(hashes) == 4
    assert evidence.hash_tensors([plain.t().contiguous().t()]) == evidence.hash_tensors([plain])


def test_a_resumed_run_with_another_model_or_other_data_is_refused(model, tmp_path):
    evidence.keep(tmp_path, "mine", model, (IMAGES, LABELS), {"steps": 2})
    evidence.keep(tmp_path, "mine", model, (IMAGES, LABELS), {"steps": 2})
    assert len(evidence.inputs(tmp_path)) == 1
    with torch.no_grad():
        model[1].bias += 1
    with pytest.raises(BadInput, match="the model of mine changed since"):
        evidence.keep(tmp_path, "mine", model, (IMAGES, LABELS), {"steps": 2})
    with pytest.raises(BadInput, match="the model and the data of mine changed since"):
        evidence.keep(tmp_path, "mine", model, (IMAGES.flip(0), LABELS), {"steps": 2})


def test_each_model_of_a_run_is_hashed_once_with_its_settings(tmp_path):
    cases = [Case(model="cnn"), Case(model="vit"), Case(model="cnn", batch_size=4)]
    keep_evidence(tmp_path, cases, Session(embedded))
    kept = evidence.inputs(tmp_path)
    assert [one.name for one in kept] == ["cnn", "vit"]
    assert len({one.settings for one in kept}) == 2
    assert kept[0].data == kept[1].data
    assert all(json.loads(line)["format"] == 1 for line in (tmp_path / evidence.FILE).read_text().splitlines())


def test_every_record_says_which_code_made_it():
    said = versions()
    assert said["leakgauge"]
    assert said.get("commit", "") == evidence.commit()


def test_a_withdrawn_record_has_no_verdict_and_fails_the_gate(tmp_path):
    kept, other = record(Outcome.INFEASIBLE, case=Case(batch_size=4)), record(Outcome.INFEASIBLE)
    for one in (kept, other):
        records.append(tmp_path, one)
    assert gate.exit_code(records.read(tmp_path), Outcome.PARTIAL) == 0
    before = (tmp_path / records.FILE).read_bytes()
    evidence.withdraw(tmp_path, other.key, author="Ada", reason="wrong weights")
    assert (tmp_path / records.FILE).read_bytes() == before
    first, second = records.read(tmp_path)
    assert first == kept
    assert (second.status, second.verdict, second.scores) == ("withdrawn", None, None)
    assert second.reason == "withdrawn by Ada: wrong weights"
    assert gate.exit_code([first, second], Outcome.PARTIAL) == 1
    (said,) = (one for one in statements(read_findings(tmp_path)) if one.question == "updates")
    assert "1 withdrawn" in said.text


def test_a_withdrawn_case_is_run_again_by_resume_and_then_counts(tmp_path):
    case = Case(options={"steps": 2})
    (first,) = run_all([case], load=Session(embedded), folder=tmp_path)
    evidence.withdraw(tmp_path, first.key, author="Ada", reason="wrong weights")
    records_after = run_all([case], load=Session(embedded), folder=tmp_path, resume=True)
    assert [one.status for one in records_after] == ["done"]
    assert [one.status for one in records.read(tmp_path)] == ["withdrawn", "done"]
    assert [one.status for one in records.latest(records.read(tmp_path))] == ["done"]


@pytest.mark.parametrize(("author", "reason"), [("", "why"), ("Ada", " ")])
def test_an_edit_needs_an_author_and_a_reason(author, reason, tmp_path):
    with pytest.raises(BadInput, match="author and a reason"):
        evidence.withdraw(tmp_path, "k", author=author, reason=reason)
    assert not (tmp_path / evidence.FILE).exists()


def test_a_damaged_line_is_refused_in_a_sentence(tmp_path):
    (tmp_path / evidence.FILE).write_text('{"kind": "edit", "format": 9}\n')
    with pytest.raises(BadInput, match="cannot be read"):
        evidence.edits(tmp_path)
