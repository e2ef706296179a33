"""What a condition gives back where it applies, and how its numbers are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from leakgauge.audit.findings import Findings
from leakgauge.audit.summaries import Defended, Measured, Update

TRAINING, SPLIT, DEFENSES = "training", "split", "defenses"
"""Anchors of the report's sections, by question."""


@dataclass(frozen=True)
class Match:
    """Anchors of the evidence, most telling first, and what is filled into title and reason."""

    evidence: tuple[str, ...]
    facts: Mapping[str, object] = field(default_factory=dict)


Condition = Callable[[Findings], Match | None]


def quality(update: Update) -> str:
    """
    >>> quality(Update("case-1", "a", "feasible", ssim=0.91, psnr=19.44, null_ssim=0.135, null_psnr=9.0))
    'SSIM 0.91 and PSNR 19.4 dB; null run 0.14 and 9.0 dB'

    Of a batch that leaks in part a mean says little, so it stands behind what the verdict counted.

    >>> quality(Update("a", "b", "partial", batch=8, which="1 of 8 images pass", ssim=0.13, psnr=9, null_ssim=0.15, null_psnr=8))
    '1 of 8 images pass; on average SSIM 0.13 and PSNR 9.0 dB; null run 0.15 and 8.0 dB'

    Where a layout was seen in a picture that is worse than the null run's by the other numbers, it stands first.

    >>> seen = {"layout": 0.71, "null_layout": 0.02, "told_by": "layout"}
    >>> quality(Update("a", "b", "partial", ssim=0.32, psnr=11.5, null_ssim=0.58, null_psnr=14.5, **seen))
    'correlation of the layout 0.71, null run 0.02; SSIM 0.32 and PSNR 11.5 dB; null run 0.58 and 14.5 dB'

    So does what is there in another order.

    >>> seen = {"pieces_lead": 0.147, "null_pieces_lead": -0.02, "told_by": "pieces_lead"}
    >>> quality(Update("a", "b", "partial", ssim=0.15, psnr=12.8, null_ssim=0.09, null_psnr=14.5, **seen)).partition("; ")[0]
    'its patches fit the original better than any other image by 0.15, null run -0.02'
    """
    counted = f"{update.which}; on average " if update.which and update.batch > 1 else ""
    if update.told_by == "pieces_lead":
        ahead, null = number(update.pieces_lead, 2), number(update.null_pieces_lead, 2)
        counted += f"its patches fit the original better than any other image by {ahead}, null run {null}; "
    if update.told_by == "layout":
        counted += f"correlation of the layout {number(update.layout, 2)}, null run {number(update.null_layout, 2)}; "
    return (
        f"{counted}SSIM {number(update.ssim, 2)} and PSNR {number(update.psnr, 1)} dB; null run "
        f"{number(update.null_ssim, 2)} and {number(update.null_psnr, 1)} dB"
    )


def interval(measured: Measured) -> str:
    """
    >>> interval(Measured(5, 0.346, 0.2, 0.487)), interval(Measured(5, 1.0))
    ('0.35 (95 % 0.20 to 0.49)', '1.00')
    >>> interval(Measured(5, 0.001, -0.001, 0.012))  # no "-0.00"
    '0.00 (95 % 0.00 to 0.01)'
    """
    if measured.low is None or measured.high is None:
        return f"{measured.value:z.2f}"
    return f"{measured.value:z.2f} (95 % {measured.low:z.2f} to {measured.high:z.2f})"


def anchors(places: Iterable[Update | Defended]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(place.anchor for place in places))


def number(value: float | None, places: int) -> str:
    if value is None:
        return "not measured"
    return "∞" if math.isinf(value) else f"{value:.{places}f}"
