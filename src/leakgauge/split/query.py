"""Chooses a cut from a scan: constraints, the shallowest cut that meets them, and the Pareto front."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakgauge.errors import BadInput
from leakgauge.split.cuts import Cut

UNITS: dict[str, float] = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
FLOPS: dict[str, float] = {"flop": 1, "kflop": 1e3, "mflop": 1e6, "gflop": 1e9, "tflop": 1e12}


@dataclass(frozen=True)
class Offer:
    """One cut with its risk and cost: ``fvu`` by the envelope, bytes sent per sample, FLOPs on the edge."""

    cut: str
    fvu: float
    bytes: int
    flops: int
    share: float


@dataclass(frozen=True)
class Constraints:
    """Constraints on a cut; None is no constraint. ``share`` is the share of the parameters on the edge."""

    fvu: float | None = None
    bytes: float | None = None
    flops: float | None = None
    share: float | None = None

    def allow(self, offer: Offer) -> bool:
        """Whether the FVU is at least, and everything else at most, the constraint."""
        return (
            (self.fvu is None or offer.fvu >= self.fvu)
            and (self.bytes is None or offer.bytes <= self.bytes)
            and (self.flops is None or offer.flops <= self.flops)
            and (self.share is None or offer.share <= self.share)
        )


def offers(cuts: Sequence[Cut], fvu: Mapping[str, float], *, numbers: str = "fp32") -> tuple[Offer, ...]:
    """The cuts with a finite FVU (a scan's ``envelope``), with bytes for ``numbers`` sent as fp32, fp16 or int8."""
    return tuple(
        Offer(cut.name, fvu[cut.name], cut.bytes(numbers), cut.edge_flops, cut.edge_share)
        for cut in cuts
        if math.isfinite(fvu.get(cut.name, math.nan))
    )


def parse_constraints(text: str) -> Constraints:
    """Parses constraints as people write them.

    >>> parse_constraints("FVU >= 0.7, <= 64 KiB, <= 1 GFLOP on the edge")
    Constraints(fvu=0.7, bytes=65536.0, flops=1000000000.0, share=None)
    >>> parse_constraints("fvu >= 0.5, <= 10 % of the parameters").share
    0.1
    >>> parse_constraints("bytes<=64KiB, flops<=1G")
    Constraints(fvu=None, bytes=65536.0, flops=1000000000.0, share=None)
    """
    found: dict[str, float] = {}
    for part in filter(None, (piece.strip().lower() for piece in text.split(","))):
        risk = re.fullmatch(r"fvu\s*(?:>=|≥)\s*(\d*\.?\d+)", part)
        limit = re.fullmatch(
            r"(bytes|flops|share)?\s*(?:<=|≤)\s*(\d+(?:\.\d*)?)\s*(%|[a-z]*?)s?(?:\s+(?:on|of|per|from|at)\b.*)?", part
        )
        if risk:
            key, value = "fvu", float(risk.group(1))
        elif limit and (meant := _quantity(*limit.group(1, 3))):
            key, value = meant[0], float(limit.group(2)) * meant[1]
        else:
            raise BadInput(
                f"{part!r} is not a constraint; write for example 'FVU >= 0.7', 'bytes <= 64 KiB', 'FLOPs <= 1 G' or 'share <= 10 %'"
            )
        if key in found:
            raise BadInput(f"{text!r} constrains {key} twice")
        found[key] = value
    if not found:
        raise BadInput("there is no constraint; write for example 'FVU >= 0.7, <= 64 KiB'")
    return Constraints(**found)


def _quantity(name: str | None, unit: str) -> tuple[str, float] | None:
    """The constrained quantity, and the value of one unit; a number without a unit must name what it constrains."""
    if unit == "%" and name in (None, "share"):
        return "share", 0.01
    if unit in FLOPS and name in (None, "flops"):
        return "flops", FLOPS[unit]
    if unit in UNITS and (name == "bytes" or (name is None and unit)):
        return "bytes", UNITS[unit]
    if name == "flops" and f"{unit}flop" in FLOPS:
        return "flops", FLOPS[f"{unit}flop"]
    return None


def choose(found: Sequence[Offer], want: Constraints) -> Offer | None:
    """The cut that meets the constraints with the least work on the edge; among equals, the one that sends less."""
    fitting = [offer for offer in found if want.allow(offer)]
    return min(fitting, key=lambda offer: (offer.flops, offer.bytes, -offer.fvu), default=None)


def pareto(found: Sequence[Offer]) -> tuple[Offer, ...]:
    """The cuts that no other cut dominates: none has an FVU at least as high with no more bytes and no more work, and is better in one."""

    def beats(a: Offer, b: Offer) -> bool:
        at_least = a.fvu >= b.fvu and a.bytes <= b.bytes and a.flops <= b.flops
        return at_least and (a.fvu, a.bytes, a.flops) != (b.fvu, b.bytes, b.flops)

    return tuple(offer for offer in found if not any(beats(other, offer) for other in found))
