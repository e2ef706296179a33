"""The charts of the report as inline SVG, and strips of images as data URIs; pure functions.

Colours are CSS classes (``axis``, ``grid``, ``tick``, …), so a chart follows the page into dark mode and onto paper. Every chart has a
title and a description for screen readers.
"""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from markupsafe import Markup
from PIL import Image

from leakgauge.audit.files import picture_in
from leakgauge.audit.phrasing import number

WIDTH, HEIGHT = 400, 264
LEFT, RIGHT = 50, WIDTH - 14
LETTER = 6.1
"""Room for a letter of a small label; wider than most letters are."""
_MOST_POINTS = 6000  # over all lines of a chart; more would only make the file larger
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

# ------------------------------------------------------------------------------------------------- elements and axes


def svg(
    uid: str,
    title: str,
    desc: str,
    body: Iterable[str],
    *,
    width: float = WIDTH,
    height: float = HEIGHT,
    css: str = "chart",
) -> Markup:
    """One element with its title and description; ``body`` is markup, the words are escaped here."""
    name = escape(uid)
    return Markup(
        f'<svg class="{css}" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(desc)}</desc>{"".join(body)}</svg>'
    )


def text(x: float, y: float, words: str, *, css: str = "tick", anchor: str = "start", turn: bool = False) -> str:
    """Escaped words at a place; ``turn`` makes them read upwards."""
    rotate = f' transform="rotate(-90 {x:g} {y:g})"' if turn else ""
    return f'<text x="{_at(x)}" y="{_at(y)}" text-anchor="{anchor}" class="{css}"{rotate}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{_at(x1)}" y1="{_at(y1)}" x2="{_at(x2)}" y2="{_at(y2)}" class="{css}"/>'


def rect(x: float, y: float, width: float, height: float, css: str, *, opacity: float | None = None) -> str:
    strength = "" if opacity is None else f' fill-opacity="{opacity:.2f}"'
    return f'<rect x="{_at(x)}" y="{_at(y)}" width="{_at(width)}" height="{_at(height)}" class="{css}"{strength}/>'


def mark(x: float, y: float, css: str, shape: str = "circle", size: float = 5.2) -> str:
    """A circle, triangle, diamond or square of about the same area."""
    if shape == "circle":
        return f'<circle cx="{_at(x)}" cy="{_at(y)}" r="{size:g}" class="{css}"/>'
    path = {
        "triangle": f"M{x:.1f} {y - 1.15 * size:.1f}l{1.15 * size:.1f} {2 * size:.1f}h{-2.3 * size:.1f}z",
        "square": f"M{x - 0.9 * size:.1f} {y - 0.9 * size:.1f}h{1.8 * size:.1f}v{1.8 * size:.1f}h{-1.8 * size:.1f}z",
        "diamond": f"M{x:.1f} {y - 1.25 * size:.1f}l{1.15 * size:.1f} {1.25 * size:.1f}"
        f"l{-1.15 * size:.1f} {1.25 * size:.1f}l{-1.15 * size:.1f} {-1.25 * size:.1f}z",
    }[shape]
    return f'<path d="{path}" class="{css}"/>'


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Tick(NamedTuple):
    value: float
    label: str
    css: str = "tick"


