"""Writes README.md from the rows under results/.

python -m reproductions.april.make_tables [--check]   (with --check nothing is written; exit code 1 if it is not up to date)
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from reproductions.april import study
from reproductions.april.claims import claims
from reproductions.common import page

PAGE = Path(__file__).parent / "README.md"


def of_study(name: str) -> str:
    facts, rows = study.read(study.RESULTS / f"{name}.jsonl")
    words = f"Measured on {facts['device']}, torch {facts['torch']}, seed {facts['seed']}, {facts['seconds']:.0f} s."
    if not facts["complete"]:
        words += " **Stopped before its end; rows are missing.**"
    return f"{words}\n\n{import_module(f'reproductions.april.{name}').table(rows)}"


def sections() -> dict[str, str]:
    names = re.findall(r"<!-- (\w+) -->", PAGE.read_text(encoding="utf-8"))
    made = {name: of_study(name) for name in names if name not in ("claims", "end")}
    return made | {"claims": page.claims_table(claims(study.RESULTS))}


if __name__ == "__main__":
    sys.exit(page.write(PAGE, sections(), sys.argv[1:]))
