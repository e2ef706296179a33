"""Numbers, counts and times as every page, table and line on the screen writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

MISSING = "not measured"
DECIMALS: Mapping[str, int] = {
    "psnr": 1,
    "ssim": 3,
    "ssim_reduced": 3,
    "psnr_reduced": 1,
    "lpips": 3,
    "reid": 1,
    "layout": 2,
    "layout_rank": 1,
    "pieces": 2,
    "pieces_lead": 2,
    "correlation": 2,
    "smape": 1,
}
"""Decimals of the metrics that have a usual number of them."""


def number(value: float | None, places: int | None = None, *, missing: str = MISSING) -> str:
    """A number with so many decimals; without ``places`` four, or a power of ten where four would hide it.

    >>> number(0.12345, 3), number(-0.0001, 2), number(-1.5, 1), number(float("inf"), 1), number(None, 2)
    ('0.123', '0.00', '−1.5', '∞', 'not measured')
    >>> number(0.01234), number(2e-7), number(0.0), number(float("nan"), 2), number(None, missing="–")
    ('0.0123', '2.0e−07', '0', 'undefined', '–')
    """
    if value is None:
        return missing
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if places is not None:
        return f"{value:z.{places}f}".replace("-", "−")
    if value == 0:
        return "0"
    return (f"{value:.4f}" if 0.001 <= abs(value) < 10_000 else f"{value:.1e}").replace("-", "−")


def metric(name: str, value: float | None, *, unit: bool = False) -> str:
    """
    >>> metric("psnr", 23.456, unit=True), metric("psnr", float("inf")), metric("ssim", 0.5), metric("labels", 0.75)
    ('23.5 dB', '∞', '0.500', '75 %')
    """
    if name == "labels" and value is not None:
        return f"{number(100 * value, 0)} %"
    written = number(value, DECIMALS.get(name))
    return f"{written} dB" if unit and name.startswith("psnr") and value is not None else written


def moved(name: str, by: float, *, unit: bool = False) -> str:
    """By how much a metric changed.

    >>> moved("ssim", 0.2), moved("psnr", -1.25, unit=True)
    ('+0.200', '−1.2 dB')
    """
    return ("" if by < 0 else "+") + metric(name, by, unit=unit)


def thousands(count: int) -> str:
    """
    >>> thousands(13426) == "13\\u202f426"
    True
    """
    return f"{count:,}".replace(",", "\u202f")


def memory(size: int) -> str:
    """
    >>> memory(0), memory(512), memory(3 * 2**30)
    ('not measured', '512 B', '3.0 GiB')
    """
    if size <= 0:
        return MISSING
    if size < 1024:
        return f"{size} B"
    power = min(int(math.log2(size) // 10), 4)
    return f"{size / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def plural(count: int, noun: str, many: str = "") -> str:
    """
    >>> plural(1, "set-up"), plural(2, "set-up"), plural(2, "class", "classes")
    ('1 set-up', '2 set-ups', '2 classes')
    """
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def duration(seconds: float) -> str:
    """
    >>> duration(0.25), duration(8.44), duration(42.3), duration(120), duration(200), duration(3900)
    ('0.25 s', '8.4 s', '42 s', '2 min', '3 min 20 s', '1 h 5 min')
    """
    if seconds < 9.95:
        return f"{round(seconds, 2):.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return " ".join([*([f"{minutes} min"] if minutes else []), *([f"{rest} s"] if rest else [])])


def few(names: Sequence[str]) -> str:
    """The names, or the first six and how many more there are.

    >>> few("abc"), few("abcdefgh")
    ('a, b, c', 'a, b, c, d, e, f and 2 more')
    """
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


__all__ = ["DECIMALS", "MISSING", "duration", "few", "memory", "metric", "moved", "number", "plural", "thousands"]
