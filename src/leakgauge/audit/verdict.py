"""From scores to a verdict, by one table of checks. A verdict is facts; :mod:`leakgauge.audit.wording` makes the sentences.

An image counts as *reconstructed* when it passes every check of ``RECONSTRUCTED`` or, if it is large, of ``REDUCED``, and as *glimpsed*
when it passes every check of ``GLIMPSED``, of ``OUTLINED`` or of ``SCRAMBLED``, or the checks of ``RECONSTRUCTED`` on its structure. An
attack has to beat two things that are no leakage: its own null run (same start, same priors, no signal) and a trivial picture of the
truth (mean colour, or a 4×4 blur).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from leakgauge.audit.cause import Cause, Knowledge, TruthTest
from leakgauge.audit.scoring import ALIKE, Scores
from leakgauge.core import Assumption, Kind


class Outcome(StrEnum):
    """How an attack ended. The value is what records and style sheets hold; everything that is shown hangs on the member."""

    FEASIBLE = "feasible"
    PARTIAL = "partial"
    INCONCLUSIVE = "inconclusive"
    INFEASIBLE = "infeasible_within_budget"

    @property
    def severity(self) -> int:
        """How bad it is for a gate: least is a negative that is evidence, most is a reconstruction."""
        return {Outcome.INFEASIBLE: 0, Outcome.INCONCLUSIVE: 1, Outcome.PARTIAL: 2, Outcome.FEASIBLE: 3}[self]

    @property
    def label(self) -> str:
        """The outcome inside a sentence."""
        return self.value.partition("_")[0]

    @property
    def colour(self) -> str:
        """On a terminal and, as a mark, in Markdown; the page has a style of the outcome's value."""
        return {
            Outcome.INFEASIBLE: "blue",
            Outcome.INCONCLUSIVE: "white",
            Outcome.PARTIAL: "yellow",
            Outcome.FEASIBLE: "red",
        }[self]

    @property
    def meaning(self) -> str:
        """One sentence for a legend."""
        return {
            Outcome.FEASIBLE: "The attack reconstructed private images from what was shared, clearly better than without it.",
            Outcome.PARTIAL: "The attack reconstructed some images, or some of their content, but not reliably or not in full.",
            Outcome.INCONCLUSIVE: "The attack found no private image, but that is no evidence: a better search might, or nobody "
            "checked that this one can.",
            Outcome.INFEASIBLE: "The attack works on this architecture, and no better search would have helped: the truth explains what "
            "was sent no better than other images do.",
        }[self]

    @property
    def leaks(self) -> bool:
        return self in (Outcome.FEASIBLE, Outcome.PARTIAL)

    @property
    def conclusive(self) -> bool:
        """Whether it is evidence of anything."""
        return self is not Outcome.INCONCLUSIVE


class Way(StrEnum):
    """How an image was glimpsed. An image counts under the first way that applies, in this order."""

    CLOSENESS = "closeness"
    STRUCTURE = "structure"
    LAYOUT = "layout"
    PIECES = "pieces"
    TOKENS = "tokens"
    CELLS = "cells"


Metric = Literal[
    "ssim", "psnr", "lpips", "reid", "layout", "layout_rank", "pieces_lead", "ssim_reduced", "psnr_reduced", "correlation", "cells",
    "tokens", "exact", "rouge1", "rouge2", "rouge_l",
]  # fmt: skip
Evidence = Literal["ssim", "layout", "pieces_lead", "correlation"]
"""Metrics that can show what an attack saw."""
Unit = Literal["image", "sentence", "series", "row"]
"""What a batch consists of."""

LESS_IS_BETTER = ("lpips", "reid", "layout_rank")


@dataclass(frozen=True)
class Check:
    """``metric`` must be at least ``margin``, or at least ``margin`` above the null run or the trivial baseline.

    Where less is better (LPIPS, the rank of re-identification) it must be at most, or below. A metric that was not
    measured, on either side, decides nothing.
    """

    metric: Metric
    margin: float
    above: Literal["zero", "null", "baseline"]

    def measured(self, attack: Scores, null: Scores, baseline: Scores) -> bool:
        """On both sides."""
        bars = {"zero": attack, "null": null, "baseline": baseline}[self.above]
        return getattr(attack, self.metric) is not None and getattr(bars, self.metric) is not None

    def passes(self, image: int, attack: Scores, null: Scores, baseline: Scores) -> bool:
        bars = {"zero": attack, "null": null, "baseline": baseline}[self.above]
        values, others = getattr(attack, self.metric), getattr(bars, self.metric)
        if values is None or others is None:
            return True
        value = values[image]
        less = self.metric in LESS_IS_BETTER
        if self.above == "zero":
            return value <= self.margin if less else value >= self.margin
        bar = others[image]
        if not math.isfinite(bar):  # a bar at ∞ cannot be passed
            return False
        return value <= bar - self.margin if less else value >= bar + self.margin