@dataclass(frozen=True)
class Scale:
    """The values that an axis spans. On a logarithmic axis ``low`` and ``high`` are exponents of ten; ticks are always values."""

    low: float
    high: float
    ticks: tuple[Tick, ...] = ()
    log: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a value is, from 0 to 1; beyond an end it is drawn at that end. NaN stays NaN."""
        if self.log:
            value = math.log10(value) if value > 0 else self.low if value <= 0 else value
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


@dataclass(frozen=True)
class Frame:
    """The rectangle that data are drawn into, with its two axes."""

    left: float
    right: float
    top: float
    bottom: float
    across: Scale
    up: Scale

    def x(self, value: float) -> float:
        return self.left + self.across.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.up.share(value) * (self.bottom - self.top)

    def grid(self) -> list[str]:
        """Horizontal lines with their labels at the left."""
        drawn = []
        for tick in self.up.ticks:
            at = self.y(tick.value)
            drawn += [line(self.left, at, self.right, at, "grid")]
            drawn += [text(self.left - 7, at + 4, tick.label, anchor="end", css=tick.css)]
        return drawn

    def marks(self) -> list[str]:
        """Small marks below the frame with their labels."""
        drawn = []
        for tick in self.across.ticks:
            at = self.x(tick.value)
            drawn += [line(at, self.bottom, at, self.bottom + 5, "axis")]
            drawn += [text(at, self.bottom + 18, tick.label, anchor="middle", css=tick.css)]
        return drawn

    def edges(self, across: str, up: str) -> list[str]:
        """The two axes and what they mean."""
        return [
            *self.marks(),
            line(self.left, self.bottom, self.right, self.bottom, "axis"),
            line(self.left, self.top, self.left, self.bottom, "axis"),
            text((self.left + self.right) / 2, self.bottom + 38, across, anchor="middle", css="label"),
            text(11, (self.top + self.bottom) / 2, up, anchor="middle", css="label", turn=True),
        ]


def linear(values: Iterable[float], *, about: int = 5) -> Scale:
    """Limits a little beyond the data, and ticks at round numbers."""
    known = [v for v in values if math.isfinite(v)]
    low, high = min(known), max(known)
    pad = 0.05 * (high - low) or 0.5
    return between(low - pad, high + pad, about=about)


def between(low: float, high: float, *, about: int = 5) -> Scale:
    """Exactly these limits, and ticks at round numbers."""
    return Scale(low, high, tuple(Tick(v, _tick(v)) for v in round_numbers(low, high, about)))


def logarithmic(values: Iterable[float]) -> Scale:
    """Limits a little beyond the positive data; ticks at whole decades if there are at least two, else in steps of 1, 2, 5."""
    positive = [v for v in values if v > 0 and math.isfinite(v)]
    low, high = math.log10(min(positive)), math.log10(max(positive))
    pad = 0.15 if high - low < 0.3 else 0.04 * (high - low)
    low, high = low - pad, high + pad
    decades = range(math.ceil(low), math.floor(high) + 1)
    if len(decades) >= 2:
        every = decades[:: math.ceil(len(decades) / 6)]
        return Scale(low, high, tuple(Tick(10.0**d, f"10{str(d).translate(_SUPERSCRIPT)}") for d in every), log=True)
    around = range(math.floor(low), math.ceil(high) + 1)
    inside = [v for d in around for m in (1, 2, 5) if low <= math.log10(v := m * 10.0**d) <= high]
    if len(inside) < 2:
        inside = [10**e for e in np.linspace(low, high, 4)[1:-1].tolist()]
    return Scale(low, high, tuple(Tick(v, f"{v:.3g}") for v in inside), log=True)


def round_numbers(low: float, high: float, about: int) -> list[float]:
    """
    >>> round_numbers(0.0, 1.02, 5), round_numbers(-3.0, 12.0, 4)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 5.0, 10.0])
    """
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) + 0.0 for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _tick(value: float) -> str:
    return f"{value:g}".replace("-", "−")


Key = tuple[str, Sequence[str]]
"""An entry of a legend: its words and its parts, such as ``line CLASS``, ``box CLASS`` or ``diamond CLASS``."""


def legend(keys: Sequence[Key], *, left: float = LEFT) -> tuple[list[str], float]:
    """Entries above a chart, in as many rows as they need, and the height they take."""
    body: list[str] = []
    at, row = left, 0
    for words, parts in keys:
        width = (26 if parts else 0) + LETTER * len(words)
        if at > left and at + width > WIDTH:
            at, row = left, row + 1
        y = 12.0 + 18 * row
        body += [_sample(part, at, y) for part in parts]
        body.append(text(at + (26 if parts else 0), y + 4, words))
        at += width + 14
    return body, 18.0 * (row + 1) if keys else 0.0


def _sample(part: str, x: float, y: float) -> str:
    kind, _, css = part.partition(" ")
    if kind == "line":
        return line(x, y, x + 20, y, css)
    return rect(x, y - 6, 20, 12, css) if kind == "box" else mark(x + 10, y, css, kind, 4.2)


# --------------------------------------------------------------------------------------------------------------- lines

Values = Sequence[float | None]


@dataclass(frozen=True)
class Line:
    """One line of a chart. Missing values leave gaps; ``low`` and ``high`` bound its interval.

    ``shape`` marks every point and draws the interval as a whisker; without one the interval is a band. ``joined`` is whether the points
    are connected. A line without a label is not in the legend.
    """

    label: str
    css: str
    values: Values
    low: Values = ()
    high: Values = ()
    shape: Literal["", "circle", "diamond"] = ""
    joined: bool = True


@dataclass(frozen=True)
class Level:
    """A horizontal line with a meaning of its own, such as a ceiling or a threshold; named in the legend or at its right end."""

    value: float
    label: str
    css: str = "level"
    in_legend: bool = False


@dataclass(frozen=True)
class Zone:
    """A shaded stretch of the horizontal axis."""

    start: float
    end: float
    label: str
    css: str


@dataclass(frozen=True)
class Event:
    """A place on the horizontal axis where something happened."""

    at: float
    label: str


def line_chart(
    places: Sequence[float],
    lines: Sequence[Line],
    *,
    uid: str,
    title: str,
    across: str,
    up: str,
    desc: str = "",
    x: Scale | None = None,
    y: Scale | None = None,
    levels: Sequence[Level] = (),
    zones: Sequence[Zone] = (),
    event: Event | None = None,
    height: float = HEIGHT,
) -> Markup:
    """``lines`` over ``places``, the first one in front. ``x`` and ``y`` fix the axes, ``desc`` what a screen reader says."""
    shown = [one for one in lines if any(v is not None for v in one.values)]
    keys = [(f"{one.label}, 95 %" if _has_band(one) else one.label, _parts(one)) for one in shown if one.label]
    body, room = legend(keys + [(level.label, [f"line {level.css}"]) for level in levels if level.in_legend])
    first, last = min(0.0, places[0]), max(places[-1], places[0] + 1)
    frame = Frame(LEFT, RIGHT, room + 18, height - 46, x or between(first, last, about=4), y or _extent(shown, levels))
    for zone in zones:
        start, end = frame.x(zone.start), frame.x(zone.end)
        body.append(rect(start, frame.top, max(end - start, 0.0), frame.bottom - frame.top, zone.css))
        body.append(text((start + end) / 2, frame.top + 15, zone.label, anchor="middle"))
    body += frame.grid()
    for level in levels:
        at = frame.y(level.value)
        body.append(line(LEFT, at, RIGHT, at, level.css))
        body += [] if level.in_legend else [text(RIGHT, at - 5, level.label, anchor="end")]
    keep = _thinned(len(places), max(40, min(300, _MOST_POINTS // max(len(shown), 1))))
    for one in reversed(shown):
        body += _drawn(one, frame, [places[i] for i in keep], keep)
    if event is not None:
        body += _flag(event, frame)
    said = desc or _described(places, shown, levels, event, across)
    return svg(uid, title, said, [*body, *frame.edges(across, up)], height=height)


def _has_band(one: Line) -> bool:
    return bool(one.low) and bool(one.high) and not one.shape


def _parts(one: Line) -> list[str]:
    parts = [f"box band {one.css}"] if _has_band(one) else []
    parts += [f"line {one.css}"] if one.joined else []
    return parts + ([f"{one.shape} dot-{one.css}"] if one.shape else [])


def _drawn(one: Line, frame: Frame, places: Sequence[float], keep: Sequence[int]) -> list[str]:
    def heights(values: Values) -> list[float]:
        return [math.nan if (v := values[i]) is None else frame.y(v) for i in keep]

    x, y = [frame.x(v) for v in places], heights(one.values)
    low, high = (heights(one.low), heights(one.high)) if one.low and one.high else ([], [])
    body = [_band(x, low, high, one.css)] if _has_band(one) else []
    body += [_path(x, y, one.css)] if one.joined else []
    if one.shape:
        bounded = zip(x, low, high, strict=True) if low else ()
        body += [line(a, b, a, c, "whisker") for a, b, c in bounded if not math.isnan(b + c)]
        size = 3.2 if one.shape == "circle" else 4.4
        body += [mark(a, b, f"dot-{one.css}", one.shape, size) for a, b in zip(x, y, strict=True) if not math.isnan(b)]
    return body


def _runs(present: Sequence[bool]) -> list[list[int]]:
    """Indices in unbroken stretches: a line has a gap where a value is missing."""
    whole = np.flatnonzero(present)
    return [run.tolist() for run in np.split(whole, np.flatnonzero(np.diff(whole) > 1) + 1)] if whole.size else []


def _path(x: Sequence[float], y: Sequence[float], css: str) -> str:
    """A path with gaps; a point alone between gaps becomes a dot, so it can be seen."""
    drawn = [
        "M" + "L".join(f"{x[i]:.1f} {y[i]:.1f}" for i in run) + ("h.1" if len(run) == 1 else "")
        for run in _runs([not math.isnan(v) for v in y])
    ]
    return f'<path d="{"".join(drawn)}" class="{css}"/>' if drawn else ""


def _band(x: Sequence[float], low: Sequence[float], high: Sequence[float], css: str) -> str:
    drawn = []
    for run in _runs([not math.isnan(a + b) for a, b in zip(low, high, strict=True)]):
        there = [f"{x[i]:.1f} {high[i]:.1f}" for i in run]
        drawn.append("M" + "L".join(there + [f"{x[i]:.1f} {low[i]:.1f}" for i in run[::-1]]) + "Z")
    return f'<path d="{"".join(drawn)}" class="band {css}"/>' if drawn else ""


def _flag(event: Event, frame: Frame) -> list[str]:
    at = frame.x(event.at)
    late = at > (frame.left + frame.right) / 2
    words = text(
        at - 5 if late else at + 5, frame.top + 10, event.label, css="tick event", anchor="end" if late else "start"
    )
    return [line(at, frame.top, at, frame.bottom, "event"), words]  # fmt: skip


def _thinned(points: int, most: int) -> list[int]:
    """Indices of at most so many points, evenly spread."""
    return np.unique(np.linspace(0, points - 1, min(points, most)).round().astype(int)).tolist()


def _extent(lines: Sequence[Line], levels: Sequence[Level]) -> Scale:
    """What the vertical axis must hold: 0, all values, and half as much again of the intervals, for early ones are huge."""
    values = [0.0, *(level.value for level in levels), *(v for one in lines for v in one.values if v is not None)]
    room = max(max(values) - min(values), 0.05) / 2
    low, high = min(values) - room, max(values) + room
    bounds = [v for one in lines for v in (*one.low, *one.high) if v is not None]
    return linear([*values, *(min(max(v, low), high) for v in bounds)])


def _described(
    places: Sequence[float], lines: Sequence[Line], levels: Sequence[Level], event: Event | None, across: str
) -> str:
    said = [f"{across.capitalize()}s {places[0]:g} to {places[-1]:g}."]
    for one in lines:
        values = [v for v in one.values if v is not None]
        said.append(f"{one.label}: first {values[0]:.3g}, highest {max(values):.3g}, last {values[-1]:.3g}.")
    said += [f"{level.label} at {level.value:.3g}." for level in levels]
    return " ".join([*said, *([f"{event.label}, marked."] if event else [])])


# ---------------------------------------------------------------------------------------------------------------- bars


@dataclass(frozen=True)
class Bar:
    """One row: its value as a bar and as ``written`` beside it, an interval as a whisker, a pale bar ``behind`` it."""

    label: str
    value: float | None
    written: str
    css: str = "bar-main"
    low: float | None = None
    high: float | None = None
    behind: float | None = None


@dataclass(frozen=True)
class Panel:
    """Rows with one scale, which starts at 0 and ends at ``top``, or where the data end beyond it."""

    name: str
    top: float
    rows: Sequence[Bar]
    ticks: bool = True


def bar_chart(
    panels: Sequence[Panel], *, uid: str, title: str, desc: str = "", keys: Sequence[Key] = (), left: float = 132
) -> Markup:
    """Panels below each other; the names of rows end at ``left``."""
    body, at = legend(keys, left=left)
    said = []
    for panel in panels:
        at += 6
        if panel.name:
            body.append(text(0, at + 13, panel.name, css="head"))
            at += 24
        drawn, at = _rows(panel, at, left)
        body, at = body + drawn, at + (22 if panel.ticks else 2)
        said.append(f"{panel.name}: {', '.join(f'{row.label} {row.written}' for row in panel.rows)}.")
    return svg(uid, title, desc or " ".join(said), body, height=at + 4)


def _rows(panel: Panel, top: float, left: float) -> tuple[list[str], float]:
    """The rows of a panel and where they end."""
    right, row = WIDTH - 70, 24
    bottom = top + row * len(panel.rows)
    ends = [v for one in panel.rows for v in (one.value, one.high) if v is not None and math.isfinite(v)]
    scale = between(0.0, max([panel.top, *ends]), about=4)
    frame = Frame(left, right, top, bottom, scale, scale)
    body = []
    for tick in scale.ticks if panel.ticks else ():
        body.append(line(frame.x(tick.value), top, frame.x(tick.value), bottom, "grid"))
        body.append(text(frame.x(tick.value), bottom + 15, tick.label, anchor="middle"))
    for place, one in enumerate(panel.rows):
        y = top + place * row
        body.append(_name(left - 8, y + 16, one.label))
        for value, css in ((one.behind, "bar-soft"), (one.value, one.css)):
            if value is not None:
                body.append(rect(left, y + 4, frame.x(value) - left, 15, css))
        if one.value is not None and one.low is not None and one.high is not None and one.low != one.high:
            a, b, middle = frame.x(one.low), frame.x(one.high), y + 11.5
            body += [line(a, middle, b, middle, "whisker")]
            body += [line(end, middle - 4, end, middle + 4, "whisker") for end in (a, b)]
        body.append(text(right + 8, y + 16, one.written, css="value" if one.css == "bar-main" else "label"))
    return [*body, line(left, top, left, bottom, "axis")], bottom


LONGEST_NAME = 17
"""Letters of a row's name that fit beside it, also in the wide ones of DejaVu Sans, the only font of a bare Linux machine."""
_MOST_CELLS = 60


