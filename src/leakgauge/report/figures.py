"""Figures of an attacked set-up: its curve and bars as inline SVG, picture strips as data URIs; pure functions."""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from leakgauge.audit.phrasing import plural
from leakgauge.errors import BadInput
from leakgauge.report.axes import (
    HEIGHT,
    WIDTH,
    Floats,
    Frame,
    line,
    linear_scale,
    log_scale,
    nice,
    polyline,
    svg,
    text,
    thinned,
)

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
    low, high, ticks = log_scale(y) if log else linear_scale(y)

    def to_y(v: Floats) -> Floats:
        v = np.log10(np.maximum(v, 10**low)) if log else v
        return bottom - (v - low) / (high - low) * (bottom - top)

    last = max(float(x[-1]), float(x[0]) + 1)

    def to_x(v: Floats) -> Floats:
        return left + (v - x[0]) / (last - x[0]) * (right - left)

    frame = Frame(left, right, top, bottom)
    body = frame.grid((bottom - (value - low) / (high - low) * (bottom - top), label) for value, label in ticks)
    body += frame.marks((float(to_x(np.array(v))), f"{v:g}") for v in nice(float(x[0]), last, 4))
    body += frame.edges()
    keep = thinned(x.size, y.shape[0])
    order = [r for r in range(y.shape[0]) if r != best] + [best]
    body += [polyline(to_x(x[keep]), to_y(y[r][keep]), "chosen" if r == best else "other") for r in order]
    body += frame.names("optimisation step", f"loss ({'log' if log else 'linear'} scale)")
    body += [
        line(left, 16, left + 22, 16, "chosen"),
        text(left + 28, 20, "chosen: lowest loss", css="tick"),
    ]
    others = y.shape[0] - 1
    if others:
        body += [line(left + 172, 16, left + 194, 16, "other")]
        body += [text(left + 200, 20, plural(others, "other restart"), css="tick")]
    desc = (
        f"{plural(y.shape[0], 'restart')} over steps {x[0]:g} to {x[-1]:g}. "
        f"The chosen restart, number {best + 1}, starts at a loss of {_first(y[best]):.3g} "
        f"and reaches {np.nanmin(y[best]):.3g}."
    )
    return svg(uid, "Optimisation curve of the attack", desc, body)


def _first(line: Floats) -> float:
    return float(line[~np.isnan(line)][0])


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
    return svg(uid, "Attack compared with the null run and the trivial baseline", " ".join(said), body, height=at)


def _panel(body: list[str], panel: Panel, at: float) -> float:
    left, right, row = 116, WIDTH - 74, 25
    ends = [v for _, summary in panel.rows if summary for v in (summary.get("mean"), summary.get("max"))]
    top = max([panel.top, *(v for v in ends if v is not None and math.isfinite(v))])
    ticks = nice(0.0, top, 4)
    body.append(text(0, at + 13, panel.name, css="head"))
    at += 24
    bottom = at + row * len(panel.rows)

    def to_x(value: float) -> float:
        return left + (right - left) * min(max(value / top, 0.0), 1.0)

    for tick in ticks:
        body.append(line(to_x(tick), at, to_x(tick), bottom, "grid"))
        body.append(text(to_x(tick), bottom + 15, f"{tick:g}", anchor="middle", css="tick"))
    for place, (label, summary) in enumerate(panel.rows):
        y = at + place * row
        value = summary.get("mean") if summary else None
        body.append(text(left - 8, y + 17, label, anchor="end", css="label"))
        if value is not None:
            css = "bar-main" if place == 0 else "bar-soft"
            body.append(f'<rect x="{left}" y="{y + 5:g}" width="{to_x(value) - left:.1f}" height="15" class="{css}"/>')
            body += _whisker(summary or {}, y + 12.5, to_x)
        body.append(text(right + 8, y + 17, panel.write(value), css="value" if place == 0 else "label"))
    body.append(line(left, at, left, bottom, "axis"))
    return bottom + 26


def _whisker(summary: Mapping[str, Any], y: float, to_x: Callable[[float], float]) -> list[str]:
    low, high = summary.get("min"), summary.get("max")
    if low is None or high is None or low == high:
        return []
    a, b = to_x(low), to_x(high)
    return [line(a, y, b, y, "whisker"), line(a, y - 4, a, y + 4, "whisker"), line(b, y - 4, b, y + 4, "whisker")]


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
