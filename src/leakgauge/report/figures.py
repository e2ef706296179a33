"""Figures of the report: curves and bars as inline SVG, picture strips as data URIs; pure functions.

Colours are CSS classes (``ink``, ``soft``, …), so that a figure follows the page into dark mode and onto paper.
"""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from leakgauge.errors import BadInput

Floats = NDArray[np.float64]
WIDTH, HEIGHT = 400, 264
_MOST_POINTS = 6000  # over all lines of a figure; more would only make the file large
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _svg(uid: str, title: str, desc: str, body: Sequence[str], height: float = HEIGHT) -> str:
    name = escape(uid)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(desc)}</desc>{"".join(body)}</svg>'
    )


def _text(x: float, y: float, text: str, *, css: str = "", anchor: str = "start", turn: bool = False) -> str:
    rotate = f' transform="rotate(-90 {x:g} {y:g})"' if turn else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{css}"{rotate}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{css}"/>'


# ---------------------------------------------------------------------------------------------- optimisation curve


def curve_svg(steps: Sequence[int], losses: Sequence[Sequence[float | None]], *, uid: str) -> str:
    """Loss over steps, one line per restart (``losses[restart][step]``), the one the adversary would choose thick.

    The y axis is logarithmic; only where a loss is negative, which has no logarithm, is it linear (and says so). Zeros
    are drawn at the bottom edge. Missing and infinite values leave gaps.
    """
    x = np.asarray(steps, dtype=float)
    y = np.array([[math.nan if v is None else float(v) for v in line] for line in losses], dtype=float)
    if x.ndim != 1 or y.ndim != 2 or y.shape[1] != x.size or y.size == 0:
        raise BadInput(f"a curve needs one loss per step and restart, got {len(steps)} steps and losses {y.shape}")
    y[~np.isfinite(y)] = math.nan
    if np.isnan(y).all():
        raise BadInput("a curve needs at least one finite loss")
    best = int(np.nanargmin(np.nanmin(np.where(np.isnan(y), math.inf, y), axis=1)))
    log = float(np.nanmin(y)) >= 0 and bool((y > 0).any())
    left, right, top, bottom = 56, WIDTH - 14, 40, HEIGHT - 46
    low, high, ticks = _log_scale(y) if log else _linear_scale(y)

    def to_y(v: Floats) -> Floats:
        v = np.log10(np.maximum(v, 10**low)) if log else v
        return bottom - (v - low) / (high - low) * (bottom - top)

    last = max(float(x[-1]), float(x[0]) + 1)

    def to_x(v: Floats) -> Floats:
        return left + (v - x[0]) / (last - x[0]) * (right - left)

    body = []
    for value, label in ticks:
        at = bottom - (value - low) / (high - low) * (bottom - top)
        body += [_line(left, at, right, at, "grid"), _text(left - 7, at + 4, label, anchor="end", css="tick")]
    for value in _nice(float(x[0]), last, 4):
        at = float(to_x(np.array(value)))
        body.append(_line(at, bottom, at, bottom + 5, "axis"))
        body.append(_text(at, bottom + 18, f"{value:g}", anchor="middle", css="tick"))
    body += [_line(left, bottom, right, bottom, "axis"), _line(left, top, left, bottom, "axis")]
    keep = _thinned(x.size, y.shape[0])
    order = [r for r in range(y.shape[0]) if r != best] + [best]
    body += [_polyline(to_x(x[keep]), to_y(y[r][keep]), "chosen" if r == best else "other") for r in order]
    scale = f"loss ({'log' if log else 'linear'} scale)"
    body += [
        _text((left + right) / 2, HEIGHT - 8, "optimisation step", anchor="middle", css="label"),
        _text(13, (top + bottom) / 2, scale, anchor="middle", css="label", turn=True),
        _line(left, 16, left + 22, 16, "chosen"),
        _text(left + 28, 20, "chosen: lowest loss", css="tick"),
    ]
    others = y.shape[0] - 1
    if others:
        body += [_line(left + 172, 16, left + 194, 16, "other")]
        body += [_text(left + 200, 20, f"{others} other restart{'s' * (others > 1)}", css="tick")]
    desc = (
        f"{y.shape[0]} restart{'s' * (y.shape[0] > 1)} over steps {x[0]:g} to {x[-1]:g}. "
        f"The chosen restart, number {best + 1}, starts at a loss of {_first(y[best]):.3g} "
        f"and reaches {np.nanmin(y[best]):.3g}."
    )
    return _svg(uid, "Optimisation curve of the attack", desc, body)


def _first(line: Floats) -> float:
    return float(line[~np.isnan(line)][0])


