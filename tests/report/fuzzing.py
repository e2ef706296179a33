"""One value of a run file replaced by something that is none, and everything that is made of a run folder made again.

A try is clean if the views are made and show nothing that a name could smuggle in, or if the file is refused in one sentence.
"""

from __future__ import annotations

import copy
import json
import math
import random
import re
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from leakgauge.audit import evidence, gate, plan, records
from leakgauge.audit.case import Case
from leakgauge.audit.compare import compare
from leakgauge.audit.findings import read_findings
from leakgauge.audit.plan import Plan
from leakgauge.audit.questions import answers, properties, training
from leakgauge.audit.questions import defense_records as defenses
from leakgauge.audit.questions.answers import Answer
from leakgauge.audit.questions.defense_records import Trial
from leakgauge.audit.questions.training import TrainingPlan
from leakgauge.audit.request import Effort, Request
from leakgauge.audit.verdict import Outcome
from leakgauge.errors import BadInput
from leakgauge.report import compare_page
from leakgauge.report.page import render
from tests.made import TOLD, tried

from .eight_setups import make_record
from .made_scan import make_scan
from .made_training import make_monitored, store_monitored

GONE = object()
"""Stands for a field that is missing."""
TAG = "</script><img src=x onerror=fuzzed()>"
ESCAPE = "\x1b]0;fuzzed\x07\x1b[2J"
PAYLOADS: tuple[Any, ...] = (
    GONE, None, True, False, 0, 1, -1, 3, 1.5, -0.0, 10**6, 10**9, 2**63 - 1, -(2**63) + 1, 10**30, 10**400, 1e-300, 1e140, 1e308, -1e308,
    math.nan, math.inf, "inf", "-inf", "", "x", "0", "done", "cnn", "aggregate:clients=1000000000", "prune:x", "2020-01-01",
    "../../../etc/passwd", "/etc/passwd", "pictures", "%s{}{0}", TAG, ESCAPE, "\ud800", "\x00", "é" * 3000,
    [], {}, [1], ["x"], [[]], [None], {"a": 1}, {"": {}}, {TAG: 1},
)  # fmt: skip
CPU_SECONDS, MEMORY = 20, 2**31
"""That a try may take; it takes a tenth of a second."""


def make_run(folder: Path) -> Path:
    """A small run of all four questions, made by hand."""
    folder.mkdir()
    case = Case(batch_size=2)
    records.append(folder, make_record(folder, "one", name="one", batch=2))
    records.append(folder, make_record(folder, "two", name="two", batch=2, mode="train"))
    store_monitored(folder, make_monitored(reports=4))
    for sub_epoch in (0, 1):
        training.append(
            folder, "paper", {"sub_epoch": sub_epoch, "collected": 0.2, "decoy": 0.1, "null": 0.0, "held_out": None}
        )
    make_scan(folder)
    for spec, outcome in (("", Outcome.FEASIBLE), ("prune:0.9", Outcome.PARTIAL)):
        defenses.append(folder, tried(spec, outcome))
    properties.STORE.append(folder, TOLD)
    asked = Request(("updates", "training", "split", "defenses", "properties"), case, (case,), (), case, Effort())
    planned = Plan(
        asked, (case,), (), TrainingPlan(case, 10, 2, 4, "x"), 3, (Trial(case, 5),), {}, {"updates": 1.5}, 2.0, ("a",)
    )
    plan.save(folder, planned)
    answers.append(folder, Answer("training", "answered"))
    answers.append(folder, Answer("split", "answered"))
    evidence.STORE.append(folder, evidence.Inputs("cnn", "a" * 64, "b" * 64, "c" * 64, "", evidence.now()))
    evidence.withdraw(folder, "two", author="a", reason="b")
    return folder


@dataclass(frozen=True)
class Try:
    """In ``file``, line ``line`` (None: the whole file), the value at ``way`` is replaced by ``payload``."""

    file: str
    line: int | None
    way: tuple[str | int, ...]
    payload: Any

    def __str__(self) -> str:
        said = "nothing" if self.payload is GONE else repr(self.payload)[:60]
        return f"{self.file}{'' if self.line is None else f':{self.line + 1}'} {'.'.join(map(str, self.way))} = {said}"


