"""Why nothing was found, whether that is evidence, and what a control showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakgauge.audit.cause import Cause, Knowledge, TruthTest
from leakgauge.audit.control import Control
from leakgauge.audit.phrasing import number, plural
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import Verdict
from leakgauge.audit.wording.terms import UNITS

CAUSES: Mapping[Cause, str] = {
    Cause.INFORMATION: "other images explain what was sent as well as the true ones",
    Cause.KNOWLEDGE: "the true images do not explain what was sent either, because the adversary lacks something the client used",
    Cause.SEARCH: "the search failed: the true images explain what was sent better than what it found",
    Cause.EFFORT: "the attack took too few steps",
    Cause.CONTROL: "the same attack fails where it must work",
    Cause.UNCONTROLLED: "no control was run, so nobody knows whether the attack works where it must",
    Cause.UNTESTED: "the objective was not evaluated at the true images",
}
"""Why nothing was found, or why that is no evidence."""
LACKED: Mapping[Knowledge, str] = {
    Knowledge.LABELS: "the labels",
    Knowledge.MASKS: "the dropout masks",
    Knowledge.ORDER: "the order of the batches",
    Knowledge.STATISTICS: "the client's own running statistics",
    Knowledge.DEFENSE: "the defense",
}


def why(verdict: Verdict) -> str:
    """The cause of a negative; empty for what leaks.

    >>> from leakgauge.audit.verdict import Outcome
    >>> why(Verdict(Outcome.INFEASIBLE, "deployable", 1, cause=Cause.KNOWLEDGE, lacks=(Knowledge.LABELS,)))
    'the true images do not explain what was sent either, because the adversary lacks the labels'
    """
    if verdict.cause is None:
        return ""
    said = CAUSES[verdict.cause]
    if verdict.cause is Cause.KNOWLEDGE and verdict.lacks:
        said = said.replace("something the client used", " and ".join(LACKED[piece] for piece in verdict.lacks))
    return said.replace("images", UNITS[verdict.unit])


def by_cause(verdicts: Sequence[Verdict]) -> str:
    """The causes of several negatives, with how many have each; of one alone without a count."""
    each: dict[str, int] = {}
    for verdict in verdicts:
        each[why(verdict)] = each.get(why(verdict), 0) + 1
    if len(each) == 1:
        return next(iter(each))
    return "; ".join(f"in {count} {reason}" for reason, count in each.items() if reason)


def cause_rows(record: Record) -> list[tuple[str, str]]:
    """What the truth test and the control of a record measured, as rows of a table."""
    rows = []
    if record.test is not None:
        rows += _test(record.test)
    if record.control is not None:
        rows += control_rows(record.control)
    return rows


def _test(test: TruthTest) -> list[tuple[str, str]]:
    at = test.mismatch
    rows = [("Mismatch (0 explains everything)", _three(at.truth, at.found, at.null))]
    if test.informed != at.truth:
        rows.append(("Mismatch of the truth with all the client used", _figure(test.informed)))
    if test.continued is not None:
        rows.append(("Mismatch after the search was continued", _figure(test.continued)))
    if test.settled is not None:
        one = test.settled
        still, now = ("shows the truth" if shown else "does not show the truth" for shown in one.shown)
        rows.append(
            (
                f"Searched again with a prior ({one.smoothness:g} · total variation)",
                f"from the truth to {_figure(one.truth)}, which {still}; from the result to {_figure(one.found)}, which {now}",
            )
        )
    if test.objective is not None:
        one = test.objective
        rows.append(("Objective of the attack", _three(one.truth, one.found, one.null)))
    return rows


def _three(truth: float, found: float, null: float | None) -> str:
    said = f"truth {_figure(truth)}, found {_figure(found)}"
    return said if null is None else f"{said}, null run {_figure(null)}"


def _figure(value: float) -> str:
    """
    >>> _figure(0.0), _figure(0.12345), _figure(1e-13)
    ('0', '0.12', '1e-13')
    """
    return f"{value:.2g}"


def control_rows(control: Control) -> list[tuple[str, str]]:
    """How the attack did where it must work, and from which starts its search still finds the image."""
    rows = [("Control", control_sentence(control))]
    if control.starts:
        rows.append(("Starts near the truth", starts_sentence(control)))
    return rows


def control_sentence(control: Control) -> str:
    """
    >>> control_sentence(Control("k", "a", True, 0.912, 0.1))
    'passed: SSIM 0.91 at fresh weights, one image, eval mode, labels given (null run 0.10)'
    """
    if control.refused:
        return f"failed: the attack does not apply there ({control.refused})"
    word = "passed" if control.passed else "failed"
    null = "" if control.null_ssim is None else f" (null run {number(control.null_ssim, 2)})"
    return f"{word}: SSIM {number(control.ssim, 2)} at fresh weights, one image, eval mode, labels given{null}"


def starts_sentence(control: Control) -> str:
    """
    >>> from leakgauge.audit.control import NearStart
    >>> starts_sentence(Control("k", "a", True, starts=(NearStart(0.9, 0.6, 0.95, True), NearStart(0.7, 0.4, 0.5, False))))
    'the search finds the image from 90 % of its pixels, no longer from 70 % (audited weights, one image, eval mode, labels given)'
    """
    setting = "(audited weights, one image, eval mode, labels given)"
    given = sorted((one.given for one in control.starts), reverse=True)
    if control.reach is None:
        return f"the search does not find the image even from {100 * given[0]:.0f} % of its pixels {setting}"
    fewer = [share for share in given if share < control.reach]
    beyond = f", no longer from {100 * fewer[0]:.0f} %" if fewer else ""
    return f"the search finds the image from {100 * control.reach:.0f} % of its pixels{beyond} {setting}"


def reach_of(controls: Sequence[Control]) -> str:
    """How far from the truth the searches of these controls still find it; empty where no start was tried."""
    tried = {one.key: one for one in controls if one.starts}.values()
    reached = [one.reach for one in tried if one.reach is not None]
    if not tried:
        return ""
    if not reached:
        return "Even from a start that holds 90 % of the pixels the search does not find the image."
    return (
        f"On these weights the search finds an image only from a start that holds {100 * min(reached):.0f} % of the pixels"
        f" or more ({plural(len(tried), 'control')})."
    )
