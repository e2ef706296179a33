"""Makes Markdown of docstrings for the documentation site: examples become code blocks, and roles such as ``:func:`` plain names.

Used by mkdocstrings as an extension of griffe (see mkdocs.yml); the docstrings in the code stay as they are.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):`[~.]?([^`]+)`")


def markdown(docstring: str) -> str:
    """``docstring`` with its roles as code and each paragraph that is an example, or has a formula's indent, as a block.

    >>> markdown("See :func:`share`.")
    'See `share`.'
    """
    parts = re.split(r"\n\s*\n", textwrap.dedent(docstring).strip("\n"))
    return "\n\n".join(_paragraph(part) for part in parts)


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.lstrip().startswith(">>>")), None)
    if first is not None:
        before = "\n".join(lines[:first])
        block = "```pycon\n" + textwrap.dedent("\n".join(lines[first:])) + "\n```"
        return f"{_paragraph(before)}\n\n{block}" if before else block
    if all(line.startswith("    ") for line in lines):
        return "```text\n" + textwrap.dedent(text) + "\n```"
    # a reference stands in a line of its own, without a blank line before it in some docstrings
    return ROLE.sub(r"`\1`", re.sub(r"(?<=\S)\n(?=Ref: )", "\n\n", text))


class Docstrings(griffe.Extension):
    """Rewrites each docstring as soon as griffe has read the object it belongs to."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