RECONSTRUCTED = (
    Check("ssim", ALIKE, above="zero"),
    Check("ssim", 0.36, above="null"),
    Check("psnr", 2.6, above="null"),
    Check("ssim", 0.02, above="baseline"),
    Check("psnr", 0.5, above="baseline"),
    Check("lpips", 0.02, above="baseline"),
    Check("reid", 1, above="zero"),
)
"""The first three were frozen on reconstructions from two trained classifiers, ResNet-20 and ResNet-56 on CIFAR-10: they agree best
with whether the *other* network still takes the reconstruction for its image among 500 (``reproductions/practical_feasibility``,
``freeze_thresholds.py``; 120 reconstructions, true minus false positives 0.78, 0.76 and 0.81). The others are margins by choice."""
_SMALLER: Mapping[str, Metric] = {"ssim": "ssim_reduced", "psnr": "psnr_reduced"}
REDUCED = tuple(
    replace(check, metric=_SMALLER.get(check.metric, check.metric))
    for check in RECONSTRUCTED
    if check.metric != "lpips"
)
"""The same for images of more than 64 pixels a side, averaged down to at most that: near the size that the thresholds were frozen at.
LPIPS is not measured there. At 224×224 grain alone fails the checks above on pictures that are plain to everyone."""
GLIMPSED = (Check("ssim", 0.05, above="null"), Check("psnr", 1.0, above="null"))
OUTLINED = (
    Check("layout", 0.45, above="zero"),
    Check("layout", 0.2, above="null"),
    Check("layout_rank", 1, above="zero"),
)
"""What stands where can be plain in a picture that is so grainy or saturated that the null run's grey one has the higher SSIM.
These count only where there were enough other images to tell the layout from. The first is the correlation that at most 1 % of wrong
images reached on the same two classifiers (``freeze_layout.py``); the second is a margin by choice."""
SCRAMBLED = (Check("pieces_lead", 0.05, above="zero"), Check("pieces_lead", 0.05, above="null"))
"""Patches of a vision transformer that are all there, in another order. A picture that shows nothing fits the original better than any
other of M images with a chance of 1 / M; the margins are choices. Like ``OUTLINED`` these count only where they were measured."""
SERIES_RECONSTRUCTED = (
    Check("correlation", 0.9, above="zero"),
    Check("correlation", 0.2, above="null"),
    Check("psnr", 2.6, above="null"),
    Check("correlation", 0.02, above="baseline"),
    Check("reid", 1, above="zero"),
)
"""Of series. The margins are choices; nobody was asked whether they recognise a person's curve."""
SERIES_GLIMPSED = (Check("correlation", 0.5, above="zero"), Check("correlation", 0.2, above="null"))
STRUCTURE = ("ssim", "ssim_reduced", "correlation", "reid")
"""Metrics of ``RECONSTRUCTED`` that suffice for a glimpse. A picture whose parts are right but stand in each other's place (patches of a
vision transformer whose positions tell little), or that is off in brightness, can be no closer to the truth in PSNR than a grey one."""
SHARE_FOR_FEASIBLE = 0.5
"""Feasible needs at least this share of the batch reconstructed; a smaller share, or glimpses, are partial."""


@dataclass(frozen=True)
class Verdict:
    """The outcome and the facts that decided it.

    ``kind`` says whether every assumption is one that a real server satisfies. Of ``images`` in the batch, ``reconstructed`` pass every
    check, ``at_reduced_size`` of these only when averaged down. ``glimpsed`` counts the images that beat the null run by the way in
    which they do. ``missed`` is the first check that failed, on the first image that failed one; None where all passed. ``cause`` says why
    nothing was found, or why that is no evidence; None for what leaks. ``lacks`` is what the adversary would need to know, where that is
    the cause. ``certified`` images are exact by a certificate of the attack, which needs no truth; if the result was
    not ``compared`` with the truth, they alone count as reconstructed. ``unit`` is what the batch consists of.
    """

    outcome: Outcome
    kind: Kind
    images: int
    reconstructed: int = 0
    at_reduced_size: int = 0
    glimpsed: Mapping[Way, int] = field(default_factory=dict)
    missed: Check | None = None
    cause: Cause | None = None
    lacks: tuple[Knowledge, ...] = ()
    certified: int = 0
    compared: bool = True
    unit: Unit = "image"

    @property
    def evidence(self) -> Evidence:
        """The metric that shows what was seen: SSIM, unless images were glimpsed in a way that SSIM does not show; of series their
        correlation."""
        if self.unit == "series":
            return "correlation"
        if not self.reconstructed:
            for way, metric in _EVIDENCE.items():
                if self.glimpsed.get(way):
                    return metric
        return "ssim"


_EVIDENCE: Mapping[Way, Evidence] = {Way.LAYOUT: "layout", Way.PIECES: "pieces_lead"}


