"""From the records of a scan to its conclusion: the recommended cut and what it is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from leakgauge.audit.scan_records import DECODER, Conclusion, CutRecord, ScanPlan
from leakgauge.split.envelope import envelope
from leakgauge.split.query import Constraints, Offer, choose, pareto, parse_constraints
from leakgauge.split.zone import Zone, crossing


def conclude(plan: ScanPlan, records: Sequence[CutRecord], zone: Zone | None) -> Conclusion:
    """From all records of a scan, and the zone that decoders found (None where there was ridge alone), to one recommendation."""
    names = [str(cut["name"]) for cut in plan.cuts]
    best = [strongest(records, name) for name in names]
    curve = envelope(best)
    first = crossing(names, best, threshold=plan.threshold) if zone is None else _place(names, zone.recommended)
    leaking = None if first == 0 else names[first - 1] if zone is None else zone.bracket[0]
    offered = [
        Offer(name, value, int(cut["bytes"]), int(cut["edge_flops"]), float(cut["edge_share"]))
        for name, own, value, cut in zip(names, best, curve, plan.cuts, strict=True)
        if math.isfinite(own)  # a cut that no attack could be run at is not offered for what deeper ones keep
    ]
    want = replace(parse_constraints(plan.require) if plan.require else Constraints(), fvu=plan.threshold)
    behind = set(names[first:])  # a deeper cut leaks no more: what held here holds there
    chosen = choose([offer for offer in offered if offer.cut in behind], want)
    by_depth = straight(best)
    spent = sum(record.epochs for record in records if record.attack == DECODER)
    class_mean = next((r.risk["fvu_of_class_mean"] for r in records if r.risk.get("fvu_of_class_mean")), None)
    return Conclusion(
        recommended=chosen.cut if chosen else None,
        leaking=leaking,
        met=chosen is not None,
        front=tuple(offer.cut for offer in pareto(offered)),
        envelope=tuple(value if math.isfinite(value) else None for value in curve),
        by_depth=by_depth,
        depth_choice=next(
            (n for n, v in zip(names, by_depth, strict=True) if v is not None and v >= plan.threshold), None
        ),
        class_mean=class_mean,
        epochs_spent=spent,
        epochs_of_all=len(names) * (plan.epochs or 0),
    )


def strongest(records: Sequence[CutRecord], name: str) -> float:
    """The lowest FVU that any attack reached at the cut; NaN if none ran."""
    found = [record.fvu for record in records if record.cut == name and not math.isnan(record.fvu)]
    return min(found, default=math.nan)


def straight(best: Sequence[float]) -> tuple[float | None, ...]:
    """A line from the first to the last cut's FVU: what counting layers would predict without looking at the ones between.

    >>> straight([0.0, 0.1, 1.0])
    (0.0, 0.5, 1.0)
    """
    if len(best) < 2 or math.isnan(best[0]) or math.isnan(best[-1]):
        return tuple(None for _ in best)
    step = (best[-1] - best[0]) / (len(best) - 1)
    return tuple(best[0] + i * step for i in range(len(best)))


def _place(names: Sequence[str], name: str | None) -> int:
    return len(names) if name is None else names.index(name)
