"""Which stored values are black and which are white: decided once for a whole data set, so its images stay comparable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from leakgauge.core.spaces import refuse_range
from leakgauge.errors import BadInput

BITS = (8, 10, 12, 14, 16)
"""Depths that cameras and scanners have. Files of more than 8 bits are stored in 16, whatever was measured."""

Window = tuple[float, float]
"""The values that are black and white."""


@dataclass(frozen=True)
class Levels:
    """The stored values that become 0 and 1 in an image.

    ``known_by``: the files' type (8 bits, or floats from 0 to 1), what the files say about themselves, the lowest and highest values of
    the data set, or the user's window.
    """

    black: float = 0.0
    white: float = 255.0
    known_by: Literal["type", "file", "values", "window"] = "type"


EIGHT_BITS = Levels()


@dataclass(frozen=True, eq=False)
class Given:
    """Images (N, C, H, W) in [0, 1], their labels (None: they have no classes), and how their values were read."""

    images: Tensor
    labels: Tensor | None
    levels: Levels = EIGHT_BITS


@dataclass(frozen=True, eq=False)
class Stored:
    """One image file. ``image`` (1, C, H, W) is in [0, 1], where 0 and 1 are the ends of ``span``, in the file's own unit.

    ``ends`` are the lowest and the highest value. ``says`` is what the file says about its black and white, if anything. ``final``: 8
    bits, floats from 0 to 1, or cut to a window already. ``counts``: its values are plain counts from 0, so a depth in bits makes
    sense. ``inverted``: its largest values are black. ``halved``: only the upper 8 of its 16 bits can be read.
    """

    image: Tensor
    span: Window
    ends: Window
    says: Window | None = None
    final: bool = False
    counts: bool = True
    inverted: bool = False
    halved: bool = False


def stored_values(
    values: np.ndarray,
    window: Window | None,
    *,
    source: str,
    span: Window,
    says: Window | None = None,
    counts: bool = True,
    inverted: bool = False,
    halved: bool = False,
) -> Stored:
    """A file of values (C, H, W) that range over ``span``, or further."""
    ends = float(values.min()), float(values.max())
    if ends[0] < span[0] or ends[1] > span[1]:  # 32 bits, or signed
        span, counts = (ends[0], max(ends[1], ends[0] + 1)), False
    if halved and window is not None:
        _refuse_halved(source, window[1], span[1])
    low, high = window or span
    image = torch.from_numpy((values - low) / (high - low)).float().clamp(0, 1)[None]
    final = window is not None or (span == (0, 255) and counts)
    return Stored(image, span, ends, says, final=final, counts=counts, inverted=inverted, halved=halved)


def stored_floats(values: np.ndarray, window: Window | None, *, source: str) -> Stored:
    """A file of floats (C, H, W), which range from 0 to 1 unless a window says otherwise."""
    if not np.isfinite(values).all():
        raise BadInput(f"{source} holds images with values that are not finite; remove NaN and infinity")
    if window is None:
        refuse_range(float(values.min()), float(values.max()), kind=str(values.dtype), source=source)
    low, high = window or (0.0, 1.0)
    image = torch.from_numpy((values - low) / (high - low)).float().clamp(0, 1)[None]
    return Stored(image, (0.0, 1.0), (0.0, 1.0), final=True)


def window_of(text: str) -> Window | None:
    """Black and white as the user writes them; None for an empty text.

    >>> window_of("0:4095"), window_of("-160:240")
    ((0.0, 4095.0), (-160.0, 240.0))
    """
    if not text:
        return None
    low, _, high = text.partition(":")
    try:
        found = float(low), float(high)
    except ValueError:
        found = (math.nan, math.nan)
    if not found[0] < found[1] or not all(map(math.isfinite, found)):
        raise BadInput(
            f"a window is written BLACK:WHITE, such as 0:4095 for 12 bits, with the smaller value first; got {text!r}"
        )
    return found


def levels_of(window: str) -> Levels:
    """The levels that a window names; without one those of 8 bits."""
    found = window_of(window)
    return EIGHT_BITS if found is None else Levels(*found, known_by="window")


def decide_levels(files: Sequence[Path], found: Sequence[Stored]) -> Levels:
    """One answer for all files, which were read without a window."""
    deep = [file for file, one in zip(files, found, strict=True) if not one.final]
    if not deep:
        return EIGHT_BITS
    if len(deep) < len(files):
        shallow = next(file for file, one in zip(files, found, strict=True) if one.final)
        raise BadInput(
            f"{shallow} has 8 bits per value and {deep[0]} has more, so one depth cannot fit both; convert them to one depth, or give "
            "the values of black and white, such as window='0:4095' (--window 0:4095)"
        )
    low, high = min(one.ends[0] for one in found), max(one.ends[1] for one in found)
    said = {one.says for one in found}
    if not all(one.counts for one in found):
        common = said.pop() if len(said) == 1 else None
        return Levels(low, max(high, low + 1), "values") if common is None else Levels(*common, "file")
    tops = [one.says[1] for one in found if one.says is not None]
    by_file = len(tops) == len(found) and max(tops) >= high
    white = depth_of(max(tops) if by_file else high)
    for file, one in zip(files, found, strict=True):
        if one.halved:
            _refuse_halved(str(file), white, one.span[1])
    return Levels(0.0, float(white), "file" if by_file else "values")


def depth_of(value: float) -> int:
    """The largest value of the smallest depth that holds ``value``.

    >>> depth_of(3000), depth_of(4096), depth_of(200)
    (4095, 16383, 255)
    """
    return next((2**bits - 1 for bits in BITS if value < 2**bits), 2 ** BITS[-1] - 1)


def at_levels(one: Stored, levels: Levels) -> Tensor:
    """The image with black and white as decided."""
    image = one.image
    if not one.final:
        low, high = one.span
        image = ((image * (high - low) + low - levels.black) / (levels.white - levels.black)).clamp(0, 1)
    return 1 - image if one.inverted else image


def _refuse_halved(source: str, white: float, most: float) -> None:
    if white < most:
        raise BadInput(
            f"{source} stores grey values with transparency, or separate planes, in 16 bits, of which only the upper 8 can be read, "
            f"but its white is {white:g} of {most:g}; "
            "convert it to plain grey or RGB"
        )
