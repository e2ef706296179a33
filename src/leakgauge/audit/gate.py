"""A gate for continuous integration: which verdicts are worse than allowed, for machines to read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from leakgauge.audit.advice.sentences import QuestionVerdict, verdicts
from leakgauge.audit.explain import change_in
from leakgauge.audit.findings import Findings
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import SEVERITY
from leakgauge.errors import BadInput

EXIT_CODE = 3
"""What a command returns when a verdict is over the limit; 1 is an unexpected error, 2 a user's mistake."""


def limit_of(text: str) -> str:
    """The worst outcome that is still allowed, as written on the command line.

    >>> limit_of("infeasible")
    'infeasible_within_budget'
    """
    allowed = {"infeasible": "infeasible_within_budget", "partial": "partial"}
    written = {**allowed, "infeasible_within_budget": "infeasible_within_budget"}
    if text not in written:
        raise BadInput(f"--fail-over takes {' or '.join(allowed)}, the worst verdict that passes, got {text!r}")
    return written[text]


def judged(records: Sequence[Record]) -> list[Record]:
    """Records with a verdict of set-ups that were asked for: not refusals, errors, or single changes that explain a verdict."""
    return [r for r in records if r.verdict is not None and not change_in(r.case["name"])]


def over(records: Sequence[Record], limit: str) -> list[Record]:
    """Judged records whose verdict leaks more than ``limit``."""
    return [r for r in judged(records) if r.verdict is not None and SEVERITY[r.verdict] > SEVERITY[limit]]


def exit_code(records: Sequence[Record], limit: str | None) -> int:
    """0 passed; 1 a case failed unexpectedly; 3 a verdict is over the limit, or no case was judged at all."""
    if limit is not None and (over(records, limit) or not judged(records)):
        return EXIT_CODE
    return 1 if any(r.status == "error" for r in records) else 0


def summary(records: Sequence[Record], limit: str | None, findings: Findings | None = None) -> dict[str, Any]:
    """The run in a few fields per case, and in a few words per question where there are ``findings``."""
    failing = {r.key for r in over(records, limit)} if limit is not None else set()
    return {
        "fail_over": limit,
        "exit_code": exit_code(records, limit),
        "cases": [
            {
                "name": r.case["name"],
                "key": r.key,
                "status": r.status,
                "verdict": r.verdict,
                "rule": r.rule,
                "reason": r.reason,
                "over_limit": r.key in failing,
                "psnr": _mean(r, "psnr"),
                "ssim": _mean(r, "ssim"),
                "layout": _mean(r, "layout"),
                "pieces_lead": _mean(r, "pieces_lead"),
                "seconds": round(r.seconds, 3),
                "command": r.command,
            }
            for r in records
        ],
        "questions": {} if findings is None else {v.question: _answered(v) for v in verdicts(findings)},
    }


def _answered(verdict: QuestionVerdict) -> dict[str, Any]:
    """Tone is bad, partly, good, or none where the question has no answer."""
    return {"tone": verdict.tone, "word": verdict.word, "sentences": list(verdict.sentences), "budget": verdict.budget}


def _mean(record: Record, metric: str) -> float | str | None:
    value = (record.metrics.get(metric) or {}).get("mean")
    return "inf" if value == float("inf") else value


def junit(records: Sequence[Record], limit: str | None, findings: Findings | None = None) -> bytes:
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
        errors=str(sum(r.status == "error" for r in records)),
        skipped=str(sum(r.status == "refused" for r in records)),
        time=f"{sum(r.seconds for r in records):.3f}",
    )
    if findings is not None:
        properties = ElementTree.SubElement(suite, "properties")
        for verdict in verdicts(findings):
            said = f"{verdict.word}: {' '.join(verdict.sentences)}"
            ElementTree.SubElement(properties, "property", name=verdict.question, value=_printable(said))
    for r in records:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            name=_printable(r.case["name"]),
            classname=_printable(r.case["model"]),
            time=f"{r.seconds:.3f}",
        )
        if r.key in failing:
            ElementTree.SubElement(case, "failure", message=f"{r.verdict}: {r.rule}").text = _printable(r.command)
        elif r.status == "error":
            ElementTree.SubElement(case, "error", message=_printable(r.reason)).text = _printable("\n".join(r.notes))
        elif r.status == "refused":
            ElementTree.SubElement(case, "skipped", message=_printable(r.reason))
    if unjudged:
        case = ElementTree.SubElement(suite, "testcase", name="gate", classname="leakgauge", time="0.000")
        ElementTree.SubElement(case, "failure", message="no set-up was judged, so that nothing is known of it")
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)


def _printable(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold, such as the colours of a terminal in a message."""
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


_NOT_IN_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
