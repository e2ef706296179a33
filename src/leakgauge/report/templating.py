"""Where the report's templates lie and how they are filled in: escaped, and with no name left undefined."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

_HERE = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["breakable"] = _breakable
    return made


def page_time(made: datetime | None) -> str:
    """The time to print on a page (default: now)."""
    return (made or datetime.now(UTC)).astimezone(UTC).strftime("%d %B %Y, %H:%M UTC")


@cache
def script(name: str) -> tuple[Markup, str]:
    """A script of ours to stand inside a page, and its digest for the content security policy, which lets no other run."""
    text = (_HERE / name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"sha256-{digest}"


def _breakable(text: object) -> Markup:
    """Escaped text that may break after ``_``, ``(`` and ``=`` in a word: a long identifier must not widen a column."""
    return Markup(re.sub(r"(?<=\w)([_(=])(?=[^\s)])", r"\1<wbr>", str(escape(text))))
