"""Sentences from a text file: one a line, with or without a label before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from leakgauge.errors import BadInput

SUFFIXES = (".txt", ".tsv")
DIGITS = 18
"""Labels of so many digits fit into 64 bits."""


@dataclass(frozen=True)
class Sentences:
    """``labels`` is None where the file has none."""

    texts: tuple[str, ...]
    labels: tuple[int, ...] | None = None


def is_text_file(data: str) -> bool:
    """Whether data named like this is text.

    >>> is_text_file("reviews.txt"), is_text_file("photos/")
    (True, False)
    """
    return Path(data).suffix.lower() in SUFFIXES


def read_sentences(path: str | Path) -> Sentences:
    """One sentence a line, empty lines left out. If every line is a whole number, a tab and text, the numbers are labels."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # a byte-order mark is no part of the first label
    except FileNotFoundError as error:
        raise BadInput(f"there is no text file {path}") from error
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise BadInput(f"{path} is no text in UTF-8; give a file with one sentence a line") from error
    lines = [line.strip("\r") for line in text.split("\n") if line.strip()]
    if not lines:
        raise BadInput(f"{path} holds no sentence; write one a line")
    pairs = [line.partition("\t") for line in lines]
    if all(tab and label.strip().isdecimal() and sentence.strip() for label, tab, sentence in pairs):
        longest = max((label.strip() for label, _, _ in pairs), key=len)
        if len(longest) > DIGITS:
            raise BadInput(f"{path} has a label of {len(longest)} digits; give labels of at most {DIGITS}")
        return Sentences(
            tuple(sentence.strip() for _, _, sentence in pairs), tuple(int(label) for label, _, _ in pairs)
        )
    return Sentences(tuple(line.strip() for line in lines))