def judge(
    scores: Scores,
    null: Scores,
    baseline: Scores,
    assumptions: Sequence[Assumption] = (),
    *,
    test: TruthTest | None = None,
    control: bool | None = None,
    enough: bool = True,
    to_reconstruct: Sequence[Check] = RECONSTRUCTED,
    to_glimpse: Sequence[Check] = GLIMPSED,
    to_outline: Sequence[Check] = OUTLINED,
    to_order: Sequence[Check] = SCRAMBLED,
    to_see: Sequence[Check] = REDUCED,
    unit: Unit = "image",
) -> Verdict:
    """Applies the table image by image; ``null`` and ``baseline`` are scored on the same truths in the same order.

    What was found counts. That nothing was found counts only if it is earned: the attack tried ``enough``, its truth ``test`` says that a
    better search would not have helped, and its positive ``control`` passed. Otherwise the verdict is inconclusive.
    """
    count = len(scores.ssim)
    reconstructed = [_failed(to_reconstruct, i, scores, null, baseline) for i in range(count)]
    smaller = _compared(to_see, scores, null, baseline)
    by_size = sum(plain and missed is not None for plain, missed in zip(smaller, reconstructed, strict=True))
    reconstructed = [None if plain else missed for plain, missed in zip(smaller, reconstructed, strict=True)]
    glimpsed = [_failed(to_glimpse, i, scores, null, baseline) for i in range(count)]
    structure = [check for check in to_reconstruct if check.metric in STRUCTURE]
    alike = [bool(structure) and _failed(structure, i, scores, null, baseline) is None for i in range(count)]
    far = _compared([check for check in to_see if check.metric in STRUCTURE], scores, null, baseline)
    shown = {
        Way.CLOSENESS: [missed is None for missed in glimpsed],
        Way.STRUCTURE: [near or away for near, away in zip(alike, far, strict=True)],
        Way.LAYOUT: _compared(to_outline, scores, null, baseline),
        Way.PIECES: _compared(to_order, scores, null, baseline),
    }
    ways = [next((way for way, images in shown.items() if images[i]), None) for i in range(count)]
    whole = reconstructed.count(None)
    kind = kind_of(assumptions)
    seen = {way: ways.count(way) for way in Way if way in ways}
    if whole >= SHARE_FOR_FEASIBLE * count:
        outcome, decisive = Outcome.FEASIBLE, reconstructed
    elif whole or seen:
        outcome, decisive = Outcome.PARTIAL, reconstructed
    else:
        outcome, decisive = Outcome.INFEASIBLE, glimpsed
    cause = None if outcome.leaks else _cause(test, control, enough=enough)
    if cause not in (None, Cause.INFORMATION, Cause.KNOWLEDGE):
        outcome = Outcome.INCONCLUSIVE
    missed = next((check for check in decisive if check is not None), None)
    lacks = test.lacks if test is not None and cause is Cause.KNOWLEDGE else ()
    return Verdict(outcome, kind, count, whole, by_size, seen, missed, cause, lacks, unit=unit)


def judge_series(
    scores: Scores, null: Scores, baseline: Scores, assumptions: Sequence[Assumption] = (), **tested: Any
) -> Verdict:
    """As :func:`judge`, by the checks of series."""
    return judge(
        scores,
        null,
        baseline,
        assumptions,
        to_reconstruct=SERIES_RECONSTRUCTED,
        to_glimpse=SERIES_GLIMPSED,
        to_outline=(),
        to_order=(),
        to_see=(),
        unit="series",
        **tested,
    )


def _cause(test: TruthTest | None, control: bool | None, *, enough: bool) -> Cause:
    """Why nothing was found, or why that is no evidence."""
    if not enough:
        return Cause.EFFORT
    if test is None:
        return Cause.UNTESTED
    if test.cause is Cause.SEARCH:
        return Cause.SEARCH
    if control is None:
        return Cause.UNCONTROLLED
    return test.cause if control else Cause.CONTROL


def judge_certified(
    certified: Sequence[bool], assumptions: Sequence[Assumption] = (), *, unit: Literal["image", "sentence"] = "image"
) -> Verdict | None:
    """The verdict on an update whose truth is not known, by certificates alone; None without one, since that says nothing."""
    count, whole = len(certified), sum(certified)
    if not whole:
        return None
    outcome = Outcome.FEASIBLE if whole >= SHARE_FOR_FEASIBLE * count else Outcome.PARTIAL
    return Verdict(outcome, kind_of(assumptions), count, whole, certified=whole, compared=False, unit=unit)


def kind_of(assumptions: Sequence[Assumption]) -> Kind:
    """The kind of a verdict: diagnostic or malicious where one of the assumptions is."""
    kinds = {a.kind for a in assumptions}
    return "diagnostic" if "diagnostic" in kinds else "malicious" if "malicious" in kinds else "deployable"


def _compared(checks: Sequence[Check], scores: Scores, null: Scores, baseline: Scores) -> list[bool]:
    """Image by image; what was not measured, or not compared with others, shows nothing. Without a pool nothing need be re-identified."""
    count = len(scores.ssim)
    if not checks or not all(check.measured(scores, null, baseline) for check in checks if check.metric != "reid"):
        return [False] * count
    return [_failed(checks, i, scores, null, baseline) is None for i in range(count)]


def _failed(checks: Sequence[Check], image: int, scores: Scores, null: Scores, baseline: Scores) -> Check | None:
    return next((check for check in checks if not check.passes(image, scores, null, baseline)), None)
