"""From scores to a verdict, by one table of checks.

An image counts as *reconstructed* when it passes every check of ``RECONSTRUCTED`` or, if it is large, of ``REDUCED``, and as *glimpsed*
when it passes every check of ``GLIMPSED``, of ``OUTLINED`` or of ``SCRAMBLED``, or those of ``RECONSTRUCTED`` on its structure. An attack
has to beat two things that are no leakage: its own null run (same start, same priors, no signal) and a trivial picture of the truth
(mean colour, or a 4×4 blur).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leakgauge.audit.scoring import Scores
from leakgauge.core import Assumption, Kind

Outcome = Literal["feasible", "partial", "infeasible_within_budget"]
Metric = Literal[
    "ssim", "psnr", "lpips", "reid", "layout", "layout_rank", "pieces_lead", "ssim_reduced", "psnr_reduced"
]
ToldBy = Literal["ssim", "layout", "pieces_lead"]
"""Metrics that can say what an attack saw."""

SEVERITY: Mapping[str, int] = {"infeasible_within_budget": 0, "partial": 1, "feasible": 2}
"""Outcomes in the order of how much leaks."""


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

    def __str__(self) -> str:
        if self.metric == "reid":
            return f"re-identified at rank {self.margin:g} or better"
        if self.metric == "layout_rank":
            return f"re-identified by its layout at rank {self.margin:g} or better"
        if self.metric == "pieces_lead":
            than = "any other image" if self.above == "zero" else "the null run's"
            return f"its pieces fit the original better than {than}, by {self.margin:g}"
        if self.metric == "lpips":
            return (
                f"LPIPS at least {self.margin:g} below the {'null run' if self.above == 'null' else 'trivial baseline'}"
            )
        unit = " dB" if self.metric in ("psnr", "psnr_reduced") else ""
        name = "correlation of the layout" if self.metric == "layout" else self.metric.removesuffix("_reduced").upper()
        name += " at reduced size" if self.metric.endswith("_reduced") else ""
        if self.above == "zero":
            return f"{name} at least {self.margin:g}{unit}"
        bar = "the null run" if self.above == "null" else "the trivial baseline"
        return f"{name} at least {self.margin:g}{unit} above {bar}"


RECONSTRUCTED = (
    Check("ssim", 0.38, above="zero"),
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
AT_REDUCED_SIZE = "at reduced size"
GLIMPSED = (
    Check("ssim", 0.05, above="null"),
    Check("psnr", 1.0, above="null"),
)
OUTLINED = (
    Check("layout", 0.45, above="zero"),
    Check("layout", 0.2, above="null"),
    Check("layout_rank", 1, above="zero"),
)
"""What stands where can be plain in a picture that is so grainy or saturated that the null run's grey one has the higher SSIM.
These count only where there were enough other images to tell the layout from. The first is the correlation that at most 1 % of wrong
images reached on the same two classifiers (``freeze_layout.py``); the second is a margin by choice."""
SCRAMBLED = (
    Check("pieces_lead", 0.05, above="zero"),
    Check("pieces_lead", 0.05, above="null"),
)
"""Patches of a vision transformer that are all there, in another order. A picture that tells nothing fits the original better than any
other of M images with a chance of 1 / M; the margins are choices. Like ``OUTLINED`` these count only where they were measured."""
STRUCTURE = ("ssim", "ssim_reduced", "reid")
"""Metrics of ``RECONSTRUCTED`` that suffice for a glimpse. A picture whose parts are right but stand in each other's place (patches of a
vision transformer whose positions tell little), or that is off in brightness, can be no closer to the truth in PSNR than a grey one."""
BY_STRUCTURE = "by SSIM alone"
BY_LAYOUT = "by the layout alone"
BY_PIECES = "by their pieces alone"
"""How a rule says that some images were glimpsed in this way and in none before it; who reads records looks for these words."""
SHARE_FOR_FEASIBLE = 0.5
"""Feasible needs at least this share of the batch reconstructed; a smaller share, or glimpses, are partial."""


@dataclass(frozen=True)
class Verdict:
    """The outcome, the rule that decided it, and whether every assumption is one a real server satisfies."""

    outcome: Outcome
    rule: str
    kind: Kind


def judge(
    scores: Scores,
    null: Scores,
    baseline: Scores,
    assumptions: Sequence[Assumption] = (),
    *,
    to_reconstruct: Sequence[Check] = RECONSTRUCTED,
    to_glimpse: Sequence[Check] = GLIMPSED,
    to_outline: Sequence[Check] = OUTLINED,
    to_order: Sequence[Check] = SCRAMBLED,
    to_see: Sequence[Check] = REDUCED,
) -> Verdict:
    """Applies the table image by image; ``null`` and ``baseline`` are scored on the same truths in the same order."""
    count = len(scores.ssim)
    reconstructed = [_failed(to_reconstruct, i, scores, null, baseline) for i in range(count)]
    smaller = _compared(to_see, scores, null, baseline)
    by_size = sum(plain and missed is not None for plain, missed in zip(smaller, reconstructed, strict=True))
    reconstructed = [None if plain else missed for plain, missed in zip(smaller, reconstructed, strict=True)]
    of_them = f" ({by_size} {AT_REDUCED_SIZE})" if by_size else ""
    glimpsed = [_failed(to_glimpse, i, scores, null, baseline) for i in range(count)]
    structure = [check for check in to_reconstruct if check.metric in STRUCTURE]
    alike = [bool(structure) and _failed(structure, i, scores, null, baseline) is None for i in range(count)]
    far = _compared([check for check in to_see if check.metric in STRUCTURE], scores, null, baseline)
    shown = {
        "": [missed is None for missed in glimpsed],
        BY_STRUCTURE: [near or away for near, away in zip(alike, far, strict=True)],
        BY_LAYOUT: _compared(to_outline, scores, null, baseline),
        BY_PIECES: _compared(to_order, scores, null, baseline),
    }
    ways = [next((way for way, images in shown.items() if images[i]), None) for i in range(count)]
    whole, some = reconstructed.count(None), count - ways.count(None)
    kinds = {a.kind for a in assumptions}
    kind: Kind = "diagnostic" if "diagnostic" in kinds else "malicious" if "malicious" in kinds else "deployable"
    if whole >= SHARE_FOR_FEASIBLE * count:
        return Verdict("feasible", f"{whole} of {count} images pass every check{of_them}", kind)
    missed = next(check for check in reconstructed if check is not None)
    if whole:
        return Verdict(
            "partial", f"{whole} of {count} images pass every check{of_them}; another misses: {missed}", kind
        )
    if some:
        alone = [f"{ways.count(way)} {way}" for way in shown if way and way in ways]
        how = f" ({', '.join(alone)})" if alone else ""
        return Verdict(
            "partial", f"{some} of {count} images beat the null run{how}; not reconstructed, missed: {missed}", kind
        )
    missed = next(check for check in glimpsed if check is not None)
    return Verdict("infeasible_within_budget", f"no image of {count} beats the null run; missed: {missed}", kind)


def told_by(rule: str) -> ToldBy:
    """The metric that says what was seen by this rule: SSIM, unless it can lie below that of the null run's grey picture."""
    return "layout" if BY_LAYOUT in rule else "pieces_lead" if BY_PIECES in rule else "ssim"


def _compared(checks: Sequence[Check], scores: Scores, null: Scores, baseline: Scores) -> list[bool]:
    """Image by image; what was not measured, or not compared with others, shows nothing. Without a pool nothing need be re-identified."""
    count = len(scores.ssim)
    if not checks or not all(check.measured(scores, null, baseline) for check in checks if check.metric != "reid"):
        return [False] * count
    return [_failed(checks, i, scores, null, baseline) is None for i in range(count)]


def _failed(checks: Sequence[Check], image: int, scores: Scores, null: Scores, baseline: Scores) -> Check | None:
    return next((check for check in checks if not check.passes(image, scores, null, baseline)), None)