def every_try(folder: Path) -> list[Try]:
    """Each value of each file of the run with each payload."""
    return [
        Try(path.name, line, way, payload)
        for path in sorted(folder.iterdir())
        if path.suffix in (".json", ".jsonl")
        for line, value in _values(path)
        for way in _ways(value)
        for payload in PAYLOADS
    ]


def drawn(folder: Path, count: int, *, seed: int) -> list[Try]:
    """So many of all tries, alike for the same run and seed; each field comes up about equally often, however long its list is."""
    groups: dict[object, list[Try]] = {}
    for one in every_try(folder):
        fields = tuple(step for step in one.way if isinstance(step, str))
        groups.setdefault((one.file, fields), []).append(one)
    rng, names = random.Random(seed), sorted(groups, key=str)
    return [rng.choice(groups[names[i % len(names)]]) for i in range(count)]


def _values(path: Path) -> Iterator[tuple[int | None, Any]]:
    if path.suffix == ".json":
        yield None, json.loads(path.read_bytes())
    else:
        yield from ((number, json.loads(line)) for number, line in enumerate(path.read_bytes().splitlines()))


def _ways(value: Any, way: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield way
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, one in inner:
        yield from _ways(one, (*way, step))


def changed(value: Any, way: Sequence[str | int], payload: Any) -> Any:
    """The value with what is at ``way`` replaced, or removed."""
    if not way:
        return {} if payload is GONE else payload
    made = copy.deepcopy(value)
    at = made
    for step in way[:-1]:
        at = at[step]
    if payload is GONE:
        del at[way[-1]]
    else:
        at[way[-1]] = payload
    return made


@contextmanager
def applied(folder: Path, one: Try) -> Iterator[None]:
    path = folder / one.file
    before = path.read_bytes()
    lines = [before] if one.line is None else before.splitlines()
    lines[one.line or 0] = json.dumps(changed(json.loads(lines[one.line or 0]), one.way, one.payload)).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    try:
        yield
    finally:
        path.write_bytes(before)


class TookTooLong(Exception):
    pass


@contextmanager
def limited() -> Iterator[None]:
    """Inside, no more than so much processor time and memory are taken."""

    def stop(*_: object) -> None:
        raise TookTooLong

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, hard))
    old = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(folder: Path, other: Path, one: Try) -> str:
    """``made``, ``refused``, or what went wrong."""
    with applied(folder, one), limited():
        try:
            _look_at_everything(folder, other)
        except BadInput as refusal:
            said = str(refusal)
            return "refused" if "\n" not in said else f"more than a sentence: {said[:200]}"
        except Exception as crash:  # noqa: BLE001 - that is what is looked for
            trace, place = crash.__traceback__, ""
            while trace is not None:
                code = trace.tb_frame.f_code
                place = f"{Path(code.co_filename).name}:{trace.tb_lineno} {code.co_name}"
                trace = trace.tb_next
            return f"{type(crash).__name__}: {str(crash)[:100]} ({place})"
    return "made"


def _look_at_everything(folder: Path, other: Path) -> None:
    """Makes page, Markdown, JUnit, JSON and the comparison with the run ``other``, and checks that nothing got out of its quotes."""
    cases, found = records.read(folder), read_findings(folder)
    compared = compare(other, folder)
    texts = {
        "page": render(folder),
        "markdown": gate.run_summary(cases, found, limit=Outcome.PARTIAL),
        "junit": gate.junit(cases, Outcome.PARTIAL, found).decode(),
        "json": json.dumps(gate.summary(cases, Outcome.PARTIAL, found), allow_nan=False),
        "comparison": compare_page.render(compared),
        "summary of the comparison": gate.comparison_summary(compared),
    }
    ElementTree.fromstring(texts["junit"])
    for name, text in texts.items():
        text.encode()
        assert "\x1b" not in text, f"{name} holds an escape of a terminal"
        assert "\x00" not in text, f"{name} holds a NUL"
        assert name == "json" or "<img src=x" not in re.sub("`[^`]*`", "", text), f"{name} holds a foreign tag"


__all__ = ["drawn", "every_try", "make_run", "outcome"]
