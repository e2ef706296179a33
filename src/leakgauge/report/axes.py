"""What all figures share: an SVG with its words, a frame with axes, ticks at round numbers, lines with gaps.

Colours are CSS classes (``axis``, ``grid``, ``tick``, …), so that a figure follows the page into dark mode and onto paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
WIDTH, HEIGHT = 400, 264
_MOST_POINTS = 6000  # over all lines of a figure; more would only make the file large
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def svg(
    uid: str,
    title: str,
    desc: str,
    body: Sequence[str],
    *,
    width: float = WIDTH,
    height: float = HEIGHT,
    css: str = "chart",
) -> str:
    """The figure as one element with its title and its description; ``body`` is markup, the words are escaped here."""
    name = escape(uid)
    return (
        f'<svg class="{css}" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(desc)}</desc>{"".join(body)}</svg>'
    )


def text(x: float, y: float, words: str, *, css: str = "", anchor: str = "start", turn: bool = False) -> str:
    """Escaped words at a place; ``turn`` sets them upwards."""
    rotate = f' transform="rotate(-90 {x:g} {y:g})"' if turn else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{css}"{rotate}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{css}"/>'


def runs(present: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Places in unbroken stretches: where a value is missing, a line has a gap."""
    whole = np.flatnonzero(present)
    return np.split(whole, np.flatnonzero(np.diff(whole) > 1) + 1) if whole.size else []


def polyline(x: Floats, y: Floats, css: str) -> str:
    """A path with gaps where y is missing; a point alone between gaps becomes a dot, so that it is not lost."""
    drawn = []
    for run in runs(~np.isnan(y)):
        points = [f"{x[i]:.1f} {y[i]:.1f}" for i in run]
        drawn.append("M" + "L".join(points) + ("h.1" if len(points) == 1 else ""))
    return f'<path d="{"".join(drawn)}" class="{css}"/>' if drawn else ""


def thinned(points: int, lines: int) -> NDArray[np.intp]:
    """Places of the points to draw, evenly spread, so that all lines of a figure together stay small."""
    most = max(40, min(300, _MOST_POINTS // lines))
    return np.unique(np.linspace(0, points - 1, min(points, most)).round().astype(np.intp))


@dataclass(frozen=True)
class Frame:
    """The rectangle that data are drawn into. Ticks are pairs of a place in the figure and a label."""

    left: float
    right: float
    top: float
    bottom: float

    def grid(self, ticks: Iterable[tuple[float, str]]) -> list[str]:
        """Horizontal lines with their labels at the left."""
        drawn = []
        for at, label in ticks:
            drawn.append(line(self.left, at, self.right, at, "grid"))
            drawn.append(text(self.left - 7, at + 4, label, anchor="end", css="tick"))
        return drawn

    def marks(self, ticks: Iterable[tuple[float, str]]) -> list[str]:
        """Small marks below the frame with their labels."""
        drawn = []
        for at, label in ticks:
            drawn.append(line(at, self.bottom, at, self.bottom + 5, "axis"))
            drawn.append(text(at, self.bottom + 18, label, anchor="middle", css="tick"))
        return drawn

    def edges(self) -> list[str]:
        """The two axes."""
        return [
            line(self.left, self.bottom, self.right, self.bottom, "axis"),
            line(self.left, self.top, self.left, self.bottom, "axis"),
        ]

    def names(self, across: str, up: str, *, below: float = 38) -> list[str]:
        """What the axes mean; the horizontal name stands ``below`` the frame."""
        return [
            text((self.left + self.right) / 2, self.bottom + below, across, anchor="middle", css="label"),
            text(11, (self.top + self.bottom) / 2, up, anchor="middle", css="label", turn=True),
        ]


def log_scale(y: Floats) -> tuple[float, float, list[tuple[float, str]]]:
    """Limits (as exponents) and ticks: whole decades where there are at least two, else 1-2-5 steps."""
    positive = y[y > 0]
    low, high = math.log10(positive.min()), math.log10(positive.max())
    if high - low < 0.3:
        low, high = low - 0.15, high + 0.15
    else:
        low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    decades = range(math.ceil(low), math.floor(high) + 1)
    if len(decades) >= 2:
        step = math.ceil(len(decades) / 6)
        return low, high, [(d, f"10{str(d).translate(_SUPERSCRIPT)}") for d in decades[::step]]
    around = range(math.floor(low), math.ceil(high) + 1)
    fine = [(math.log10(m) + d, f"{m * 10.0**d:.3g}") for d in around for m in (1, 2, 5)]
    inside = [t for t in fine if low <= t[0] <= high]
    if len(inside) < 2:
        inside = [(e, f"{10**e:.3g}") for e in np.linspace(low, high, 4)[1:-1].tolist()]
    return low, high, inside


def linear_scale(y: Floats) -> tuple[float, float, list[tuple[float, str]]]:
    """Limits a little beyond the data, and ticks at round numbers."""
    low, high = float(np.nanmin(y)), float(np.nanmax(y))
    pad = 0.05 * (high - low) or 0.5
    low, high = low - pad, high + pad
    return low, high, [(v, f"{v:g}".replace("-", "−")) for v in nice(low, high, 5)]


def nice(low: float, high: float, about: int) -> list[float]:
    """Round numbers between low and high, about so many."""
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]
