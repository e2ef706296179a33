"""The section on the split: the cuts of a scan, what they leak and what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from leakgauge.audit.findings import Split, split_of
from leakgauge.audit.phrasing import duration, number, plural, thousands
from leakgauge.audit.questions import split_records as store
from leakgauge.audit.questions.split_records import DECODER, LEAST_SQUARES, RIDGE, Conclusion, CutRecord, ScanPlan
from leakgauge.audit.wording import Statement, split_notes
from leakgauge.report.charts import (
    HEIGHT,
    Level,
    Line,
    Mark,
    Plot,
    Scale,
    Tick,
    Zone,
    between,
    feature_map,
    line_chart,
    linear,
    pictures,
    scatter_chart,
)
from leakgauge.report.sources import anchor, of_scan

MOST_SHOWN = 12
"""Cuts of which pictures and maps are shown; all of them are in the table."""


@dataclass(frozen=True)
class Cut:
    """One cut in the charts of a scan; ``number`` is its place by depth, from 1. None is not measured."""

    number: int
    name: str
    ridge: float | None
    low: float | None
    high: float | None
    computed: float | None
    decoder: float | None
    envelope: float | None
    by_depth: float | None
    bytes: int
    flops: int
    front: bool


def section(folder: Path, statement: Statement) -> dict[str, Any]:
    """All that the template shows of the scan in ``folder``."""
    plan, records, end = store.read_plan(folder), store.read(folder), store.read_conclusion(folder)
    found = split_of(plan, records, end)
    names = plan.names
    ridge = {r.cut: r for r in records if r.attack == RIDGE}
    decoded = {name: store.strongest(records, name, DECODER) for name in names}
    computed = {r.cut: r for r in records if r.attack == LEAST_SQUARES}
    cuts = [_cut(i, plan, ridge.get(name), computed.get(name), decoded[name], end) for i, name in enumerate(names)]
    recommended = None if end is None or end.recommended is None else names.index(end.recommended) + 1
    leaking = 0 if end is None or end.leaking is None else names.index(end.leaking) + 1
    measured = any(cut.envelope is not None for cut in cuts)
    class_mean = None if end is None else end.class_mean
    pictured = _some(len(cuts), recommended)
    return {
        "statement": statement,
        "class_mean": None if class_mean is None else number(class_mean, 2),
        "depth_choice": None if end is None else end.depth_choice,
        "curve": cut_chart(
            cuts,
            threshold=plan.threshold,
            class_mean=class_mean,
            leaking=leaking,
            recommended=recommended,
            uid="scan-curve",
        )
        if measured
        else None,
        "pareto": cut_cost_chart(
            cuts,
            raw=plan.raw_bytes,
            jpeg=plan.jpeg_bytes,
            recommended=recommended,
            numbers=plan.numbers,
            uid="scan-pareto",
        )
        if end is not None and measured
        else None,
        "truth": pictures(folder, plan.truth, count=plan.shown, at_most=plan.shown)[0],
        "shown": plan.shown,
        "rows": [
            _row(cut, plan, [r for r in records if r.cut == cut.name], decoded[cut.name], folder, recommended)
            for cut in cuts
        ],
        "pictured": pictured,
        "maps": [_map(cut, ridge[cut.name], plan) for i in pictured if (cut := cuts[i]).name in ridge],
        "mapped": max((len(record.map) for record in ridge.values()), default=0),
        "by_class": bool(plan.labels),
        "notes": split_notes(found) if isinstance(found, Split) else plan.notes,
        "facts": _facts(plan, records, end),
        "command": plan.command,
        "numbers": plan.numbers,
        "source": anchor("scan"),
        "made_from": "a scan of cuts",
        "sources": of_scan(folder),
        "versions": [plan.versions],
    }


def _cut(
    index: int,
    plan: ScanPlan,
    ridge: CutRecord | None,
    computed: CutRecord | None,
    decoder: CutRecord | None,
    end: Conclusion | None,
) -> Cut:
    cut = plan.cuts[index]
    risk = {} if ridge is None else ridge.risk
    return Cut(
        number=index + 1,
        name=str(cut["name"]),
        ridge=risk.get("fvu"),
        low=risk.get("fvu_low"),
        high=risk.get("fvu_high"),
        computed=_fvu(computed),
        decoder=_fvu(decoder),
        envelope=None if end is None else end.envelope[index],
        by_depth=None if end is None else end.by_depth[index],
        bytes=int(cut["bytes"]),
        flops=int(cut["edge_flops"]),
        front=end is not None and cut["name"] in end.front,
    )


def _row(
    cut: Cut, plan: ScanPlan, own: Sequence[CutRecord], decoder: CutRecord | None, folder: Path, recommended: int | None
) -> dict[str, Any]:
    planned = plan.cuts[cut.number - 1]
    ridge, best = next((r for r in own if r.attack == RIDGE), None), store.strongest(own, cut.name)
    named = [r.reidentified for r in own if not math.isnan(r.reidentified)]
    risk = {} if ridge is None else ridge.risk
    sizes = (("image", plan.raw_bytes), ("JPEG", plan.jpeg_bytes))
    larger = [name for name, size in sizes if size is not None and cut.bytes > size]
    known = cut.low is not None and cut.high is not None
    return {
        "cut": cut,
        "recommended": cut.number == recommended,
        "refusal": risk.get("refusal", ""),
        "shape": " × ".join(map(str, planned["shape"])),
        "bytes": thousands(cut.bytes),
        "larger": "> " + ", ".join(larger) if larger else "",
        "flops": number(cut.flops / 1e6, 2),
        "share": number(100 * float(planned["edge_share"]), 1),
        "ridge": _score(cut.ridge, 3),
        "interval": f"{number(cut.low, 3)} to {number(cut.high, 3)}" if known else "",
        "by": "" if ridge is None else ridge.by,
        "computed": _score(cut.computed, 3),
        "decoder": _score(cut.decoder, 3),
        "epochs": "" if decoder is None else plural(decoder.epochs, "epoch"),
        "envelope": _score(cut.envelope, 3),
        "ssim": _score(risk.get("ssim"), 2),
        "reidentified": _score(100 * max(named) if named else None, 0),
        "accuracy": _score(risk.get("accuracy"), 3),
        "attribute": _score(risk.get("attribute_auc"), 2),
        "rank": _score(risk.get("effective_rank"), 0),
        "strip": _strip(cut, plan, best, folder),
        "source": anchor("cut", cut.number) if own else "",
    }


def _strip(cut: Cut, plan: ScanPlan, best: CutRecord | None, folder: Path) -> dict[str, Any] | None:
    """What the best attack reconstructed."""
    if best is None or not best.picture:
        return None
    fvu = number(best.fvu, 2)
    alt = f"Reconstructions at cut {cut.number}, {cut.name}, by {best.effort}: FVU {fvu}"
    count = min(plan.shown, int(best.risk.get("tested") or plan.shown))
    shown = pictures(folder, best.picture, count=count, at_most=count)[0]
    return {"picture": shown, "by": best.effort, "fvu": fvu, "alt": alt}


def _fvu(record: CutRecord | None) -> float | None:
    return None if record is None or math.isnan(record.fvu) else record.fvu


def _score(value: float | None, places: int) -> str:
    return number(value, places, missing="–")


def _map(cut: Cut, record: CutRecord, plan: ScanPlan) -> dict[str, Any]:
    title = f"Map of features at {cut.name}"
    drawn = feature_map(record.map, plan.labels, title=title, uid=f"map-{cut.number}") if record.map else ""
    return {"cut": cut, "svg": drawn}


def _some(count: int, always: int | None) -> list[int]:
    """Places of at most a dozen cuts, evenly spread, always with the recommended one."""
    spread = {round(i) for i in np.linspace(0, count - 1, min(count, MOST_SHOWN)).tolist()}
    return sorted(spread | ({always - 1} if always is not None else set()))


def _facts(plan: ScanPlan, records: Sequence[CutRecord], conclusion: Conclusion | None) -> list[tuple[str, str]]:
    case = plan.case
    spent = sum(float(r.risk.get("seconds") or 0) for r in records)
    jpeg = "" if plan.jpeg_bytes is None else f", {plan.jpeg_bytes:.0f} bytes as JPEG"
    facts = [
        ("Model", case.model),
        ("Data", case.data),
        ("Images of the adversary", str(plan.auxiliary)),
        ("Images attacked", str(plan.tested)),
        ("One image", f"{plan.raw_bytes} bytes raw{jpeg}"),
        ("Defenses", ", ".join(case.defenses) or "none"),
        ("Required", plan.require or f"FVU of at least {plan.threshold:g}"),
        ("How the model was followed", plan.traced),
        ("Seed", str(case.seed)),
        ("Time of the attacks", duration(spent)),
    ]
    if conclusion is not None and plan.epochs:
        facts.append(
            ("Decoder epochs", f"{conclusion.epochs_spent}; {conclusion.epochs_of_all} at full effort everywhere")
        )
    return facts


def cut_chart(
    cuts: Sequence[Cut], *, threshold: float, class_mean: float | None, leaking: int, recommended: int | None, uid: str
) -> Markup:
    """FVU over the cuts: regression with its interval, least squares, decoder, envelope, the line of the depth, and two zones.

    The zone that leaks ends between cut ``leaking`` (0: none leaks) and the next; the zone that held begins at ``recommended``.
    """
    every = math.ceil(len(cuts) / 14)
    ticks = tuple(
        Tick(cut.number, str(cut.number), "head" if cut.number == recommended else "tick")
        for cut in cuts
        if (cut.number - 1) % every == 0 or cut.number == recommended
    )
    measured = [v for c in cuts for v in (c.ridge, c.computed, c.decoder, c.envelope, c.high) if v is not None]
    low, high = [c.low for c in cuts], [c.high for c in cuts]
    lines = [
        Line("decoder", "decoder", [c.decoder for c in cuts], shape="diamond", joined=False),
        Line("least squares", "computed", [c.computed for c in cuts], shape="diamond", joined=False),
        Line("regression", "ridge", [c.ridge for c in cuts], low, high, shape="circle"),
        Line("best attack (envelope)", "envelope", [c.envelope for c in cuts]),
        Line("by depth alone", "by-depth", [c.by_depth for c in cuts]),
    ]
    levels = [Level(threshold, "threshold", "limit", in_legend=True)]
    levels += [] if class_mean is None else [Level(class_mean, "class mean", "class-mean", in_legend=True)]
    zones = [Zone(0.5, leaking + 0.5, "leaks", "zone-leaks")] if leaking else []
    zones += [] if recommended is None else [Zone(recommended - 0.5, len(cuts) + 0.5, "held", "zone-holds")]
    values = ", ".join(f"{c.number} {c.name} {number(c.envelope, 2)}" for c in cuts if c.envelope is not None)
    ends = "No cut held." if recommended is None else f"The threshold of {threshold:g} held from cut {recommended} on."
    return line_chart(
        [float(cut.number) for cut in cuts],
        lines,
        uid=uid,
        title="Leakage at each cut",
        desc=f"Fraction of variance that the best attack leaves unexplained, by cut: {values}. "
        + (f"Cuts 1 to {leaking} leak. " if leaking else "")
        + ends,
        across="cut, by depth (names in the table)",
        up="FVU (higher = less leaks)",
        x=Scale(0.5, len(cuts) + 0.5, ticks),
        y=between(0.0, max([1.0, *measured])),
        levels=levels,
        zones=zones,
        height=HEIGHT + 40,
    )


def cut_cost_chart(
    cuts: Sequence[Cut], *, raw: int, jpeg: float | None, recommended: int | None, numbers: str, uid: str
) -> Markup:
    """Risk against the edge's work, and against what is sent; a full dot is on the Pareto front of all three."""
    shown = [cut for cut in cuts if cut.envelope is not None]
    work = [_dot(cut, cut.flops / 1e6, recommended) for cut in shown]
    sent = [_dot(cut, float(cut.bytes), recommended) for cut in shown]
    sizes = [(float(raw), "raw image"), *([(jpeg, "JPEG")] if jpeg is not None else [])]
    bytes_ = _bytes([*(one.x for one in sent), *(v for v, _ in sizes)])
    fvu = between(0.0, 1.0, about=2)
    front = ", ".join(f"{cut.number} {cut.name}" for cut in shown if cut.front)
    return scatter_chart(
        [
            Plot(work, replace(linear([0.0, *(one.x for one in work)]), low=0.0), fvu, "edge MFLOPs", "FVU"),
            Plot(sent, bytes_, fvu, f"bytes sent as {numbers} (log scale)", "FVU", limits=sizes),
        ],
        uid=uid,
        title="Risk against the cost of the edge and of sending",
        desc=f"On the Pareto front: {front}.",
    )


def _dot(cut: Cut, cost: float, recommended: int | None) -> Mark:
    chosen = cut.number == recommended
    css = "chosen-cut" if chosen else "on-front" if cut.front else "beaten"
    return Mark(cut.number, "", cost, cut.envelope or 0.0, css, size=5.5 if chosen else 4)


def _bytes(values: Sequence[float]) -> Scale:
    """Decades, written out in full."""
    exponents = [math.log10(max(v, 1.0)) for v in values]
    pad = 0.06 * (max(exponents) - min(exponents)) or 0.5
    low, high = min(exponents) - pad, max(exponents) + pad
    decades = range(math.ceil(low), math.floor(high) + 1)
    return Scale(low, high, tuple(Tick(10.0**d, thousands(10**d)) for d in decades), log=True)
