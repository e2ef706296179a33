"""Figures of a scan as inline SVG: leakage over the cuts, risk against cost, maps of features. Colours are CSS classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from leakgauge.report.axes import HEIGHT, WIDTH, Frame, line, nice, polyline, svg, text

LEFT, RIGHT = 46, WIDTH - 12
CLASSES = 10
"""Colours that a map has; further classes use them again."""
MOST_NUMBERS = 14


@dataclass(frozen=True)
class Point:
    """One cut in the figures; ``number`` is its place by depth, from 1. NaN is not measured."""

    number: int
    name: str
    ridge: float
    low: float
    high: float
    decoder: float
    envelope: float
    by_depth: float
    bytes: int
    flops: int
    front: bool


def leakage_svg(
    points: Sequence[Point],
    *,
    threshold: float,
    class_mean: float | None,
    leaking: int,
    recommended: int | None,
    uid: str,
) -> str:
    """FVU over the cuts: ridge with its interval, decoder, envelope, the straight line of the depth, and two zones.

    The zone that leaks ends between cut ``leaking`` (0: none leaks) and the next; the zone that held begins at ``recommended``.
    """
    top, bottom = 66, HEIGHT - 42 + 40
    height = bottom + 42
    measured = [v for p in points for v in (p.ridge, p.decoder, p.envelope, p.high) if math.isfinite(v)]
    most = max([1.0, *measured])
    gap = (RIGHT - LEFT) / len(points)

    def x(number: float) -> float:
        return LEFT + (number - 0.5) * gap

    def y(value: float) -> float:
        return bottom - min(max(value, 0.0), most) / most * (bottom - top)

    body = []
    if leaking:
        body.append(_zone(LEFT, x(leaking + 0.5), top, bottom, "zone-leaks", "leaks"))
    if recommended is not None:
        body.append(_zone(x(recommended - 0.5), RIGHT, top, bottom, "zone-holds", "held"))
    frame = Frame(LEFT, RIGHT, top, bottom)
    body += frame.grid((y(value), f"{value:g}") for value in nice(0.0, most, 5))
    every = math.ceil(len(points) / MOST_NUMBERS)
    body += [
        text(
            x(p.number), bottom + 18, str(p.number), anchor="middle", css="tick" if p.number != recommended else "head"
        )
        for p in points
        if (p.number - 1) % every == 0 or p.number == recommended
    ]
    body += frame.edges()
    body.append(line(LEFT, y(threshold), RIGHT, y(threshold), "limit"))
    if class_mean is not None:
        body.append(line(LEFT, y(class_mean), RIGHT, y(class_mean), "class-mean"))
    across = np.array([x(p.number) for p in points])
    for css, values in (
        ("by-depth", [p.by_depth for p in points]),
        ("envelope", [p.envelope for p in points]),
        ("ridge", [p.ridge for p in points]),
    ):
        body.append(polyline(across, np.array([math.nan if math.isnan(v) else y(v) for v in values]), css))
    for p in points:
        if math.isfinite(p.ridge):
            body.append(line(x(p.number), y(p.low), x(p.number), y(p.high), "whisker"))
            body.append(f'<circle cx="{x(p.number):.1f}" cy="{y(p.ridge):.1f}" r="3.2" class="dot-ridge"/>')
        if math.isfinite(p.decoder):
            body.append(_diamond(x(p.number), y(p.decoder)))
    body += _legend(class_mean is not None)
    body += frame.names("cut, by depth (names in the table)", "FVU (higher = less leaks)", below=36)
    return svg(uid, "Leakage over the cuts", _told(points, threshold, leaking, recommended), body, height=height)


def _zone(left: float, right: float, top: float, bottom: float, css: str, word: str) -> str:
    rect = f'<rect x="{left:.1f}" y="{top}" width="{max(right - left, 0):.1f}" height="{bottom - top}" class="{css}"/>'
    return rect + text((left + right) / 2, top + 15, word, anchor="middle", css="tick")


def _diamond(x: float, y: float) -> str:
    return f'<path d="M{x:.1f} {y - 5.5:.1f}l5 5.5l-5 5.5l-5 -5.5z" class="dot-decoder"/>'


def _legend(class_mean: bool) -> list[str]:
    """Three columns and two rows above the plot."""
    entries = [
        ("ridge", "ridge"),
        ("envelope", "envelope"),
        ("by-depth", "by depth alone"),
        ("dot", "decoder"),
        ("limit", "threshold"),
    ]
    entries += [("class-mean", "class mean")] if class_mean else []
    drawn = []
    for place, (css, word) in enumerate(entries):
        at, row = LEFT + (place % 3) * 112, 14 + 22 * (place // 3)
        if css == "dot":
            drawn.append(_diamond(at + 10, row))
        else:
            drawn.append(line(at, row, at + 20, row, css))
        if css == "ridge":
            drawn.append(f'<circle cx="{at + 10}" cy="{row}" r="3.2" class="dot-ridge"/>')
        drawn.append(text(at + 27, row + 4, word, css="tick"))
    return drawn


def _told(points: Sequence[Point], threshold: float, leaking: int, recommended: int | None) -> str:
    values = ", ".join(f"{p.number} {p.name} {p.envelope:.2f}" for p in points if math.isfinite(p.envelope))
    zone = f"Cuts 1 to {leaking} leak. " if leaking else ""
    zone += (
        "No cut held." if recommended is None else f"From cut {recommended} on the threshold of {threshold:g} was kept."
    )
    return f"Fraction of variance unexplained by the best attack, by cut: {values}. {zone}"


def pareto_svg(
    points: Sequence[Point], *, raw: int, jpeg: float | None, recommended: int | None, numbers: str, uid: str
) -> str:
    """Risk against the edge's work, and against what is sent; a full dot lies on the Pareto front of all three."""
    shown = [p for p in points if math.isfinite(p.envelope)]
    body: list[str] = []
    work = [p.flops / 1e6 for p in shown]
    sent = [float(p.bytes) for p in shown]
    at = _cost_panel(body, shown, work, "edge MFLOPs", 4, recommended, marks=(), log=False)
    marks = [(float(raw), "raw image")] + ([(jpeg, "JPEG")] if jpeg is not None else [])
    at = _cost_panel(body, shown, sent, f"bytes sent as {numbers} (log scale)", at, recommended, marks=marks, log=True)
    front = ", ".join(f"{p.number} {p.name}" for p in shown if p.front)
    return svg(
        uid, "Risk against the cost of the edge and of sending", f"On the Pareto front: {front}.", body, height=at
    )


