"""Writes the tables of README.md anew from results/*.jsonl, so that the two cannot disagree.

    python -m reproductions.april.make_tables [--check] [--results FOLDER --page FILE]

A table stands between ``<!-- NAME -->`` and ``<!-- end -->``; a study without results says so.
"""

from __future__ import annotations

import argparse
import re
import sys
from importlib import import_module
from pathlib import Path

from reproductions.april import study
from reproductions.april.claims import CLAIMS, HEAD, told

README = Path(__file__).parent / "README.md"
BLOCK = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def block(name: str) -> str:
    """The table of one study between its marks."""
    if name == "claims":
        return f"<!-- claims -->\n{summary()}\n<!-- end -->"
    path = study.RESULTS / f"{name}.jsonl"
    if not path.is_file():
        return f"<!-- {name} -->\nNot measured yet.\n<!-- end -->"
    facts, rows = study.read(path)
    words = f"Measured on {facts['device']}, torch {facts['torch']}, seed {facts['seed']}, {facts['seconds']:.0f} s."
    if not facts["complete"]:
        words += " **Stopped before its end; rows are missing.**"
    if facts["quick"]:
        words += " **A quick run: it shows that the script works, nothing else.**"
    table = import_module(f"reproductions.april.{name}").table(rows)
    return f"<!-- {name} -->\n{words}\n\n{table}\n<!-- end -->"


def summary() -> str:
    """Every claim whose study has been measured at full size as far as it tells about it; the others are named."""
    lines, open_ones = list(HEAD), []
    for name, claims in CLAIMS.items():
        path = study.RESULTS / f"{name}.jsonl"
        facts, rows = study.read(path) if path.is_file() else ({"quick": True}, [])
        if facts["quick"] or not told(name, facts, rows):
            open_ones.append(name)
        else:
            lines += [claim.line() for claim in claims(rows)]
    if open_ones:
        lines += ["", f"Not measured at full size yet: {', '.join(open_ones)}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if a table is not that of the results"
    )
    parser.add_argument("--results", type=Path, default=study.RESULTS, help="make the tables from these results")
    parser.add_argument("--page", type=Path, default=README, help="write them into this file, which has the marks")
    given = parser.parse_args()
    study.RESULTS = given.results
    before = given.page.read_text(encoding="utf-8")
    after = BLOCK.sub(lambda match: block(match[1]), before)
    if given.check:
        sys.exit("README.md is not made from results/: run make_tables.py" if after != before else 0)
    given.page.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
