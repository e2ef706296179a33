"""Table 1: our verdicts, by thresholds that were frozen before, against the paper's Yes and No.

    python -m reproductions.practical_feasibility.confusion [--out FOLDER]

Reads the full-size results of the parts ``small``, ``large`` and ``detection``; quick ones are left out. Feasible and partial verdicts are
told apart; against the paper's two words *feasible* counts as Yes, the other two as No, and a second count takes *partial* for Yes too.
Two entries are the paper's figures', not its table's: Swin-T with two images (Fig. 3) and the pre-activation detector (Fig. 5).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from leakgauge.audit.verdict import judge
from leakgauge.audit.wording import rule
from leakgauge.core import Assumption
from reproductions.common.runner import Row, read
from reproductions.practical_feasibility import detection, large, small
from reproductions.practical_feasibility.attacking import scores_of
from reproductions.practical_feasibility.freeze_thresholds import checks
from reproductions.practical_feasibility.setting import RESULTS

OUTCOMES = ("feasible", "partial", "inconclusive")
EXPECTED: Mapping[str, Mapping[str, str | None]] = {
    "small": {key: case.paper for key, case in small.CASES.items()},
    "large": {key: case.paper for key, case in large.CASES.items()},
    "detection": {key: case[3] for key, case in detection.CASES.items()},
}
"""What the paper says of each case."""


def measured(folder: Path, part: str) -> list[Row]:
    """Rows at full size; a quick run has none."""
    path = folder / f"{part}.jsonl"
    return [row for row in read(path) if not row["quick"]] if path.is_file() else []


def verdicts(folder: Path) -> tuple[list[Row], str]:
    """One entry for each attacked case, and which thresholds were applied."""
    whole, glimpse, source = checks(folder / "thresholds.json")
    judged = partial(judge, to_reconstruct=whole, to_glimpse=glimpse)
    found: list[Row] = []
    for part in EXPECTED:
        for row in (row for row in measured(folder, part) if "attack" in row):
            assumed = [Assumption(what, kind) for what, kind in row["assumptions"]]
            null, baseline = scores_of(row["null"]), scores_of(row["baseline"])
            seen = judged(scores_of(row["attack"]), null, baseline, assumed)
            best = judged(scores_of(row["oracle"]), null, baseline, assumed)
            found.append(
                {"part": part, "case": row["unit"], "trained": row["trained"], "paper": row["paper"], "verdict": seen.outcome,
                 "oracle": best.outcome, "rule": rule(seen), "kind": seen.kind, "ssim": mean(row["attack"]["ssim"])}
            )  # fmt: skip
    return found, source


def confusion(found: list[Row], which: str) -> dict[tuple[str, str], int]:
    """How often each pair of the paper's word and our outcome occurs."""
    counts = {(word, outcome): 0 for word in ("Yes", "No") for outcome in OUTCOMES}
    for row in found:
        if row["paper"] is not None:
            counts[row["paper"], row[which]] += 1
    return counts


def kappa(counts: Mapping[tuple[str, str], int], yes: Sequence[str]) -> float:
    """Cohen's κ of the paper's Yes and our outcomes in ``yes``: agreement beyond what equal margins give by chance."""
    total = sum(counts.values())
    ours = sum(counts[word, outcome] for word in ("Yes", "No") for outcome in yes) / total
    theirs = sum(counts["Yes", outcome] for outcome in OUTCOMES) / total
    agree = _agreement(counts, yes) / total
    chance = ours * theirs + (1 - ours) * (1 - theirs)
    return (agree - chance) / (1 - chance) if chance < 1 else 0.0


def _agreement(counts: Mapping[tuple[str, str], int], yes: Sequence[str]) -> int:
    return sum(count for (word, outcome), count in counts.items() if (word == "Yes") == (outcome in yes))


def table(folder: Path) -> str:
    """The paper's word against ours, with what always answering No would score."""
    found, source = verdicts(folder)
    lines: list[str] = []
    for which, words in (("verdict", "the adversary's choice"), ("oracle", "the oracle's choice (an upper bound)")):
        counts = confusion(found, which)
        total, never = sum(counts.values()), sum(counts["No", outcome] for outcome in OUTCOMES)
        lines += [f"| {words}: paper says | feasible | partial | nothing found |", "|---|---|---|---|"]
        lines += [f"| {word} | " + " | ".join(str(counts[word, o]) for o in OUTCOMES) + " |" for word in ("Yes", "No")]
        strict, wide = (
            f"{_agreement(counts, yes)} of {total} agree (κ = {kappa(counts, yes):.2f})"
            for yes in (OUTCOMES[:1], OUTCOMES[:2])
        )
        lines += [
            "",
            f"{strict}; if *partial* counts as Yes, {wide}. Always answering No would agree in {never} of {total} (κ = 0).",
            "",
        ]
    return f"By {source}.\n\n" + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder with the results")
    print(table(parser.parse_args().out))


if __name__ == "__main__":
    main()
