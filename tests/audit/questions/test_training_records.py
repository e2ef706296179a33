"""The file of a monitored training: whole lines only, whatever happens."""

from __future__ import annotations

import json
import math

import pytest

from leakgauge.audit.questions import training
from leakgauge.audit.questions.training import FILE, append, exists, read
from leakgauge.errors import BadInput


def test_what_is_appended_is_read_again(tmp_path):
    assert not exists(tmp_path)
    append(tmp_path, "run", {"model": "LeNet"})
    append(tmp_path, "report", {"step": 1, "scalars": {"privacy/top1": 0.5}})
    append(tmp_path, "paper", {"sub_epoch": 0})
    append(tmp_path, "end", {"how": "finished"})
    assert exists(tmp_path)
    found = read(tmp_path)
    assert found.about == {"model": "LeNet", "audited": False}
    assert found.reports == ({"step": 1, "scalars": {"privacy/top1": 0.5}},)
    assert found.paper == ({"sub_epoch": 0},)
    assert found.end == {"how": "finished"}


def test_lines_are_plain_json_and_what_is_not_a_number_is_null(tmp_path):
    append(tmp_path, "report", {"step": 1, "scalars": {"a": math.nan, "b": math.inf, "c": 1.5}, "notes": ("ä",)})
    (line,) = (tmp_path / FILE).read_text("utf-8").splitlines()
    assert json.loads(line) == {
        "kind": "report", "step": 1, "scalars": {"a": None, "b": None, "c": 1.5}, "notes": ["ä"],
    }  # fmt: skip


def test_the_later_report_of_a_step_counts(tmp_path):
    for value in (1.0, 2.0):
        append(tmp_path, "report", {"step": 5, "scalars": {"a": value}})
    (report,) = read(tmp_path).reports
    assert report["scalars"] == {"a": 2.0}


def test_half_a_line_never_counted(tmp_path):
    append(tmp_path, "run", {"model": "A"})
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"kind": "report", "st')
    assert read(tmp_path) == training.MonitorRun(about={"model": "A", "audited": False})
    append(tmp_path, "end", {"how": "finished"})
    assert read(tmp_path).end == {"how": "finished"}


@pytest.mark.parametrize("line", ["[1]", "3", "{}", '{"kind": "other"}', '{"kind": "report", "step": 1}', "nonsense"])
def test_a_foreign_line_is_named(tmp_path, line):
    append(tmp_path, "run", {})
    with (tmp_path / FILE).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(BadInput, match=r"line 2 of .*monitor\.jsonl cannot be read"):
        read(tmp_path)


def test_a_folder_without_the_file(tmp_path):
    with pytest.raises(BadInput, match="holds no monitored training"):
        read(tmp_path)