def heat_map(
    steps: Sequence[int], rows: Sequence[tuple[str, Values]], *, uid: str, title: str, desc: str, across: str, unit: str
) -> Markup:
    """Rows downwards, steps to the right; a cell reaches back to the step before it. The darker, the higher."""
    row, left, right, top = 20, 132, WIDTH - 6, 4
    bottom = top + row * len(rows)
    most = max([v for _, values in rows for v in values if v is not None], default=0.0)
    shade = Scale(0.0, most if most > 0 else 1.0)
    frame = Frame(left, right, top, bottom, between(0.0, max(steps[-1], 1), about=4), shade)
    keep = _thinned(len(steps), _MOST_CELLS)
    body = []
    for place, (name, values) in enumerate(rows):
        y = top + place * row
        body += [_name(left - 8, y + 14, name), rect(left, y + 1, right - left, row - 2, "cell-none")]
        before = 0
        for index in keep:
            value, start, end = values[index], frame.x(before), frame.x(steps[index])
            before = steps[index]
            if value is not None:
                body.append(rect(start, y + 1, max(end - start, 0.4), row - 2, "cell", opacity=shade.share(value)))
    body += [*frame.marks(), text((left + right) / 2, bottom + 36, across, anchor="middle", css="label")]
    y = bottom + 48
    body += [text(left - 8, y + 11, unit, anchor="end"), text(left, y + 11, "0")]
    body += [rect(left + 14 + 12 * step, y, 12, 14, "cell", opacity=step / 10) for step in range(11)]
    body.append(text(left + 154, y + 11, number(shade.high, 2)))
    return svg(uid, title, desc, body, height=bottom + 70)