def _cost_panel(
    body: list[str],
    points: Sequence[Point],
    costs: Sequence[float],
    label: str,
    at: float,
    recommended: int | None,
    *,
    marks: Sequence[tuple[float, str]],
    log: bool,
) -> float:
    top, bottom = at + 22, at + 152
    scale: Callable[[float], float] = (lambda v: math.log10(max(v, 1.0))) if log else (lambda v: v)
    inside = [scale(v) for v in [*costs, *(m for m, _ in marks)]]
    low, high = (min(inside), max(inside)) if log else (0.0, max([*inside, 1e-9]))
    pad = 0.06 * (high - low) or 0.5
    low, high = (low - pad if log else 0.0), high + pad

    def x(value: float) -> float:
        return LEFT + (scale(value) - low) / (high - low) * (RIGHT - LEFT)

    def y(value: float) -> float:
        return bottom - min(max(value, 0.0), 1.0) * (bottom - top)

    frame = Frame(LEFT, RIGHT, top, bottom)
    body += frame.grid((y(value), f"{value:g}") for value in (0.0, 0.5, 1.0))
    ticks = [10.0**e for e in range(math.ceil(low), math.floor(high) + 1)] if log else nice(low, high, 5)
    body += frame.marks((x(value), f"{value:,.0f}" if log else f"{value:g}") for value in ticks)
    for place, (value, word) in enumerate(marks):
        body.append(line(x(value), top, x(value), bottom, "limit"))
        left = place > 0 and value <= marks[0][0]
        body.append(text(x(value) + (-5 if left else 5), top - 6, word, anchor="end" if left else "start", css="tick"))
    body += [*frame.edges(), *frame.names(label, "FVU", below=36)]
    for point, cost in zip(points, costs, strict=True):
        css = "chosen-cut" if point.number == recommended else "on-front" if point.front else "beaten"
        px, py = x(cost), y(point.envelope)
        body.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{5.5 if css == "chosen-cut" else 4:g}" class="{css}"/>')
        covered = any(abs(x(c) - px) < 12 and 0 < py - y(p.envelope) < 18 for p, c in zip(points, costs, strict=True))
        above = (px, py - 8, "middle") if not covered else (px - 8, py + 4, "end")
        body.append(text(above[0], above[1], str(point.number), anchor=above[2], css="tick"))
    return bottom + 50


def map_svg(places: Sequence[tuple[float, float]], labels: Sequence[int], *, title: str, uid: str) -> str:
    """Features in the plane, one colour per class."""
    size, edge = 160, 8
    by_class: dict[int, list[str]] = {}
    for place, (a, b) in enumerate(places):
        kind = labels[place] if place < len(labels) else 0
        by_class.setdefault(kind, []).append(
            f"M{edge + a * (size - 2 * edge):.1f} {edge + b * (size - 2 * edge):.1f}h0"
        )
    drawn = "".join(
        f'<path d="{"".join(found)}" class="k{kind % CLASSES}"/>' for kind, found in sorted(by_class.items())
    )
    desc = f"{len(places)} features of {len(by_class)} classes; points that lie close together are similar."
    return svg(uid, title, desc, [drawn], width=size, height=size, css="chart map")
