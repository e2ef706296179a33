"""Text from elsewhere (names of files and cases, sentences of records) on a terminal: shown, never obeyed."""

from __future__ import annotations

import typer
from rich.markup import escape

from leakgauge.errors import harmless


def complain(sentence: str) -> None:
    """Says on stderr what went wrong. Control characters, which a file name may hold, are shown and not obeyed."""
    typer.echo(f"leakgauge: {harmless(sentence)}", err=True)


def shown(text: object) -> str:
    """Ready for a rich console: neither control characters nor markup of its own."""
    return escape(harmless(str(text)))


__all__ = ["complain", "shown"]
