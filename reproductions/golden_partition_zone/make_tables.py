"""Writes README.md from the results.

python -m reproductions.golden_partition_zone.make_tables [--check]   (with --check nothing is written; exit code 1 if it is not up to date)
"""

from __future__ import annotations

import sys
from pathlib import Path

from reproductions.common import page
from reproductions.golden_partition_zone.claims import claims
from reproductions.golden_partition_zone.results_rows import all_rows
from reproductions.golden_partition_zone.tables import TABLES, gates_section, table

PAGE = Path(__file__).parent / "README.md"


def sections() -> dict[str, str]:
    rows = all_rows()
    assert not any(row.get("quick") for row in rows), "the results hold a quick run"
    made = {"claims": page.claims_table(claims(rows)), "gates": gates_section(rows)}
    return {**made, **{name: table(name, rows) for name in TABLES}}


if __name__ == "__main__":
    sys.exit(page.write(PAGE, sections(), sys.argv[1:]))
