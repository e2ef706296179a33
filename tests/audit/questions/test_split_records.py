"""What a scan leaves on disk: read back as written, half a line never counts, damage is told."""

from __future__ import annotations

import math

import pytest

from leakgauge.audit.case import Case
from leakgauge.audit.questions import split_records as store
from leakgauge.audit.questions.split_records import RIDGE, Conclusion, CutRecord, ScanPlan
from leakgauge.errors import BadInput
from leakgauge.split.remedies import Remedy

PLAN = ScanPlan(
    case=Case(model="vgg"),
    cuts=({"name": "a", "shape": [2], "bytes": 8, "edge_flops": 3, "edge_share": 0.5},),
    threshold=0.25,
    epochs=None,
    budget=60.0,
    require="",
    numbers="fp32",
    raw_bytes=784,
    jpeg_bytes=None,
    auxiliary=80,
    tested=20,
    traced="torch.export",
    labels=(1, 2),
    truth="pictures/t.png",
    shown=2,
    versions={"torch": "2"},
    command="leakgauge scan",
)


def record(**changes) -> CutRecord:
    return CutRecord(
        **{"cut": "a", "attack": RIDGE, "epochs": 0, "risk": {"fvu": 0.5}, "map": ((0.5, 1.0),), **changes}
    )


def test_everything_is_read_back(tmp_path):
    store.save_plan(tmp_path, PLAN)
    store.append(tmp_path, record())
    store.append(tmp_path, record(cut="b", risk={"fvu": math.nan, "refusal": "no"}, map=()))
    assert store.read_plan(tmp_path) == PLAN
    first, second = store.read(tmp_path)
    assert first == record()
    assert first.fvu == 0.5
    assert second.risk == {"fvu": None, "refusal": "no"}
    assert math.isnan(second.fvu)
    assert store.read_conclusion(tmp_path) is None


def test_a_conclusion_is_read_back(tmp_path):
    remedy = Remedy("a", 0.5, 0.4, 0.1, None, 12)
    found = Conclusion("a", None, True, ("a",), (0.5,), (None,), None, None, 3, 9, candidate="a", remedy=remedy)
    store.save_plan(tmp_path, PLAN)
    store.save_conclusion(tmp_path, found)
    assert store.read_conclusion(tmp_path) == found


def test_half_a_line_never_counted(tmp_path):
    store.append(tmp_path, record())
    with (tmp_path / store.FILE).open("ab") as file:
        file.write(b'{"cut": "b", "att')
    assert [r.cut for r in store.read(tmp_path)] == ["a"]
    store.append(tmp_path, record(cut="c"))
    assert [r.cut for r in store.read(tmp_path)] == ["a", "c"]


def test_damage_is_told(tmp_path):
    with pytest.raises(BadInput, match="holds no scan"):
        store.read_plan(tmp_path)
    (tmp_path / store.PLAN).write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        store.read_plan(tmp_path)
    (tmp_path / store.PLAN).write_text('{"case": {}}')
    with pytest.raises(BadInput, match="cannot be read"):
        store.read_plan(tmp_path)
    (tmp_path / store.PLAN).write_text("[]")
    with pytest.raises(BadInput, match="cannot be read"):
        store.read_plan(tmp_path)
    (tmp_path / store.FILE).write_text('{"what": 1}\n')
    with pytest.raises(BadInput, match="line 1"):
        store.read(tmp_path)
