"""The appendix of the report: the record of every number, whole and as JSON, with the command that made it.

An anchor is a promise between a table and the appendix: a stated number links to it, and the appendix has the record with that id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from leakgauge.audit import records
from leakgauge.audit.files import finite, line_of
from leakgauge.audit.questions import defense_records as defenses
from leakgauge.audit.questions import properties, split_records, training
from leakgauge.audit.questions.defense_records import DefenseRecord
from leakgauge.audit.questions.properties import PropertyRecord
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.records import Record
from leakgauge.errors import BadInput

MOST_ENTRIES = 500
"""Numbers of one list that the page holds; the file in the run folder holds them all."""
_MANY = 24  # numbers of a list that paper has room for
_SHORT = 160  # letters that go on one line


@dataclass(frozen=True)
class Source:
    """One record, or a few that belong together, as in the run folder."""

    anchor: str
    title: str
    command: str
    json: Markup


@dataclass(frozen=True)
class Group:
    """The records of one question. ``left_out`` says what the page does not hold."""

    key: str
    title: str
    files: str
    sources: tuple[Source, ...]
    left_out: str = ""


def anchor(kind: str, number: int | None = None) -> str:
    """Of one case, cut, defense or property (from 1), of the look at a training at a step, or of all of it."""
    return f"record-{kind}" if number is None else f"record-{kind}-{number}"


def of_cases(found: Sequence[Record]) -> Group:
    sources = []
    for number, record in enumerate(found, start=1):
        try:
            fields = json.loads(line_of(records.to_json(record)))
        except ValueError as error:
            raise BadInput(
                f"record {record.key!r} holds a value that is not a number; measure the case again"
            ) from error
        title = f"Set-up {number}: {record.case.name}"
        sources.append(Source(anchor("case", number), title, record.command, pretty(fields)))
    return Group("updates", "Updates", records.FILE, tuple(sources))


def of_training(run: MonitorRun, looks: Sequence[Mapping[str, Any]]) -> Group:
    """The training itself and those ``looks`` at it that the page quotes."""
    command = str(run.about.get("command") or "")
    whole = {"run": run.about, "end": run.end} | ({"paper": run.paper} if run.paper else {})
    sources = [Source(anchor("training"), "The training", command, pretty(whole))]
    sources += [
        Source(anchor("training", look["step"]), f"Report at step {look['step']}", command, pretty(look))
        for look in looks
    ]
    missing = len(run.reports) - len(looks)
    verb = "is" if missing == 1 else "are"
    said = f"{missing} of {len(run.reports)} reports {verb} not repeated here" if missing else ""
    return Group("training", "Training", training.FILE, tuple(sources), said)


def of_scan(folder: Path) -> Group:
    plan, found = split_records.read_plan(folder), split_records.read(folder)
    conclusion = split_records.read_conclusion(folder)
    whole = {"plan": asdict(plan), "conclusion": None if conclusion is None else asdict(conclusion)}
    sources = [Source(anchor("scan"), "Plan and conclusion", plan.command, pretty(finite(whole)))]
    for number, cut in enumerate(plan.cuts, start=1):
        own = [finite(asdict(record)) for record in found if record.cut == cut["name"]]
        if own:
            sources.append(Source(anchor("cut", number), f"Cut {number}: {cut['name']}", plan.command, pretty(own)))
    files = f"{split_records.PLAN}, {split_records.FILE} and {split_records.CONCLUSION}"
    return Group("split", "Split", files, tuple(sources))


def of_defenses(found: Sequence[DefenseRecord]) -> Group:
    sources = []
    for number, record in enumerate(found, start=1):
        fields = json.loads(line_of(defenses.to_json(record)))
        sources.append(
            Source(anchor("defense", number), f"Trial {number}: {record.name}", record.command, pretty(fields))
        )
    return Group("defenses", "Defenses", defenses.FILE, tuple(sources))


def of_properties(found: Sequence[PropertyRecord]) -> Group:
    sources = [
        Source(anchor("property", k), f"Probe {k}: {one.name}", one.command, pretty(finite(asdict(one))))
        for k, one in enumerate(found, start=1)
    ]
    return Group("properties", "Properties", properties.FILE, tuple(sources))


def pretty(value: Any) -> Markup:
    """The value as escaped JSON: what is short on one line, the rest indented, long lists of numbers marked for paper.

    >>> print(pretty({"a": [1, None], "b": {"c": "<"}}))
    {&#34;a&#34;: [1, null], &#34;b&#34;: {&#34;c&#34;: &#34;&lt;&#34;}}
    """
    return Markup("".join(_written(value, "\n")))


def _written(value: Any, newline: str) -> Iterator[str]:
    """Pieces of markup. ``newline`` begins a line at the depth of ``value``."""
    is_list, deeper = isinstance(value, list | tuple), newline + "  "
    if is_list and _numeric(value):
        yield _numbers(value)
        return
    short = json.dumps(value, ensure_ascii=False)
    if len(short) <= _SHORT or not isinstance(value, list | tuple | Mapping):
        yield escape(short)
        return
    yield "[" if is_list else "{"
    for place, one in enumerate(value):
        yield ("," if place else "") + deeper
        if is_list:
            yield from _written(one, deeper)
        else:
            yield escape(json.dumps(one, ensure_ascii=False) + ": ")
            yield from _written(value[one], deeper)
    yield newline + ("]" if is_list else "}")


def _numbers(values: Sequence[Any]) -> str:
    """A list of numbers, or of such lists, on one line."""
    total = sum(1 for _ in _leaves(values))
    text = escape(json.dumps(_bounded(values), ensure_ascii=False))
    return text if total <= _MANY else Markup('<span class="many" data-count="{}"><b>{}</b></span>').format(total, text)


def _bounded(values: Sequence[Any]) -> list[Any]:
    """The list; where it is too long for a page, its beginning and how much is missing."""
    kept = [_bounded(one) if isinstance(one, list | tuple) else one for one in values[:MOST_ENTRIES]]
    missing = len(values) - len(kept)
    return [*kept, f"… {missing} more are in the run folder"] if missing else kept


def _numeric(values: Sequence[Any]) -> bool:
    return all(one is None or isinstance(one, int | float) or one in ("inf", "-inf") for one in _leaves(values))


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for one in values:
        if isinstance(one, list | tuple):
            yield from _leaves(one)
        else:
            yield one