def _name(x: float, y: float, name: str) -> str:
    """The name of a row, shortened at its front where it is long; the whole name is its tooltip."""
    short = name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"
    whole = f"<title>{escape(name)}</title>" if short != name else ""
    return f'<text x="{_at(x)}" y="{_at(y)}" text-anchor="end" class="tick">{whole}{escape(short)}</text>'


# ---------------------------------------------------------------------------------------------------- marks in a plane


@dataclass(frozen=True)
class Mark:
    """A numbered point. ``kind`` says what its shape and colour mean; ``low`` and ``high`` bound its place across.

    ``front`` is whether no other point is better in every respect: those points are named, if there is room. ``was`` is another height,
    to which a line leads.
    """

    number: int
    name: str
    x: float
    y: float
    css: str
    kind: str = ""
    shape: str = "circle"
    size: float = 5.2
    low: float = math.nan
    high: float = math.nan
    front: bool = False
    was: float = math.nan


@dataclass(frozen=True)
class Plot:
    """Marks in a frame. ``limits`` are vertical lines with a name; ``front`` joins the marks on the front by a staircase."""

    marks: Sequence[Mark]
    across: Scale
    up: Scale
    x_label: str
    y_label: str
    limits: Sequence[tuple[float, str]] = ()
    front: bool = False
    height: float = 130


