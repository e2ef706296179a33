"""Suggestions for a name the user mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """The ``most`` names closest to ``word``, worded for an error message; a few of all names if none is close.

    >>> nearest("haed", ["head", "norms"])
    'did you mean head?'
    >>> nearest("zzz", ["head", "norms"])
    'known: head, norms'
    >>> nearest("zzz", [])
    'there is none'
    """
    names = list(dict.fromkeys(known))
    if not names:
        return "there is none"
    close = difflib.get_close_matches(word, names, n=most)
    if close:
        return f"did you mean {' or '.join(close)}?"
    shown = 8
    return f"known: {', '.join(names[:shown])}{', …' if len(names) > shown else ''}"
