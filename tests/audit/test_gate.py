"""The gate: what fails, with which code, and files that other programs can read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from leakgauge.audit import gate
from leakgauge.audit.bounds import Bound, Unbounded
from leakgauge.audit.case import Case, Change
from leakgauge.audit.findings import Findings, Split
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import rule
from leakgauge.audit.wording.bracket import bracket_sentence
from leakgauge.errors import BadInput
from tests.made import FEASIBLE, INFEASIBLE, PARTIAL, scores
from tests.made import record as made_record


def record(outcome: Outcome | None, *, status: str = "done", number: int = 0) -> Record:
    case = Case(name=f"case {number} <&>", seed=number)
    reason = "" if outcome else "boom"
    found = {} if outcome is None else {"scores": scores(0.5, math.inf)}
    return made_record(
        outcome, case=case, key=f"k{number}", status=status, seconds=1.5, reason=reason, notes=("Traceback …",), **found
    )


@pytest.mark.parametrize(
    ("limit", "verdict", "code"),
    [
        ("infeasible", INFEASIBLE, 0),
        ("infeasible", PARTIAL, 3),
        ("infeasible", FEASIBLE, 3),
        ("partial", INFEASIBLE, 0),
        ("partial", PARTIAL, 0),
        ("partial", FEASIBLE, 3),
        (None, FEASIBLE, 0),
    ],
)
def test_a_verdict_over_the_limit_fails(limit, verdict, code):
    limit = None if limit is None else gate.limit_of(limit)
    assert gate.exit_code([record(INFEASIBLE), record(verdict)], limit) == code


def test_errors_and_refusals():
    error, refused = record(None, status="error"), record(None, status="refused")
    assert gate.exit_code([error, record(PARTIAL)], PARTIAL) == 1
    assert gate.exit_code([error, record(FEASIBLE)], PARTIAL) == 3
    assert gate.exit_code([refused, record(PARTIAL)], PARTIAL) == 0
    assert gate.exit_code([refused], PARTIAL) == 3  # nothing was judged: the gate cannot vouch for it
    assert gate.exit_code([refused], None) == 0


def test_single_changes_explain_a_verdict_and_are_not_judged():
    """Half of the pixels given is help that no server has: it says why, but must not fail a build."""
    change = record(FEASIBLE, number=1)
    help_ = Change("half of the pixels given", "relaxation")
    change = replace(change, case=replace(change.case, change=help_))
    assert gate.exit_code([record(INFEASIBLE), change], INFEASIBLE) == 0
    assert [c["over_limit"] for c in gate.summary([record(PARTIAL), change], INFEASIBLE)["cases"]] == [True, False]
    assert gate.exit_code([change], PARTIAL) == 3  # the set-up itself was not judged
    assert gate.exit_code([record(PARTIAL), replace(change, verdict=None, status="error")], PARTIAL) == 1


def test_a_message_with_colours_of_a_terminal_is_still_xml():
    shout = replace(record(None, status="error"), reason="\x1b[31mboom\x00", notes=("\x1b[0m",))
    suite = ElementTree.fromstring(gate.junit([replace(shout, case=Case(name="a\x07", model="m\ud800"))], None))
    assert suite.find("testcase/error").get("message") == "\\x1b[31mboom\\x00"


def test_the_words():
    assert gate.limit_of("partial") == PARTIAL
    assert gate.limit_of("inconclusive") == Outcome.INCONCLUSIVE
    for wrong in ("feasible", "bad"):
        with pytest.raises(BadInput, match="infeasible, inconclusive or partial"):
            gate.limit_of(wrong)


RUN = [
    record(FEASIBLE, number=0),
    record(PARTIAL, number=1),
    record(None, status="error", number=2),
    record(None, status="refused", number=3),
]


def test_json():
    found = json.loads(json.dumps(gate.summary(RUN, PARTIAL), allow_nan=False))
    assert (found["fail_over"], found["exit_code"]) == (PARTIAL, 3)
    assert [c["over_limit"] for c in found["cases"]] == [True, False, False, False]
    assert found["cases"][0]["psnr"] == "inf"
    assert found["cases"][2]["reason"] == "boom"


def test_junit_has_the_bound_or_why_there_is_none():
    bounded = replace(RUN[1], bound=Bound(1.0, "sample", 0.84, 0.09, 65, 4 / 65, 0.28), unbounded=None)
    free = replace(RUN[1], bound=None, unbounded=Unbounded.NO_NOISE)
    said = [
        one.findtext("testcase/system-out")
        for one in map(ElementTree.fromstring, (gate.junit([r], None) for r in (bounded, free)))
    ]
    assert bracket_sentence(bounded) in said[0]
    assert "no attack can exceed 28 %" in said[0]
    assert "No upper bound exists" in said[1]


def test_junit():
    suite = ElementTree.fromstring(gate.junit(RUN, PARTIAL))
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    names = [(case.get("name"), [child.tag for child in case]) for case in suite]
    assert names == [
        ("case 0 <&>", ["failure", "system-out"]),
        ("case 1 <&>", ["system-out"]),
        ("case 2 <&>", ["error"]),
        ("case 3 <&>", ["skipped"]),
    ]
    assert suite[0][0].get("message") == "feasible: 1 of 1 image passes every check (deployable)"
    assert ElementTree.fromstring(gate.junit(RUN, None)).get("failures") == "0"


def test_a_passing_case_says_its_verdict_its_figures_and_its_rule():
    (case,) = ElementTree.fromstring(gate.junit([RUN[1]], PARTIAL)).iter("testcase")
    said = case.findtext("system-out") or ""
    assert said.startswith("verdict: partial\nSSIM ")
    assert f"rule: {rule(RUN[1].verdict)}" in said


@pytest.mark.parametrize(("limit", "code"), [("infeasible", gate.EXIT_CODE), ("inconclusive", 0), ("partial", 0)])
def test_what_is_not_evidence_passes_only_where_that_is_said(limit, code):
    assert gate.exit_code([record(Outcome.INCONCLUSIVE)], gate.limit_of(limit)) == code


def test_a_gate_that_judged_nothing_fails_in_every_file():
    """The exit code was 3 and the JUnit file green."""
    refused = [record(None, status="refused")]
    suite = ElementTree.fromstring(gate.junit(refused, PARTIAL))
    assert {k: suite.get(k) for k in ("tests", "failures", "skipped")} == {
        "tests": "2",
        "failures": "1",
        "skipped": "1",
    }
    assert suite[1][0].get("message") == "no case produced a verdict"
    assert ElementTree.fromstring(gate.junit(refused, None)).get("failures") == "0"


def test_the_layout_is_beside_the_other_figures():
    seen = replace(record(PARTIAL), scores=scores(0.3, layout=0.7))
    assert [c["pieces_lead"] for c in gate.summary([seen], PARTIAL)["cases"]] == [None]
    assert [c["layout"] for c in gate.summary([seen, record(PARTIAL)], PARTIAL)["cases"]] == [0.7, None]


def test_other_questions_are_in_the_files_too():
    found = Findings(split=Split(threshold=0.25, cuts=3, recommended="block <2>", fvu=0.5, bytes=64))
    told = gate.summary(RUN, PARTIAL, found)["questions"]
    assert list(told) == ["updates", "training", "split", "defenses"]
    assert told["split"]["word"] == "Cut found"
    assert "block <2>" in told["split"]["sentences"][0]
    assert told["training"]["tone"] == "none"
    suite = ElementTree.fromstring(gate.junit(RUN, PARTIAL, found))
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["split"].startswith("Cut found: At block <2> or deeper")
    assert len(suite.findall("testcase")) == len(RUN)  # they are no tests of their own
    assert gate.summary(RUN, PARTIAL)["questions"] == {}