def scatter_chart(plots: Sequence[Plot], *, uid: str, title: str, desc: str, keys: Sequence[Key] = ()) -> Markup:
    """Plots below each other; lower left is better in each."""
    body, at = legend(keys)
    for plot in plots:
        top = at + 22
        frame = Frame(LEFT, RIGHT, top, top + plot.height, plot.across, plot.up)
        body += [*frame.grid(), *frame.edges(plot.x_label, plot.y_label)]
        for place, (value, words) in enumerate(plot.limits):
            left = place > 0 and value <= plot.limits[0][0]
            body.append(line(frame.x(value), top, frame.x(value), frame.bottom, "limit"))
            body.append(text(frame.x(value) + (-5 if left else 5), top - 6, words, anchor="end" if left else "start"))
        body += (
            [_staircase([(frame.x(one.x), frame.y(one.y)) for one in plot.marks if one.front])] if plot.front else []
        )
        body += _scatter(plot.marks, frame)
        at = frame.bottom + 46
    return svg(uid, title, desc, body, height=at, css="chart halo")


def _staircase(points: Sequence[tuple[float, float]]) -> str:
    """From each point of the front to the right, then down to the next: what is above it is beaten."""
    ordered = sorted(set(points), key=lambda p: (p[0], -p[1]))
    if len(ordered) < 2:
        return ""
    path = f"M{ordered[0][0]:.1f} {ordered[0][1]:.1f}" + "".join(f"H{px:.1f}V{py:.1f}" for px, py in ordered[1:])
    return f'<path d="{path}" class="front"/>'


