"""Writes the tables of README.md anew from results/, so that the two cannot disagree.

    python -m reproductions.practical_feasibility.make_tables [--check]

A table stands between ``<!-- NAME -->`` and ``<!-- end -->``; a part without results says so.
"""

from __future__ import annotations

import argparse
import re
import sys
from importlib import import_module
from pathlib import Path

from reproductions.practical_feasibility import claims, confusion
from reproductions.practical_feasibility.freeze_thresholds import checks
from reproductions.practical_feasibility.ledger import Row, read
from reproductions.practical_feasibility.reasons import Beside
from reproductions.practical_feasibility.setting import RESULTS

README = Path(__file__).parent / "README.md"
FIGURES = {
    "freeze_thresholds": {
        "freeze_thresholds.svg": "Share of reconstructions above a threshold of SSIM, recognised and not"
    },
    "freeze_layout": {"freeze_layout.svg": "Share of wrong and of true images above a correlation of layouts"},
    "accuracy": {"accuracy.svg": "Accuracy of ViT-B by patch size"},
    "small": {"small.png": "Original, adversary's choice, oracle's choice and null run of every network at 32×32"},
    "large": {"large.png": "Original, adversary's choice, oracle's choice and null run at 224×224"},
    "shared_statistics": {"shared_statistics.png": "The batch of 16 and its reconstructions, paired"},
    "controlled": {
        "controlled.svg": "SSIM of start, null run, attack and paper by the share of replaced pixels",
        "controlled.png": "Where the search starts, what total variation alone makes of it, and what the attack does",
    },
    "detection": {"detection.png": "Original, adversary's choice, oracle's choice and null run of the detectors"},
}
"""Figures of each part, shown where they are there; and what they show."""
BLOCK = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def measured(folder: Path, name: str) -> tuple[Row, list[Row], bool] | None:
    """Facts, cases, and whether the part ran to its end; None where no case was measured."""
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        return None
    facts, rows = read(path)
    cases = [row for row in rows if row["case"] != "end"]
    if not cases:
        return None
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
    part = import_module(f"reproductions.practical_feasibility.{name}")
    words = f"Measured on {facts['device']}, torch {facts['torch']}, seed {facts['seed']}."
    if facts["quick"]:
        words += " **A quick run: it shows that the script works, nothing else.**"
    elif not complete:
        missing = [case for case in part.PLAN if case not in {row["case"] for row in cases}]
        words += f" **Not measured: {', '.join(missing)}.**"
    table = part.table([row for row in cases if row["case"] != "image"])
    shown = [f"![{alt}](results/{file})" for file, alt in FIGURES[name].items() if (folder / file).is_file()]
    return "\n\n".join([words, table, *shown])


def summary(folder: Path) -> str:
    """Every claim, decided from full-size results alone; what they lack is named."""
    parts: dict[str, list[Row] | None] = {}
    for name in dict.fromkeys(claim.part for claim in claims.CLAIMS):
        found = measured(folder, name)
        parts[name] = None if found is None or found[0]["quick"] else found[1]
    if not any(parts.values()):
        return "No part has been measured at full size yet."
    accuracies = {row["case"]: row["accuracy"] for row in parts["accuracy"] or [] if "accuracy" in row}
    return "\n".join(claims.lines(parts, Beside(accuracies, checks(folder / "thresholds.json")[0])))


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
