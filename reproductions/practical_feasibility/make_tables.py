"""Writes the tables of README.md anew from results/, so that the two cannot disagree.

    python reproductions/practical_feasibility/make_tables.py [--check]

A table stands between ``<!-- NAME -->`` and ``<!-- end -->``; a part without results says so.
"""

from __future__ import annotations

import argparse
import re
import sys
from importlib import import_module
from pathlib import Path

import confusion
from claims import CLAIMS, HEAD
from ledger import Row, read
from setting import RESULTS

README = Path(__file__).parent / "README.md"
BLOCK = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def measured(folder: Path, name: str) -> tuple[Row, list[Row], bool] | None:
    """Facts, cases, and whether the part ran to its end; None without results."""
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        return None
    facts, rows = read(path)
    cases = [row for row in rows if row["case"] != "end"]
    return facts, cases, len(cases) < len(rows)


def block(name: str, folder: Path) -> str:
    """What stands between the marks of one table."""
    if name == "claims":
        return summary(folder)
    if name == "confusion":
        return confusion.table(folder)
    found = measured(folder, name)
    if found is None:
        return "Not measured yet."
    facts, cases, complete = found
    words = f"Measured on {facts['device']}, torch {facts['torch']}, seed {facts['seed']}."
    if not complete:
        words += " **Stopped before its end; cases are missing.**"
    if facts["quick"]:
        words += " **A quick run: it shows that the script works, nothing else.**"
    table = import_module(name).table([row for row in cases if row["case"] != "image"])
    return f"{words}\n\n{table}"


def summary(folder: Path) -> str:
    """Every claim whose cases were measured at full size; the parts without are named."""
    lines, open_ones = list(HEAD), []
    for name, claims in CLAIMS.items():
        found = measured(folder, name)
        if found is None or found[0]["quick"]:
            open_ones.append(name)
        else:
            lines += [claim.line() for claim in claims(found[1])]
    if len(lines) == len(HEAD):
        return "No part has been measured at full size yet."
    return "\n".join([*lines, *(["", f"Not measured at full size yet: {', '.join(open_ones)}."] if open_ones else [])])


def written(text: str, folder: Path) -> str:
    return BLOCK.sub(lambda match: f"<!-- {match[1]} -->\n{block(match[1], folder)}\n<!-- end -->", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if a table is not that of the results"
    )
    given = parser.parse_args()
    before = README.read_text(encoding="utf-8")
    after = written(before, RESULTS)
    if given.check:
        sys.exit("README.md is not made from results/: run make_tables.py" if after != before else 0)
    README.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