Box = tuple[float, float, float, float]
_AWAY = (0, 14, 28, 42)  # how far a label may move from its mark; a moved one is tied to its mark by a line


class Place(NamedTuple):
    """Where a label may be: its anchor point, the room it takes, how far it moved from its mark."""

    x: float
    y: float
    anchor: str
    box: Box
    away: int


def _scatter(marks: Sequence[Mark], frame: Frame) -> list[str]:
    """Intervals, marks, and labels that cover neither a mark nor another label; marks on the front choose first.

    On the front a label is number and name, elsewhere (or where there is no room) the number alone.
    """
    spots = [(frame.x(one.x), frame.y(one.y)) for one in marks]
    placed = list(zip(marks, spots, strict=True))
    spreads = [
        part
        for m, (x, y) in placed
        if not math.isnan(m.was)
        for part in (line(x, y, x, frame.y(m.was), "was"), line(x - 4, frame.y(m.was), x + 4, frame.y(m.was), "was"))
    ]
    spreads += [line(frame.x(m.low), y, frame.x(m.high), y, "spread") for m, (_, y) in placed if m.high > m.low]
    taken: list[Box] = [(x - m.size, y - m.size, x + m.size, y + m.size) for m, (x, y) in placed]
    leaders, labels = [], []
    for one, spot in sorted(placed, key=lambda pair: not pair[0].front):
        wanted = [f"{one.number} {one.name}", str(one.number)] if one.front and one.name else [str(one.number)]
        tries = [(words, place) for words in wanted for away in _AWAY for place in _around(spot, words, away, one.size)]
        free = [(words, place) for words, place in tries if _is_free(place, spot, spots, taken, frame)]
        words, place = free[0] if free else tries[-1]
        left, top, right, bottom = place.box
        taken.append((left - 4, top, right + 4, bottom))  # two numbers side by side would read as one
        if place.away:
            end = (min(max(spot[0], left), right), min(max(spot[1], top), bottom))
            leaders.append(line(*spot, *end, "leader"))
        css = "tick of-mark named" if one.front and one.name else "tick of-mark"
        labels.append(text(place.x, place.y, words, anchor=place.anchor, css=css))
    drawn = [mark(*spot, one.css, one.shape, one.size) for one, spot in placed]
    return [*spreads, *leaders, *drawn, *labels]


