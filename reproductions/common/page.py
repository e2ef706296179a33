"""Pages of the reproductions: one table of claims, judged in five words, and sections that are made from committed results."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reproductions.common.runner import Row
from reproductions.common.verdicts import Evidence, Word, judged


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says, what we measured, and what that is worth. ``note`` is the reason in a sentence or two, written by hand.

    ``confidence`` is in the verdict, not in the paper.
    """

    where: str
    paper: str
    ours: str
    evidence: Evidence
    confidence: Literal["high", "medium", "low"]
    note: str = ""

    @property
    def word(self) -> Word:
        return judged(self.evidence)


def claims_table(claims: Sequence[Claim]) -> str:
    """The table a page begins with, its counts, its notes, and the rules of the words."""
    notes = list(dict.fromkeys(claim.note for claim in claims if claim.note))
    rows = [
        [
            claim.where,
            claim.paper,
            f"**{claim.word}**",
            claim.confidence,
            claim.ours,
            str(notes.index(claim.note) + 1) if claim.note else "",
        ]
        for claim in claims
    ]
    counts = Counter(claim.word for claim in claims)
    said = ", ".join(f"{counts[word]} {word}" for word in Word if counts[word])
    parts = [
        table(["where", "the paper says", "verdict", "confidence", "we measured", "note"], rows),
        f"{len(claims)} claims: {said}.",
        "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1)),
        "The words: " + "; ".join(f"*{word}*: {word.rule}" for word in Word) + ".",
    ]
    return "\n\n".join(filter(None, parts))


def gates_table(checked: Sequence[tuple[str, str, Row]]) -> str:
    """For each part and gate: how many rows pass, and which do not, by unit and with the number that decided."""
    groups: dict[tuple[str, str], list[tuple[str, Row]]] = {}
    for part, unit, gate in checked:
        groups.setdefault((part, gate["gate"]), []).append((unit, gate))
    rows = []
    for (part, name), found in groups.items():
        failed = [f"{unit} ({gate['why']})" for unit, gate in found if not gate["passed"]]
        rows.append([part, name, f"{len(found) - len(failed)} of {len(found)}", "; ".join(failed) or "none"])
    return table(["part", "gate", "passed", "rows that fail"], rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def filled(text: str, sections: Mapping[str, str]) -> str:
    """The page with each ``<!-- NAME -->`` … ``<!-- end -->`` filled again; a section without its markers is an error."""
    for name, made in sections.items():
        head, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition("<!-- end -->")
        if not mark or not end:
            raise ValueError(f"the page has no section {name!r}")
        text = f"{head}{mark}{made.strip()}\n{end}{tail}"
    return text


def write(path: Path, sections: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Writes the page, or with ``--check`` says whether it is up to date by the exit code."""
    before = path.read_text(encoding="utf-8")
    made = filled(before, sections)
    if "--check" in arguments:
        print("up to date" if made == before else "not up to date", file=sys.stderr)
        return int(made != before)
    path.write_text(made, encoding="utf-8")
    return 0
