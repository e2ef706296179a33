"""A run for machines and reviewers: a gate for continuous integration, JSON, JUnit XML, and Markdown for a pull request.

In Markdown, names and sentences are escaped: none can add a link, a mention or HTML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from leakgauge.audit.advice import advise
from leakgauge.audit.compare import ORDER, Comparison, Difference
from leakgauge.audit.findings import Findings
from leakgauge.audit.phrasing import metric, moved
from leakgauge.audit.records import Record
from leakgauge.audit.scoring import Scores
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import LIMITS, Statement, cause_rows, raced, rule, statements, why
from leakgauge.audit.wording.bracket import bracket_sentence, brackets
from leakgauge.errors import BadInput, harmless

EXIT_CODE = 3
"""What a command returns when a verdict is over the limit; 1 is an unexpected error, 2 a user's mistake."""


def limit_of(text: str) -> Outcome:
    """The worst outcome that is still allowed, as written on the command line.

    >>> limit_of("infeasible")
    <Outcome.INFEASIBLE: 'infeasible_within_budget'>
    """
    allowed = {"infeasible": Outcome.INFEASIBLE, "inconclusive": Outcome.INCONCLUSIVE, "partial": Outcome.PARTIAL}
    written = {**allowed, Outcome.INFEASIBLE.value: Outcome.INFEASIBLE}
    if text not in written:
        raise BadInput(
            f"--fail-over takes {', '.join(list(allowed)[:-1])} or {list(allowed)[-1]}, the worst verdict that passes, got {text!r}"
        )
    return written[text]


def judged(records: Sequence[Record]) -> list[Record]:
    """Records with a verdict of set-ups that were asked for: not refusals, errors, or single changes that explain a verdict."""
    return [r for r in records if r.outcome is not None and r.change is None]


def over(records: Sequence[Record], limit: Outcome) -> list[Record]:
    """Judged records with a verdict that leaks more than ``limit``."""
    return [r for r in judged(records) if r.outcome is not None and r.outcome.severity > limit.severity]


def exit_code(records: Sequence[Record], limit: Outcome | None) -> int:
    """0 passed; 1 a case failed unexpectedly or was withdrawn; 3 a verdict is over the limit, or no case was judged at all."""
    if limit is not None and (over(records, limit) or not judged(records)):
        return EXIT_CODE
    return 1 if any(r.broken for r in records) else 0


def summary(records: Sequence[Record], limit: Outcome | None, findings: Findings | None = None) -> dict[str, Any]:
    """The run in a few fields per case, and in a few words per question where there are ``findings``."""
    failing = {r.key for r in over(records, limit)} if limit is not None else set()
    return {
        "fail_over": limit,
        "exit_code": exit_code(records, limit),
        "cases": [
            {
                "name": r.case.name,
                "key": r.key,
                "status": r.status,
                "verdict": r.outcome,
                "rule": "" if r.verdict is None else rule(r.verdict),
                "cause": None if r.verdict is None else r.verdict.cause,
                "lacks": [] if r.verdict is None else list(r.verdict.lacks),
                "control": None if r.control is None else r.control.passed,
                "reason": r.reason,
                "over_limit": r.key in failing,
                "psnr": _mean(r, "psnr"),
                "ssim": _mean(r, "ssim"),
                "bound": None if r.bound is None else asdict(r.bound),
                "unbounded": r.unbounded,
                "bracket": bracket_sentence(r),
                "certified": list(r.certified),
                "identifiable": None if r.identifiable is None else asdict(r.identifiable),
                "layout": _mean(r, "layout"),
                "pieces_lead": _mean(r, "pieces_lead"),
                "seconds": round(r.seconds, 3),
                "command": r.command,
            }
            for r in records
        ],
        "questions": {} if findings is None else {one.question: _answered(one) for one in statements(findings)},
    }


UNFINISHED = "the run ended before there was a verdict"


def unfinished(limit: Outcome | None) -> dict[str, bytes]:
    """What the files for machines hold until there is a verdict, by kind: a run that was killed must not leave an earlier pass."""
    suite = ElementTree.Element("testsuite", name="leakgauge", tests="1", failures="0", errors="1", skipped="0")
    case = ElementTree.SubElement(suite, "testcase", name="gate", classname="leakgauge", time="0.000")
    ElementTree.SubElement(case, "error", message=UNFINISHED)
    found = {"fail_over": limit, "exit_code": 2, "reason": UNFINISHED, "cases": [], "questions": {}}
    return {
        "json": json.dumps(found, indent=1).encode(),
        "junit": ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True),
        "markdown": f"### leakgauge: no verdict\n\n**Gate failed**: {UNFINISHED}.\n".encode(),
    }


def _answered(one: Statement) -> dict[str, Any]:
    """Tone is bad, partly, good, or none where the question has no answer."""
    return {"tone": one.tone, "word": one.badge, "sentences": list(one.sentences), "budget": one.budget}