def _around(spot: tuple[float, float], words: str, away: int, size: float) -> list[Place]:
    """Off the corners of the mark, where no interval runs, then above and below it."""
    x, y = spot
    width, side = len(words) * LETTER, size + 2 + away / 2
    found = []
    for down in (-4 - away, 13 + away):
        for px, anchor in ((x + side, "start"), (x - side, "end"), (x, "middle")):
            py = y + down + (math.copysign(4, down) if anchor == "middle" else 0)
            left = {"start": px, "end": px - width, "middle": px - width / 2}[anchor]
            found.append(Place(px, py, anchor, (left, py - 10, left + width, py + 2), away))
    return found


def _is_free(
    place: Place, own: tuple[float, float], spots: Sequence[tuple[float, float]], taken: Sequence[Box], frame: Frame
) -> bool:
    """Whether the label is inside the plot, covers nothing and, without a line, cannot be taken for another mark's."""
    left, top, right, bottom = place.box
    inside = left >= frame.left + 2 and right <= WIDTH and top >= frame.top - 12 and bottom <= frame.bottom
    if not inside or any(meet(place.box, box) for box in taken):
        return False
    return place.away > 0 or all(at == own or _distance(place.box, at) > _distance(place.box, own) for at in spots)


def _distance(box: Box, at: tuple[float, float]) -> float:
    return math.hypot(max(box[0] - at[0], 0.0, at[0] - box[2]), max(box[1] - at[1], 0.0, at[1] - box[3]))


def meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


# -------------------------------------------------------------------------------------------------------- maps, pictures

CLASSES = 10
"""Colours of a map of features; further classes use them again."""


def feature_map(places: Sequence[tuple[float, float]], labels: Sequence[int], *, title: str, uid: str) -> Markup:
    """Features in the plane, one colour per class."""
    size, edge = 160, 8
    by_class: dict[int, list[str]] = {}
    for place, (a, b) in enumerate(places):
        x, y = (edge + v * (size - 2 * edge) for v in (a, b))
        by_class.setdefault(labels[place] if place < len(labels) else 0, []).append(f"M{x:.1f} {y:.1f}h0")
    drawn = [f'<path d="{"".join(found)}" class="k{kind % CLASSES}"/>' for kind, found in sorted(by_class.items())]
    desc = f"{len(places)} features of {len(by_class)} classes; close points are similar features."
    return svg(uid, title, desc, drawn, width=size, height=size, css="chart map")


@dataclass(frozen=True)
class Picture:
    """A piece of a strip, ready for ``<img src>``; or, with an empty ``uri``, the reason why there is none."""

    uri: str = field(default="", repr=False)
    width: int = 0
    height: int = 0
    first: int = 0  # place of the first image in the batch, from 0
    count: int = 1
    problem: str = ""

    @property
    def small(self) -> bool:
        """Whether a page will enlarge it, where hard pixel edges are the honest way to show it."""
        return self.width / max(self.count, 1) < 120


def pictures(folder: Path, name: str, *, count: int, at_most: int = 4, only_first: bool = False) -> list[Picture]:
    """The PNG strip ``folder/name`` of ``count`` images, cut into pieces of ``at_most`` images that fit on a phone.

    A strip that is missing, damaged or of another layout does not stop the report: it becomes a placeholder, or stays
    whole. A name that leads out of the run folder is refused: the report must not publish a file it does not own.
    """
    path = picture_in(folder, name)
    if path is None:
        return [Picture(problem=f"picture missing: {name}")]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=["PNG"]) as opened:
                strip = opened.convert("L" if opened.mode == "L" else "RGB")
        strip.info.clear()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        return [Picture(problem=f"picture cannot be read: {name}")]
    tile, rest = divmod(strip.width + 1, max(count, 1))
    if rest or count <= at_most or tile < 2:
        known = 1 if rest or tile < 2 else count
        return [Picture(_png_uri(strip), *strip.size, first=0, count=known)]
    pieces = []
    for first in range(0, at_most if only_first else count, at_most):
        wide = min(at_most, count - first)
        piece = strip.crop((first * tile, 0, first * tile + wide * tile - 1, strip.height))
        pieces.append(Picture(_png_uri(piece), *piece.size, first=first, count=wide))
    return pieces


def _png_uri(image: Image.Image) -> str:
    """The image as a PNG data URI. Re-encoding drops whatever metadata the file carried."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
