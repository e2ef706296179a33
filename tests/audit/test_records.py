"""Records survive what happens to files: a full disk, a killed process, a damaged line."""

from __future__ import annotations

import errno
import json
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.audit import records
from leakgauge.audit.case import Case, Change
from leakgauge.audit.files import line_of, write_whole
from leakgauge.audit.records import Curve, Frame, Record
from leakgauge.audit.scoring import Interval
from leakgauge.audit.verdict import Way
from leakgauge.errors import BadInput
from tests.made import record as made_record
from tests.made import scores, verdict


def record(key: str = "a", **fields) -> Record:
    return made_record(None, key=key, case=fields.pop("case", Case(name=key)), **fields)


def test_round_trip_keeps_everything(tmp_path):
    change = Change("batch of 1", "relaxation")
    whole = made_record(
        "partial",
        case=Case(batch_size=2, change=change, options={"steps": 3}),
        scores=scores(psnr=(math.inf, 12.5), images=2),
        start=scores(images=2),
        verdict=verdict("partial", images=2, glimpsed={Way.LAYOUT: 1}),
        intervals={"ssim": Interval(0.5, 0.4, 0.6, 3, 0.95)},
        curve=Curve((0, 1), ((0.5, None),)),
        notes=("a note", "zwei\nZeilen"),
        stated=(("rank", "full"),),
        progress=(Frame(0, "pictures/x.png"),),
    )
    records.append(tmp_path, whole)
    records.append(tmp_path, record("b"))
    assert records.read(tmp_path) == [whole, record("b")]
    assert (tmp_path / records.FILE).read_text().count("\n") == 2


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_stays_one_line(tmp_path_factory, text):
    """Unicode has more line ends than files have: a next-line or a paragraph sign is no end of a record."""
    folder = tmp_path_factory.mktemp("run")
    records.append(folder, record(case=Case(name=f"[{text}]"), reason=f"[{text}]"))
    records.append(folder, record("b"))
    first, second = records.read(folder)
    assert first.reason == first.case.name == f"[{text}]"
    assert second.key == "b"


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x1c", "\x0b", "\x0c"])
def test_line_signs_of_unicode(sign, tmp_path):
    records.append(tmp_path, record(reason=f"a{sign}b"))
    assert records.read(tmp_path)[0].reason == f"a{sign}b"


def test_not_a_number_is_refused_and_nothing_is_written(tmp_path):
    records.append(tmp_path, record())
    before = (tmp_path / records.FILE).read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        records.append(tmp_path, record("b", seconds=math.nan))
    assert (tmp_path / records.FILE).read_bytes() == before


def test_a_half_line_never_counted(tmp_path):
    records.append(tmp_path, record())
    path = tmp_path / records.FILE
    with path.open("ab") as file:
        file.write(line_of(records.to_json(record("half"))).encode()[:40])
    assert [r.key for r in records.read(tmp_path)] == ["a"]
    records.append(tmp_path, record("b"))
    assert [r.key for r in records.read(tmp_path)] == ["a", "b"]
    assert b"half" not in path.read_bytes()


def test_a_half_line_alone(tmp_path):
    (tmp_path / records.FILE).write_text('{"key": "ha')
    assert records.read(tmp_path) == []
    records.append(tmp_path, record())
    assert [r.key for r in records.read(tmp_path)] == ["a"]


@pytest.mark.parametrize("trouble", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_full_disk_or_an_interrupt_leaves_the_file_as_it_was(trouble, tmp_path, monkeypatch):
    records.append(tmp_path, record())
    path = tmp_path / records.FILE
    before = path.read_bytes()
    write = os.write

    def short(descriptor, data):
        if len(data) < 200:
            raise trouble
        return write(descriptor, data[:100])

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(type(trouble)):
        records.append(tmp_path, record("b"))
    assert path.read_bytes() == before
    monkeypatch.undo()
    records.append(tmp_path, record("b"))
    assert [r.key for r in records.read(tmp_path)] == ["a", "b"]


def test_short_writes_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    records.append(tmp_path, record())
    assert records.read(tmp_path) == [record()]


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"[]\n",
        b'{"key": "a"}\n',
        b"\xff\xfe\n",
        b"\n",
        json.dumps({**records.to_json(record()), "new": 1}).encode() + b"\n",
        json.dumps({**records.to_json(record()), "format": 99}).encode() + b"\n",
    ],
    ids=["no json", "a list", "fields missing", "no text", "empty", "unknown field", "a later format"],
)
def test_a_damaged_line_is_named(line, tmp_path):
    records.append(tmp_path, record())
    with (tmp_path / records.FILE).open("ab") as file:
        file.write(line)
    with pytest.raises(BadInput, match=r"line 2 of .*records\.jsonl cannot be read"):
        records.read(tmp_path)


def test_a_folder_without_records(tmp_path):
    with pytest.raises(BadInput, match="is not a run folder"):
        records.read(tmp_path)


@pytest.mark.parametrize("trouble", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("when", ["os.fdopen", "pathlib.Path.replace"])
def test_a_file_is_written_whole_or_not_at_all(when, trouble, tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    write_whole(path, b"old")

    def fail(*_):
        raise trouble

    monkeypatch.setattr(when, fail)
    with pytest.raises(type(trouble)):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]
