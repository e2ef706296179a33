"""Figures of a monitored training: curves with intervals, layers now and over time; pure functions that give inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from leakgauge.report.axes import (
    HEIGHT,
    WIDTH,
    Floats,
    Frame,
    line,
    linear_scale,
    nice,
    polyline,
    runs,
    svg,
    text,
    thinned,
)

_LETTER = 6.1  # width of a small letter, to set legends without measuring
_MOST_LAYERS = 16
_MOST_CELLS = 60


@dataclass(frozen=True)
class Curve:
    """One line of a figure. ``low`` and ``high`` bound the band of its interval; missing values leave gaps."""

    label: str
    css: str
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True)
class Level:
    """A horizontal line with a meaning of its own, such as a ceiling or a threshold."""

    value: float
    label: str


LONGEST_NAME = 17
"""Letters of a layer that fit beside its row, also in the wide ones of DejaVu Sans, the only font of a bare Linux machine."""


def curves_svg(
    steps: Sequence[int],
    curves: Sequence[Curve],
    *,
    uid: str,
    title: str,
    y_label: str,
    x_label: str = "optimizer step",
    levels: Sequence[Level] = (),
    event: tuple[int, str] | None = None,
    limits: tuple[float, float] | None = None,
) -> str:
    """``curves`` over ``steps``, the first one in front. ``event`` marks a step; ``limits`` fixes the y axis."""
    shown = [curve for curve in curves if any(v is not None for v in curve.values)]
    entries = [(curve.label, curve.css, bool(curve.low)) for curve in shown]
    legend, rows = _legend(entries)
    left, right, top, bottom = 50, WIDTH - 14, 18 + 18 * rows, HEIGHT - 46
    x = np.asarray(steps, dtype=float)
    low, high, ticks = linear_scale(_extent(shown, levels))
    if limits is not None:
        low, high = limits
        ticks = [(v, f"{v:g}") for v in nice(low, high, 5)]
    first, last = min(0.0, float(x[0])), max(float(x[-1]), float(x[0]) + 1)

    def to_x(v: Floats) -> Floats:
        return left + (v - first) / (last - first) * (right - left)

    def to_y(v: Floats) -> Floats:
        return bottom - (np.clip(v, low, high) - low) / (high - low) * (bottom - top)

    frame = Frame(left, right, top, bottom)
    body = [*legend, *frame.grid((float(to_y(np.array(value))), label) for value, label in ticks)]
    body += frame.marks((float(to_x(np.array(v))), f"{v:g}") for v in nice(first, last, 4))
    for level in levels:
        at = float(to_y(np.array(level.value)))
        body += [line(left, at, right, at, "level"), text(right, at - 5, level.label, anchor="end", css="tick")]
    keep = thinned(x.size, max(len(shown), 1))
    for curve in reversed(shown):
        if len(curve.low) and len(curve.high):
            body.append(
                _band(to_x(x[keep]), to_y(_floats(curve.low)[keep]), to_y(_floats(curve.high)[keep]), curve.css)
            )
        body.append(polyline(to_x(x[keep]), to_y(_floats(curve.values)[keep]), curve.css))
    if event is not None:
        at = float(to_x(np.array(float(event[0]))))
        ends = at > (left + right) / 2
        body.append(line(at, top, at, bottom, "event"))
        body.append(
            text(at - 5 if ends else at + 5, top + 10, event[1], css="tick event", anchor="end" if ends else "start")
        )
    body += [*frame.edges(), *frame.names(x_label, y_label)]
    return svg(uid, title, _described(x, shown, levels, event, x_label), body)


def _extent(curves: Sequence[Curve], levels: Sequence[Level]) -> Floats:
    """What the y axis must hold: 0, all values, and of the intervals half as much again; early ones are huge."""
    values = np.concatenate([*(_floats(c.values) for c in curves), np.array([0.0, *(level.value for level in levels)])])
    bounds = [_floats(line) for c in curves for line in (c.low, c.high) if len(line)]
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = max(high - low, 0.05) / 2
    return np.clip(np.concatenate([values, *bounds]), low - room, high + room)


def _described(
    x: Floats, curves: Sequence[Curve], levels: Sequence[Level], event: tuple[int, str] | None, x_label: str
) -> str:
    said = [f"{x_label.capitalize()}s {x[0]:g} to {x[-1]:g}."]
    for curve in curves:
        values = [v for v in curve.values if v is not None]
        said.append(f"{curve.label}: first {values[0]:.3g}, highest {max(values):.3g}, last {values[-1]:.3g}.")
    said += [f"{level.label} at {level.value:.3g}." for level in levels]
    if event is not None:
        said.append(f"{event[1]}, marked.")
    return " ".join(said)


def _legend(entries: Sequence[tuple[str, str, bool]]) -> tuple[list[str], int]:
    """The lines' names above the figure, as many rows as they need."""
    body: list[str] = []
    at, row = 50.0, 0
    for label, css, band in entries:
        name = f"{label}, 95 %" if band else label
        width = 34 + _LETTER * len(name)
        if at > 50 and at + width > WIDTH:
            at, row = 50.0, row + 1
        y = 12 + 18 * row
        if band:
            body.append(f'<rect x="{at:g}" y="{y - 6:g}" width="20" height="12" class="band {css}"/>')
        body += [line(at, y, at + 20, y, css), text(at + 26, y + 4, name, css="tick")]
        at += width + 8
    return body, row + 1 if entries else 0


