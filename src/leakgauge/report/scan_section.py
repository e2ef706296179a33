"""The part of a report that shows a scan of cuts, made from what the scan left in the run folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from leakgauge.audit import scan_records as store
from leakgauge.audit.phrasing import duration, plural
from leakgauge.audit.scan_records import DECODER, RIDGE, Conclusion, CutRecord, ScanPlan
from leakgauge.report.figures import pictures
from leakgauge.report.scan_figures import Point, leakage_svg, map_svg, pareto_svg
from leakgauge.report.sources import cut_anchor

MOST_SHOWN = 12
"""Cuts of which pictures and maps are shown; all of them are in the table."""


def context(folder: Path) -> dict[str, Any] | None:
    """All that the template shows of the scan in ``folder``; None where there is no scan."""
    if not store.exists(folder):
        return None
    plan, found, conclusion = store.read_plan(folder), store.read(folder), store.read_conclusion(folder)
    names = [str(cut["name"]) for cut in plan.cuts]
    ridge = {r.cut: r for r in found if r.attack == RIDGE}
    decoded = {name: _strongest([r for r in found if r.attack == DECODER and r.cut == name]) for name in names}
    points = _points(plan, names, ridge, decoded, conclusion)
    recommended = (
        None if conclusion is None or conclusion.recommended is None else names.index(conclusion.recommended) + 1
    )
    leaking = 0 if conclusion is None or conclusion.leaking is None else names.index(conclusion.leaking) + 1
    measured = any(math.isfinite(p.envelope) for p in points)
    return {
        "conclusion": conclusion,
        "versions": plan.versions,
        "sentence": _sentence(plan, conclusion, len(ridge)),
        "threshold": f"{plan.threshold:g}",
        "class_mean": None if conclusion is None or conclusion.class_mean is None else f"{conclusion.class_mean:.2f}",
        "depth_choice": None if conclusion is None else conclusion.depth_choice,
        "curve": Markup(
            leakage_svg(
                points,
                threshold=plan.threshold,
                class_mean=None if conclusion is None else conclusion.class_mean,
                leaking=leaking,
                recommended=recommended,
                uid="scan-curve",
            )
        )
        if measured
        else None,
        "pareto": Markup(
            pareto_svg(
                points, raw=plan.raw_bytes, jpeg=plan.jpeg_bytes, recommended=recommended, numbers=plan.numbers, uid="scan-pareto",
            )
        )
        if conclusion is not None and measured
        else None,
        "truth": pictures(folder, plan.truth, count=plan.shown, at_most=plan.shown)[0],
        "shown": plan.shown,
        "rows": [_row(p, plan, ridge.get(p.name), decoded[p.name], folder, recommended) for p in points],
        "pictured": _some(len(points), recommended),
        "maps": [_map(p, ridge[p.name], plan) for i in _some(len(points), recommended) if (p := points[i]).name in ridge],
        "mapped": max((len(record.map) for record in ridge.values()), default=0),
        "by_class": bool(plan.labels),
        "notes": plan.notes if conclusion is None else conclusion.notes,
        "facts": _facts(plan, found, conclusion),
        "command": plan.command,
        "numbers": plan.numbers,
        "source": cut_anchor(),
    }  # fmt: skip


def _points(
    plan: ScanPlan,
    names: Sequence[str],
    ridge: dict[str, CutRecord],
    decoded: dict[str, CutRecord | None],
    conclusion: Conclusion | None,
) -> list[Point]:
    nothing = [None] * len(names)
    best = nothing if conclusion is None else conclusion.envelope
    line = nothing if conclusion is None else conclusion.by_depth
    points = []
    for i, (name, cut) in enumerate(zip(names, plan.cuts, strict=True)):
        record, decoder = ridge.get(name), decoded[name]
        risk = record.risk if record is not None else {}
        points.append(
            Point(
                number=i + 1,
                name=name,
                ridge=_number(risk.get("fvu")),
                low=_number(risk.get("fvu_low")),
                high=_number(risk.get("fvu_high")),
                decoder=math.nan if decoder is None else decoder.fvu,
                envelope=_number(best[i]),
                by_depth=_number(line[i]),
                bytes=int(cut["bytes"]),
                flops=int(cut["edge_flops"]),
                front=conclusion is not None and name in conclusion.front,
            )
        )
    return points


def _row(
    point: Point,
    plan: ScanPlan,
    ridge: CutRecord | None,
    decoder: CutRecord | None,
    folder: Path,
    recommended: int | None,
) -> dict[str, Any]:
    cut = plan.cuts[point.number - 1]
    risk = ridge.risk if ridge is not None else {}
    better = decoder if decoder is not None and not decoder.fvu >= point.ridge else ridge
    strip = None
    if better is not None and better.picture:
        picture = pictures(folder, better.picture, count=plan.shown, at_most=plan.shown)[0]
        by = better.effort
        alt = f"Reconstructions at cut {point.number}, {point.name}, by {by}: FVU {better.fvu:.2f}"
        strip = {"picture": picture, "by": by, "fvu": f"{better.fvu:.2f}", "alt": alt}
    larger = [
        word
        for word, size in (("image", plan.raw_bytes), ("JPEG", plan.jpeg_bytes))
        if size is not None and point.bytes > size
    ]
    return {
        "point": point,
        "recommended": point.number == recommended,
        "refusal": risk.get("refusal", ""),
        "shape": " × ".join(map(str, cut["shape"])),
        "bytes": f"{point.bytes:,}".replace(",", "\u202f"),
        "larger": "> " + ", ".join(larger) if larger else "",
        "flops": f"{point.flops / 1e6:.2f}",
        "share": f"{100 * float(cut['edge_share']):.1f}",
        "ridge": _written(point.ridge, 3),
        "interval": f"{point.low:.3f} to {point.high:.3f}" if math.isfinite(point.low) else "",
        "decoder": "–" if decoder is None else _written(decoder.fvu, 3),
        "epochs": "" if decoder is None else plural(decoder.epochs, "epoch"),
        "envelope": _written(point.envelope, 3),
        "ssim": _written(_number(risk.get("ssim")), 2),
        "reidentified": "–" if risk.get("reidentified") is None else f"{100 * risk['reidentified']:.0f}",
        "accuracy": _written(_number(risk.get("accuracy")), 3),
        "within": _written(_number(risk.get("within")), 2),
        "rank": _written(_number(risk.get("effective_rank")), 0),
        "strip": strip,
        "source": cut_anchor(point.number) if ridge is not None or decoder is not None else "",
    }  # fmt: skip


def _map(point: Point, record: CutRecord, plan: ScanPlan) -> dict[str, Any]:
    title = f"Map of features at {point.name}"
    drawn = map_svg(record.map, plan.labels, title=title, uid=f"map-{point.number}") if record.map else ""
    return {"point": point, "svg": Markup(drawn)}


def _strongest(records: Sequence[CutRecord]) -> CutRecord | None:
    """The decoder that did best; one that refused only where there is no other."""
    return min(records, key=lambda r: (math.isnan(r.fvu), r.fvu if not math.isnan(r.fvu) else 0.0), default=None)


def _sentence(plan: ScanPlan, conclusion: Conclusion | None, done: int) -> str:
    if conclusion is not None:
        return conclusion.sentence
    command = "audit" if plan.audited else "scan"
    cuts = f"{done} of {plural(len(plan.cuts), 'cut')} {'is' if done == 1 else 'are'} done"
    return f"The scan is not finished: {cuts}. Go on with it by leakgauge {command} --resume."


def _some(count: int, always: int | None) -> list[int]:
    """Places of at most a dozen cuts, evenly spread, always with the recommended one."""
    spread = {round(i) for i in np.linspace(0, count - 1, min(count, MOST_SHOWN)).tolist()}
    return sorted(spread | ({always - 1} if always is not None else set()))


def _facts(plan: ScanPlan, records: Sequence[CutRecord], conclusion: Conclusion | None) -> list[tuple[str, str]]:
    case = plan.case
    spent = sum(float(r.risk.get("seconds") or 0) for r in records)
    jpeg = "" if plan.jpeg_bytes is None else f", {plan.jpeg_bytes:.0f} bytes as JPEG"
    facts = [
        ("Model", str(case["model"])),
        ("Data", str(case["data"])),
        ("Images of the adversary", str(plan.auxiliary)),
        ("Images attacked", str(plan.tested)),
        ("One image", f"{plan.raw_bytes} bytes raw{jpeg}"),
        ("Defenses", ", ".join(case["defenses"]) or "none"),
        ("Required", plan.require or f"FVU of at least {plan.threshold:g}"),
        ("How the model was followed", plan.traced),
        ("Seed", str(case["seed"])),
        ("Time of the attacks", duration(spent)),
    ]
    if conclusion is not None and plan.epochs:
        facts.append(
            ("Decoder epochs", f"{conclusion.epochs_spent}; {conclusion.epochs_of_all} at full effort everywhere")
        )
    return facts


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _written(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if math.isfinite(value) else "–"
