"""Writes the tables of README.md anew from results/run.jsonl, so that the two cannot disagree.

    python -m reproductions.golden_partition_zone.make_tables [--check] [--results RUN.jsonl] [--readme README.md]

A table stands between ``<!-- NAME -->`` and ``<!-- end -->``, a figure between ``<!-- figure NAME.svg -->`` and ``<!-- end -->``; what has
not been measured or drawn (``figures.py``) says so.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from reproductions.golden_partition_zone.claims import HEAD
from reproductions.golden_partition_zone.claims_of_data import CLAIMS
from reproductions.golden_partition_zone.figures import ALT
from reproductions.golden_partition_zone.leaks import Row
from reproductions.golden_partition_zone.lookup import RESULTS, read
from reproductions.golden_partition_zone.tables import TABLES, table

README = Path(__file__).parent / "README.md"
BLOCK = re.compile(r"<!-- ([\w. ]+) -->\n.*?<!-- end -->", re.DOTALL)


def summary(rows: list[Row]) -> str:
    """Every claim that can be judged; those that cannot yet are named."""
    judged = {name: claims(rows) for name, claims in CLAIMS.items()}
    missing = [name for name, claims in judged.items() if not claims]
    if len(missing) == len(judged):
        return "No claim has been measured at full size yet."
    lines = [*HEAD, *(claim.line() for claims in judged.values() for claim in claims)]
    return "\n".join([*lines, *(["", f"Not measured yet: {', '.join(missing)}."] if missing else [])])


def block(name: str, rows: list[Row]) -> str:
    """What stands between the marks of one table."""
    if name != "claims" and name not in TABLES:
        raise SystemExit(f"README.md asks for a table {name!r}, which is not one of claims, {', '.join(TABLES)}")
    text = summary(rows) if name == "claims" else table(name, rows)
    if any(row.get("quick") for row in rows):
        text = f"**A quick try: it shows that the scripts work, nothing else.**\n\n{text}"
    return text


def figure(name: str, folder: Path) -> str:
    return f"![{ALT[name]}](results/{name})" if (folder / "results" / name).is_file() else "Not drawn yet."


def written(text: str, rows: list[Row], folder: Path) -> str:
    """The page with every table and figure made anew; ``folder`` is that of the page."""

    def made(match: re.Match[str]) -> str:
        kind, _, name = match[1].partition(" ")
        inner = figure(name, folder) if kind == "figure" else block(kind, rows)
        return f"<!-- {match[1]} -->\n{inner}\n<!-- end -->"

    return BLOCK.sub(made, text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if a table is not that of the results"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--readme", type=Path, default=README)
    given = parser.parse_args(arguments)
    before = given.readme.read_text(encoding="utf-8")
    after = written(before, read(given.results), given.readme.parent)
    if given.check:
        sys.exit("README.md is not made from results/run.jsonl: run make_tables.py" if after != before else 0)
    given.readme.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