def _mean(record: Record, name: str) -> float | str | None:
    value = None if record.scores is None else record.scores.mean(name)
    return "inf" if value == float("inf") else value


def junit(records: Sequence[Record], limit: Outcome | None, findings: Findings | None = None) -> bytes:
    """The run as JUnit XML: over the limit is a failure, a crash an error, a refusal skipped. Questions are properties.

    Where nothing at all was judged, a case named gate fails, as the exit code does.
    """
    failing = {r.key for r in over(records, limit)} if limit is not None else set()
    unjudged = limit is not None and not judged(records)  # fails the gate, and no single case says so
    suite = ElementTree.Element(
        "testsuite",
        name="leakgauge",
        tests=str(len(records) + unjudged),
        failures=str(len(failing) + unjudged),
        errors=str(sum(r.broken for r in records)),
        skipped=str(sum(r.status == "refused" for r in records)),
        time=f"{sum(r.seconds for r in records):.3f}",
    )
    if findings is not None:
        properties = ElementTree.SubElement(suite, "properties")
        for one in statements(findings):
            value = _printable(f"{one.badge}: {one.text}")
            ElementTree.SubElement(properties, "property", name=one.question, value=value)
    for r in records:
        case = ElementTree.SubElement(
            suite, "testcase", name=_printable(r.case.name), classname=_printable(r.case.model), time=f"{r.seconds:.3f}"
        )
        if r.key in failing and r.verdict is not None:
            message = _printable(f"{r.verdict.outcome.label}: {rule(r.verdict)}")
            ElementTree.SubElement(case, "failure", message=message).text = _printable(r.command)
        elif r.broken:
            ElementTree.SubElement(case, "error", message=_printable(r.reason)).text = _printable("\n".join(r.notes))
        elif r.status == "refused":
            ElementTree.SubElement(case, "skipped", message=_printable(r.reason))
        if r.verdict is not None:
            figures = (f"SSIM {_figure(r.scores, 'ssim')}", f"PSNR {_figure(r.scores, 'psnr')}")
            said = [f"verdict: {r.verdict.outcome.label}", ", ".join(figures), f"rule: {rule(r.verdict)}", raced(r)]
            said += [*(f"{name}: {value}" for name, value in cause_rows(r)), bracket_sentence(r)]
            ElementTree.SubElement(case, "system-out").text = _printable("\n".join(filter(None, said)))
    if unjudged:
        case = ElementTree.SubElement(suite, "testcase", name="gate", classname="leakgauge", time="0.000")
        ElementTree.SubElement(case, "failure", message="no case produced a verdict")
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold, such as the colours of a terminal in a message."""
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", harmless(text))


_NOT_IN_XML = re.compile("[\\ufffe\\uffff]")


ROWS = 12
"""Rows of a table that stand open; the others are folded away."""
ADVICE = 3
_JOINER = "\u2060"  # invisible; what follows is no longer a mention, a reference or an address
_MARKS = {"worse": "🔴 ", "lost": "⚪ ", "better": "🟢 "}


def plain(text: object) -> str:
    """Text that is shown as it is: no emphasis, code, link, mention, issue reference, table cell or HTML.

    >>> plain("a|b <i>*c*</i>")
    'a\\\\|b &lt;i&gt;\\\\*c\\\\*&lt;/i&gt;'
    """
    line = harmless(" ".join(str(text).split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_\[\]|~])", r"\\\1", line)
    line = re.sub(r"([@#])(?=\w)", rf"\1{_JOINER}", line)
    line = re.sub(r"(?i)(https?|ftp|www)(?=[:.])", rf"\1{_JOINER}", line)
    return re.sub(
        r"^(\s*)([-+=]|\d+(?=[.)](?:\s|$)))", r"\1\\\2" if re.match(r"\s*[-+=]", line) else rf"\1\2{_JOINER}", line
    )


def code(text: object) -> str:
    """Text as a code span, also inside a table.

    >>> code("a`b|c")
    "`a'b\\\\|c`"
    """
    line = harmless(" ".join(str(text).split())).replace("`", "'").replace("|", "\\|")
    return f"`{line or ' '}`"


def run_summary(
    records: Sequence[Record], findings: Findings | None, *, limit: Outcome | None, report: str = ""
) -> str:
    """One run: the verdict, the gate, a small table, what to do, and the rest folded away."""
    findings = findings or Findings()
    answered = [one for one in statements(findings) if one.state != "not_asked"]
    first = answered[0] if answered else None
    lines = [f"### leakgauge: {plain(first.badge) if first else 'no result'}", ""]
    lines += [plain(first.text), ""] if first else []
    lines += [*_gate(records, limit), ""]
    rows = [_row(record) for record in records]
    head = ("set-up", "verdict", "SSIM", "PSNR", "null PSNR", "why")
    lines += _table(head, rows[:ROWS])
    lines += [f"- **{plain(v.asked)}** {plain(v.badge)}: {plain(v.text)}" for v in answered[1:]]
    lines += [""] if answered[1:] else []
    advice = advise(findings)
    if advice:
        lines += ["**What to do**", ""]
        lines += [f"{i}. **{plain(one.title)}** {plain(one.why)}" for i, one in enumerate(advice[:ADVICE], 1)]
        lines.append("")
    inner = _table(head, rows[ROWS:])
    for verdict in answered:
        inner += [f"- {plain(verdict.asked)}"]
        inner += [f"  - {plain(kind)}: {plain(what)}" for kind, what in verdict.assumptions]
        inner += [f"  - budget: {plain(verdict.budget)}"] if verdict.budget else []
    inner += [f"- {plain(said)}" for said in brackets(records)]
    inner += [f"- {code(r.case.name)}: {plain(r.reason)}" for r in records if r.reason]
    inner += [f"- {plain(', '.join(f'{k} {v}' for k, v in records[-1].versions.items()))}"] if records else []
    inner += [f"- report: {code(report)}"] if report else []
    inner += ["", LIMITS[0]]
    return "\n".join([*lines, *_folded("Assumptions, budget, versions", inner)])


def comparison_summary(found: Comparison) -> str:
    """Two runs: what got worse first, then the warnings, then everything else folded away."""
    lines = [f"### leakgauge: {plain(found.sentence)}", "", f"{code(found.before)} → {code(found.after)}", ""]
    lines += [*(f"> ⚠️ {plain(warning)}" for warning in found.warnings), *([""] if found.warnings else [])]
    rows = [
        (
            code(pair.name), _word(pair.before), _word(pair.after),
            _MARKS.get(pair.direction, "") + ORDER[pair.direction], *(_moved(d) for d in pair.differences),
        )
        for pair in found.cases
    ]  # fmt: skip
    head = ("set-up", "before", "after", "change", "SSIM", "PSNR")
    lines += _table(head, rows[:ROWS])
    others = [
        (
            plain(c.what),
            plain(c.before),
            plain(c.after),
            _MARKS.get(c.direction, "") + ORDER[c.direction],
            plain(c.note),
        )
        for c in found.changes
    ]
    lines += _table(("also", "before", "after", "change", "note"), others[:ROWS])
    inner = _table(head, rows[ROWS:])
    inner += _table(("also", "before", "after", "change", "note"), others[ROWS:])
    for pair in found.cases:
        inner += [f"- {code(pair.name)}: {plain(note)}" for note in (*pair.notes, *_spreads(pair.differences))]
    inner += [f"- only before: {code(name)}" for name in found.only_before]
    inner += [f"- only after: {code(name)}" for name in found.only_after]
    inner += [f"- {plain(name)}: {code(a)} → {code(b)}" for name, a, b in found.settings]
    return "\n".join([*lines, *_folded("Spread, settings and what only one run has", inner)])


def _gate(records: Sequence[Record], limit: Outcome | None) -> list[str]:
    if limit is None:
        return []
    failing, every, allowed = over(records, limit), judged(records), limit.label
    if failing:
        return [f"**Gate failed**: {len(failing)} of {len(every)} judged set-ups are worse than *{allowed}*."]
    if not every:
        return ["**Gate failed**: no set-up was judged."]
    return [f"**Gate passed**: no set-up is worse than *{allowed}*."]


def _row(record: Record) -> tuple[str, ...]:
    figures = (_figure(record.scores, "ssim"), _figure(record.scores, "psnr"), _figure(record.null, "psnr"))
    return code(record.case.name), _word(record), *figures, plain("" if record.verdict is None else why(record.verdict))


def _word(record: Record) -> str:
    return plain(record.status) if record.outcome is None else f"{_DOTS[record.outcome]} {record.outcome.label}"


_DOTS = {Outcome.FEASIBLE: "🔴", Outcome.PARTIAL: "🟠", Outcome.INCONCLUSIVE: "⚪", Outcome.INFEASIBLE: "🔵"}


def _figure(scores: Scores | None, name: str) -> str:
    return "" if scores is None else metric(name, scores.mean(name), unit=True)


def _moved(difference: Difference) -> str:
    if difference.value is None:
        return ""
    return (
        moved(difference.metric, difference.value, unit=True)
        + {True: "", False: " (within spread)", None: " (spread unknown)"}[difference.beyond]
    )


def _spreads(differences: Iterable[Difference]) -> list[str]:
    """SSIM speaks for both figures, which come from the same restarts."""
    return [f"SSIM: {d.note}" for d in differences if d.note and d.metric == "ssim"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """With an empty line after it; nothing without rows."""
    return [*(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)), ""] if rows else []


def _folded(title: str, inner: Sequence[str]) -> list[str]:
    return ["<details>", f"<summary>{title}</summary>", "", *inner, "", "</details>", ""] if inner else []
