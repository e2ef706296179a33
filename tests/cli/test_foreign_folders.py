"""Run folders of somebody else: no code of theirs is run unless the user names it, and files of different runs are refused."""

from __future__ import annotations

import json

import pytest

from leakgauge.audit import plan, records
from leakgauge.audit.case import Case
from leakgauge.audit.plan import Plan
from leakgauge.audit.questions import split_records
from leakgauge.audit.request import Effort, Request
from tests.made import record

EVIL = """
from pathlib import Path
Path("ran").touch()
def make(): ...
def victim(): ...
def data(): ...
"""


def planned(folder, case: Case, **changes) -> None:
    folder.mkdir(exist_ok=True)
    request = Request(("updates",), case, (case,), (), case, Effort(steps=2))
    plan.save(folder, Plan(**{"request": request, "cases": (case,), **changes}))


@pytest.fixture
def evil(tmp_path):
    (tmp_path / "evil.py").write_text(EVIL)
    return Case(model="evil.py:make", options={"steps": 2})


def test_an_audit_does_not_run_what_the_folder_alone_names(leakgauge, tmp_path, evil):
    planned(tmp_path / "shared", evil)
    (tmp_path / "shared" / "asked.json").write_text('{"model": "cnn"}')
    for words in ([], ["cnn"]):
        said = leakgauge("audit", *words, "--resume", "--out", "shared")
        assert said.code == 2
        assert "would run the Python code evil.py:make" in said.sentence
        assert "leakgauge audit evil.py:make --resume --out shared" in said.sentence
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "hidden",
    [
        {"model": "attention_first:evil.py:make"}, {"model": "evil:make"}, {"data": "evil.py:data"},
        {"model": "evil.py:victim", "data": "evil.py:data"},
    ],
)  # fmt: skip
def test_it_cannot_be_hidden_behind_another_case(leakgauge, tmp_path, evil, hidden):
    planned(tmp_path / "shared", Case(), ladder=(Case(**hidden, batch_size=2),))
    said = leakgauge("audit", "cnn", "--resume", "--out", "shared")
    assert said.code == 2
    assert "would run the Python code" in said.sentence
    assert not (tmp_path / "ran").exists()


def test_a_plan_file_is_named_as_such(leakgauge, tmp_path, evil):
    planned(tmp_path / "shared", Case(model="evil.py:victim", data="evil.py:data"))
    assert "leakgauge audit evil.py --resume" in leakgauge("audit", "--resume", "--out", "shared").sentence


def test_a_scan_does_not_run_it_either(leakgauge, tmp_path, evil):
    folder = tmp_path / "shared"
    assert leakgauge("scan", "--epochs", 0, "--cut", "features.pool3", "--out", folder, "-q").code == 0
    fields = json.loads((folder / split_records.PLAN).read_bytes())
    fields["case"]["model"] = evil.model
    (folder / split_records.PLAN).write_text(json.dumps(fields))
    said = leakgauge("scan", "--resume", "--out", folder)
    assert said.code == 2
    assert "would run the Python code evil.py:make" in said.sentence
    assert not (tmp_path / "ran").exists()
    planned(folder, Case(), request=Request(("split",), Case(), (), (), Case(model="vgg"), Effort(epochs=0)), cases=())
    said = leakgauge("audit", "--resume", "--out", folder)
    assert said.code == 2
    assert "plan.json and scan.json are not of one run" in said.sentence
    assert not (tmp_path / "ran").exists()


def test_a_record_of_another_case_does_not_count_as_done(leakgauge, tmp_path):
    case = Case(options={"steps": 2})
    planned(tmp_path / "run", case)
    records.append(tmp_path / "run", record(case=Case(batch_size=3), key=case.key()))
    said = leakgauge("audit", "--resume", "--out", "run")
    assert said.code == 2
    assert "plan.json and records.jsonl are not of one run" in said.sentence


def test_what_was_asked_must_be_what_was_planned(leakgauge, tmp_path):
    planned(tmp_path / "run", Case(options={"steps": 2}))
    (tmp_path / "run" / "asked.json").write_text('{"model": "vit"}')
    said = leakgauge("audit", "--resume", "--out", "run")
    assert said.code == 2
    assert "name different models or data" in said.sentence
