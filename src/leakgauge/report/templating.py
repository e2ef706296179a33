"""Where the report's templates lie and how they are filled in: escaped, and with no name left undefined."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape


@cache
def environment() -> Environment:
    here = Path(__file__).parent / "templates"
    made = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["breakable"] = _breakable
    return made


def _breakable(text: object) -> Markup:
    """Escaped text that may break after ``_``, ``(`` and ``=`` in a word: a long identifier must not widen a column."""
    return Markup(re.sub(r"(?<=\w)([_(=])(?=[^\s)])", r"\1<wbr>", str(escape(text))))
