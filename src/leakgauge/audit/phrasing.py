"""Counts and times as every page, table and line on the screen writes them."""

from __future__ import annotations


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


__all__ = ["duration", "plural"]