def _band(x: Floats, low: Floats, high: Floats, css: str) -> str:
    """The area between two lines, in pieces where one of them is missing."""
    drawn = []
    for run in runs(~(np.isnan(low) | np.isnan(high))):
        there = [f"{x[i]:.1f} {high[i]:.1f}" for i in run]
        back = [f"{x[i]:.1f} {low[i]:.1f}" for i in run[::-1]]
        drawn.append("M" + "L".join(there + back) + "Z")
    return f'<path d="{"".join(drawn)}" class="band {css}"/>' if drawn else ""


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if v is None else float(v) for v in values], dtype=float)


# ---------------------------------------------------------------------------------------------------------- layers


def layer_bars_svg(
    layers: Sequence[tuple[str, Sequence[float | None]]], *, uid: str, title: str, now: str, before: str
) -> str:
    """One row per layer in the order of the network: its newest value, before a pale bar up to its highest one.

    What is at or below 0 has no bar, only its number. ``now`` and ``before`` name the two in the legend.
    """
    chosen, left_out = _loudest(layers)
    rows = [(name, values[-1], _peak(values)) for name, values in chosen]
    left, right, row, first = 132, WIDTH - 62, 22, 26
    scale = max([peak for _, _, peak in rows if peak is not None and peak > 0], default=1.0)

    def bar(y: float, value: float | None, css: str) -> str:
        width = 0.0 if value is None else max(value, 0.0) / scale * (right - left)
        return f'<rect x="{left}" y="{y + 4:g}" width="{width:.1f}" height="14" class="{css}"/>'

    body = [
        f'<rect x="{left}" y="4" width="14" height="12" class="bar-main"/>',
        text(left + 20, 14, now, css="tick"),
        f'<rect x="{left + 92}" y="4" width="14" height="12" class="bar-soft"/>',
        text(left + 112, 14, before, css="tick"),
    ]
    for place, (name, value, peak) in enumerate(rows):
        y = first + place * row
        body += [_layer_name(left - 8, y + 15, name), bar(y, peak, "bar-soft"), bar(y, value, "bar-main")]
        body.append(text(right + 8, y + 15, _short(value), css="value"))
    bottom = first + row * len(rows)
    body.append(line(left, first, left, bottom, "axis"))
    said = ", ".join(f"{name} {_short(value)} (highest {_short(peak)})" for name, value, peak in rows)
    return svg(uid, title, f"In nats: {said}. {left_out}".strip(), body, height=bottom + 6)


def layer_map_svg(
    steps: Sequence[int], layers: Sequence[tuple[str, Sequence[float | None]]], *, uid: str, title: str
) -> str:
    """Layers downwards, steps to the right; a cell reaches back to the report before it. The darker, the more nats."""
    chosen, left_out = _loudest(layers)
    row = 20
    left, right, top = 132, WIDTH - 6, 4
    bottom = top + row * len(chosen)
    most = max([v for _, values in chosen for v in values if v is not None], default=0.0)
    scale = most if most > 0 else 1.0
    keep = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_CELLS)).round().astype(int)).tolist()
    last = max(steps[-1], 1)
    body = []
    for place, (name, values) in enumerate(chosen):
        y = top + place * row
        body.append(_layer_name(left - 8, y + 14, name))
        body.append(f'<rect x="{left}" y="{y + 1}" width="{right - left}" height="{row - 2}" class="cell-none"/>')
        before = 0
        for index in keep:
            value = values[index]
            start, end = (left + (right - left) * s / last for s in (before, steps[index]))
            before = steps[index]
            if value is not None:
                strength = min(max(value / scale, 0.0), 1.0)
                body.append(
                    f'<rect x="{start:.1f}" y="{y + 1}" width="{max(end - start, 0.4):.1f}" height="{row - 2}" '
                    f'class="cell" fill-opacity="{strength:.2f}"/>'
                )
    frame = Frame(left, right, top, bottom)
    body += frame.marks((left + (right - left) * v / last, f"{v:g}") for v in nice(0.0, float(last), 4))
    body.append(text((left + right) / 2, bottom + 36, "optimizer step", anchor="middle", css="label"))
    body += _map_scale(left, bottom + 48, scale)
    said = ", ".join(f"{name} {_short(_peak(values))}" for name, values in chosen)
    return svg(uid, title, f"Highest value of each layer in nats: {said}. {left_out}".strip(), body, height=bottom + 70)


def _map_scale(left: float, y: float, scale: float) -> list[str]:
    cells = [
        f'<rect x="{left + 14 + 12 * step:g}" y="{y:g}" width="12" height="14" class="cell" fill-opacity="{step / 10:g}"/>'
        for step in range(11)
    ]
    names = (text(left - 8, y + 11, "nats", anchor="end", css="tick"), text(left, y + 11, "0", css="tick"))
    return [*names, *cells, text(left + 154, y + 11, f"{scale:.2f}", css="tick")]


def _loudest(
    layers: Sequence[tuple[str, Sequence[float | None]]],
) -> tuple[list[tuple[str, Sequence[float | None]]], str]:
    """The layers that told most at any time, still in the network's order, and a sentence on those left out."""
    if len(layers) <= _MOST_LAYERS:
        return list(layers), ""
    peak = [max([v for v in values if v is not None], default=-np.inf) for _, values in layers]
    chosen = sorted(np.argsort(peak, kind="stable")[::-1][:_MOST_LAYERS].tolist())
    return [layers[i] for i in chosen], f"{len(layers) - _MOST_LAYERS} layers that told less are not drawn."


def _peak(values: Sequence[float | None]) -> float | None:
    return max([v for v in values if v is not None], default=None)


def _layer_name(x: float, y: float, name: str) -> str:
    short = name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
    full = f"<title>{escape(name)}</title>" if short != name else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="end" class="tick">{full}{escape(short)}</text>'


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")
