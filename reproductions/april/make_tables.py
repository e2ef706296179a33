"""Writes README.md from the rows under results/.

python -m reproductions.april.make_tables [--check]   (with --check nothing is written; exit code 1 if it is not up to date)
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from reproductions.april import study
from reproductions.april.claims import claims, gate_rows
from reproductions.common import page
from reproductions.common.runner import measured_on, read

PAGE = Path(__file__).parent / "README.md"


def of_study(name: str) -> str:
    path, script = study.RESULTS / f"{name}.jsonl", name.removesuffix(study.UNSCALED)
    return f"{measured_on(path)}\n\n{import_module(f'reproductions.april.{script}').table(read(path))}"


def sections() -> dict[str, str]:
    names = re.findall(r"<!-- (\w+) -->", PAGE.read_text(encoding="utf-8"))
    made = {name: of_study(name) for name in names if name not in ("claims", "gates", "end")}
    made["gates"] = page.gates_table(gate_rows(study.RESULTS))
    return made | {"claims": page.claims_table(claims(study.RESULTS))}


if __name__ == "__main__":
    sys.exit(page.write(PAGE, sections(), sys.argv[1:]))
