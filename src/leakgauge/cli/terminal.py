"""Text from elsewhere (names of files and cases, sentences of records) on a terminal: shown, never obeyed."""

from __future__ import annotations

import unicodedata

from rich.markup import escape


def harmless(text: str) -> str:
    """Control characters as they are written in Python, so a name cannot clear the screen or set its title. Lines and tabs stay.

    >>> harmless("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else _written(c) for c in text)


def _written(character: str) -> str:
    return character.encode("unicode_escape", errors="surrogatepass").decode("ascii", errors="replace")


def shown(text: object) -> str:
    """Ready for a rich console: neither control characters nor markup of its own."""
    return escape(harmless(str(text)))


__all__ = ["harmless", "shown"]
