"""Sentences and rows about what an attack did and what no attack can exceed: the two ends of a bracket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakgauge.audit.bounds import FALSE_POSITIVES, Bound, Unbounded
from leakgauge.audit.phrasing import metric, number, plural
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import Verdict
from leakgauge.audit.wording.verdicts import samples
from leakgauge.measures.intervals import clopper_pearson

NO_BOUND: Mapping[Unbounded, str] = {
    Unbounded.NO_NOISE: "what was sent has no noise, so nothing limits what a better attack could read",
    Unbounded.NO_CLIPPING: "noise was added to something that was not clipped, so one sample may add any amount",
    Unbounded.DATA_DEPENDENT: "the noise is scaled by the private update itself; give it a fixed size (std) after clip",
    Unbounded.NOT_GAUSSIAN: "the noise is not Gaussian, and only Gaussian noise is accounted for here",
    Unbounded.STATISTICS: "running statistics were sent beside the noisy update, without noise",
    Unbounded.NEAR_COPY: "the adversary was given a copy of the sample to start from",
    Unbounded.UNKNOWN: "it is not known whether the client clipped and added noise",
}
"""Why there is no upper bound."""


def percent(rate: float) -> str:
    """
    >>> percent(0.389), percent(0.0271), percent(1.0), percent(0.0)
    ('39 %', '2.7 %', '100 %', '0 %')
    """
    return f"{100 * rate:.1f} %" if 0 < rate < 0.095 else f"{100 * rate:.0f} %"


def reached(verdict: Verdict) -> str:
    """How many samples of the batch were reconstructed, with the exact interval of the rate.

    >>> from leakgauge.audit.verdict import Outcome
    >>> reached(Verdict(Outcome.INFEASIBLE, "deployable", 4))
    '0 of 4 images (95 % CI 0 % to 60 %)'
    """
    low, high = clopper_pearson(verdict.reconstructed, verdict.images)
    count = f"{verdict.reconstructed} of {samples(verdict)}"
    return f"{count} (95 % CI {percent(low)} to {percent(high)})"


def bracket_sentence(record: Record) -> str:
    """Both ends in one sentence; why there is no upper end; empty where nothing is known, as in an old record.

    >>> from types import SimpleNamespace
    >>> from leakgauge.audit.verdict import Outcome
    >>> made = Bound(1.0, "sample", 0.84, 0.09, 65, 4 / 65, 0.28)
    >>> bracket_sentence(SimpleNamespace(status="done", bound=made, unbounded=None, verdict=Verdict(Outcome.INFEASIBLE, "deployable", 4)))
    'This attack reconstructed 0 of 4 images (95 % CI 0 % to 60 %); no attack can exceed 28 % (guessing among 65 candidates: 6.2 %).'
    """
    if record.status != "done":
        return ""
    if record.unbounded is not None:
        return f"No upper bound exists: {NO_BOUND[record.unbounded]}."
    return "" if record.bound is None or record.verdict is None else bound_sentence(record.bound, record.verdict)


def bound_sentence(bound: Bound, verdict: Verdict) -> str:
    """What the attack did, and what no attack can exceed."""
    did = f"This attack reconstructed {reached(verdict)}"
    if bound.vacuous:
        return f"{did}; a noise multiplier of {bound.noise:.3g} is too small for a bound that rules anything out."
    if bound.reconstruction is None or bound.prior is None:
        return (
            f"{did}; no attack can tell an attribute with even odds in more than {percent(bound.attribute)} of cases."
        )
    guess = f"guessing among {bound.candidates} candidates: {percent(bound.prior)}"
    return f"{did}; no attack can exceed {percent(bound.reconstruction)} ({guess})."


def brackets(records: Sequence[Record]) -> list[str]:
    """The brackets of several set-ups, each with its name; those without an upper bound are counted by reason."""
    said = [(record, bracket_sentence(record)) for record in records]
    if len(records) == 1:
        return [text for _, text in said if text]
    bounded = [f"{record.case.name}: {text}" for record, text in said if text and record.bound is not None]
    why = Counter(record.unbounded for record, text in said if text and record.unbounded is not None)
    return [*bounded, *(f"No upper bound exists for {plural(n, 'set-up')}: {NO_BOUND[one]}." for one, n in why.items())]


@dataclass(frozen=True)
class BracketRow:
    """One aim of an attacker: the rate by guessing, what this attack did, and what none can exceed; rates are None where unknown."""

    aim: str
    guess: str
    did: str
    most: str
    low: float | None = None
    high: float | None = None
    limit: float | None = None


def bracket_rows(record: Record) -> list[BracketRow]:
    """The bracket as rows of a table; none without a bound that rules anything out."""
    bound, verdict = record.bound, record.verdict
    if record.status != "done" or bound is None or verdict is None or bound.vacuous:
        return []
    rows: list[BracketRow] = []
    if bound.reconstruction is not None and bound.prior is not None:
        low, high = clopper_pearson(verdict.reconstructed, verdict.images)
        aim = f"Reconstruct the {verdict.unit}, one of {bound.candidates} equally likely ones"
        most = percent(bound.reconstruction)
        rows.append(BracketRow(aim, percent(bound.prior), reached(verdict), most, low, high, bound.reconstruction))
    rows += [
        BracketRow(
            "Tell an attribute with even odds", "50 %", "not tried", percent(bound.attribute), limit=bound.attribute
        ),
        BracketRow(
            f"Tell that a sample is in the data, at {percent(FALSE_POSITIVES)} false positives",
            percent(FALSE_POSITIVES),
            "not tried",
            percent(bound.membership),
            limit=bound.membership,
        ),
    ]
    return rows


def scratch_sentence(record: Record) -> str:
    """What the best first-layer reading reaches without a prior, beside what this attack reached; empty without a bound."""
    if record.status != "done" or record.bound is None or record.bound.scratch_psnr is None or record.scores is None:
        return ""
    best, own = number(record.bound.scratch_psnr, 1), metric("psnr", record.scores.mean("psnr"))
    return (
        f"Without knowledge about images, the best reading of a first layer has a PSNR of {best} dB at this noise (this attack: {own} dB). "
        "An attack with a prior can do better."
    )


def hidden_unit(bound: Bound) -> str:
    """What the noise hides."""
    each = {"sample": "one sample", "update": "all that one update holds"}[bound.unit]
    return f"noise multiplier {bound.noise:.3g}, for {each}, in one message"