def _thinned(points: int, lines: int) -> NDArray[np.intp]:
    most = max(40, min(300, _MOST_POINTS // lines))
    return np.unique(np.linspace(0, points - 1, min(points, most)).round().astype(np.intp))


def _polyline(x: Floats, y: Floats, css: str) -> str:
    """A path with gaps where y is missing; a point alone between gaps becomes a dot, so that it is not lost."""
    whole = np.flatnonzero(~np.isnan(y))
    drawn = []
    for run in np.split(whole, np.flatnonzero(np.diff(whole) > 1) + 1) if whole.size else []:
        points = [f"{x[i]:.1f} {y[i]:.1f}" for i in run]
        drawn.append("M" + "L".join(points) + ("h.1" if len(points) == 1 else ""))
    return f'<path d="{"".join(drawn)}" class="{css}"/>' if drawn else ""


def _log_scale(y: Floats) -> tuple[float, float, list[tuple[float, str]]]:
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


def _linear_scale(y: Floats) -> tuple[float, float, list[tuple[float, str]]]:
    low, high = float(np.nanmin(y)), float(np.nanmax(y))
    pad = 0.05 * (high - low) or 0.5
    low, high = low - pad, high + pad
    return low, high, [(v, f"{v:g}".replace("-", "−")) for v in _nice(low, high, 5)]


def _nice(low: float, high: float, about: int) -> list[float]:
    """Round numbers between low and high, about so many."""
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


# ---------------------------------------------------------------------------------------------------- metric bars


@dataclass(frozen=True)
class Panel:
    """One metric of the bar figure: its scale starts at 0 and ends at ``top``, or where the data end beyond it."""

    name: str
    top: float
    write: Callable[[float | None], str]
    rows: Sequence[tuple[str, Mapping[str, Any] | None]]


def bars_svg(panels: Sequence[Panel], *, uid: str) -> str:
    """Attack beside null run and trivial baseline: bar = mean over the images, whisker = smallest to largest image."""
    body: list[str] = []
    said = []
    at = 4.0
    for panel in panels:
        at = _panel(body, panel, at)
        values = ", ".join(f"{label} {panel.write(None if not s else s.get('mean'))}" for label, s in panel.rows)
        said.append(f"{panel.name}: {values}.")
    return _svg(uid, "Attack compared with the null run and the trivial baseline", " ".join(said), body, height=at)


def _panel(body: list[str], panel: Panel, at: float) -> float:
    left, right, row = 116, WIDTH - 74, 25
    ends = [v for _, summary in panel.rows if summary for v in (summary.get("mean"), summary.get("max"))]
    top = max([panel.top, *(v for v in ends if v is not None and math.isfinite(v))])
    ticks = _nice(0.0, top, 4)
    body.append(_text(0, at + 13, panel.name, css="head"))
    at += 24
    bottom = at + row * len(panel.rows)

    def to_x(value: float) -> float:
        return left + (right - left) * min(max(value / top, 0.0), 1.0)

    for tick in ticks:
        body.append(_line(to_x(tick), at, to_x(tick), bottom, "grid"))
        body.append(_text(to_x(tick), bottom + 15, f"{tick:g}", anchor="middle", css="tick"))
    for place, (label, summary) in enumerate(panel.rows):
        y = at + place * row
        value = summary.get("mean") if summary else None
        body.append(_text(left - 8, y + 17, label, anchor="end", css="label"))
        if value is not None:
            css = "bar-main" if place == 0 else "bar-soft"
            body.append(f'<rect x="{left}" y="{y + 5:g}" width="{to_x(value) - left:.1f}" height="15" class="{css}"/>')
            body += _whisker(summary or {}, y + 12.5, to_x)
        body.append(_text(right + 8, y + 17, panel.write(value), css="value" if place == 0 else "label"))
    body.append(_line(left, at, left, bottom, "axis"))
    return bottom + 26


def _whisker(summary: Mapping[str, Any], y: float, to_x: Callable[[float], float]) -> list[str]:
    low, high = summary.get("min"), summary.get("max")
    if low is None or high is None or low == high:
        return []
    a, b = to_x(low), to_x(high)
    return [_line(a, y, b, y, "whisker"), _line(a, y - 4, a, y + 4, "whisker"), _line(b, y - 4, b, y + 4, "whisker")]


# -------------------------------------------------------------------------------------------------------- pictures


@dataclass(frozen=True)
class Picture:
    """A piece of a strip, ready for ``<img src>``; or, with an empty ``uri``, the reason why there is none."""

    uri: str = ""
    width: int = 0
    height: int = 0
    first: int = 0  # place of the first image in the batch, from 0
    count: int = 1
    problem: str = ""

    @property
    def small(self) -> bool:
        """Whether a page will enlarge it, so that hard pixel edges are the honest way to show it."""
        return self.width / max(self.count, 1) < 120


def pictures(folder: Path, name: str, *, count: int, at_most: int = 4, only_first: bool = False) -> list[Picture]:
    """The PNG strip ``folder/name`` of ``count`` images, cut into pieces of ``at_most`` images that fit on a phone.

    A strip that is missing, damaged or of another layout does not stop the report: it becomes a placeholder, or stays
    whole. A name that leads out of the run folder is refused: the report must not publish a file it does not own.
    """
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise BadInput(f"the picture {name!r} lies outside the run folder {folder}; only pictures of the run are shown")
    if not path.is_file():
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
        return [Picture(png_uri(strip), *strip.size, first=0, count=known)]
    pieces = []
    for first in range(0, at_most if only_first else count, at_most):
        number = min(at_most, count - first)
        piece = strip.crop((first * tile, 0, first * tile + number * tile - 1, strip.height))
        pieces.append(Picture(png_uri(piece), *piece.size, first=first, count=number))
    return pieces


def png_uri(image: Image.Image) -> str:
    """The image as a PNG data URI. Re-encoding drops whatever metadata the file carried."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
