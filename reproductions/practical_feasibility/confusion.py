"""Table 1: our verdicts, by thresholds that were frozen before, against the paper's Yes and No.

    python -m reproductions.practical_feasibility.confusion [--out FOLDER]

Reads the full-size results of the parts ``small``, ``large`` and ``detection``; quick ones are left out. Feasible and partial verdicts are
told apart; against the paper's two words *feasible* counts as Yes, the other two as No, and a second count takes *partial* for Yes too.
Two entries are the paper's figures', not its table's: Swin-T with two images (Fig. 3) and the pre-activation detector (Fig. 5).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from leakgauge.audit.verdict import judge
from leakgauge.audit.wording import rule
from leakgauge.core import Assumption
from reproductions.practical_feasibility import detection, large, small
from reproductions.practical_feasibility.attacking import scores_of
from reproductions.practical_feasibility.freeze_thresholds import checks
from reproductions.practical_feasibility.ledger import Row, mean, read
from reproductions.practical_feasibility.setting import RESULTS

OUTCOMES = ("feasible", "partial", "infeasible_within_budget")
EXPECTED: Mapping[str, Mapping[str, str | None]] = {
    "small": {key: case.paper for key, case in small.CASES.items()},
    "large": {key: case.paper for key, case in large.CASES.items()},
    "detection": {key: case[3] for key, case in detection.CASES.items()},
}
"""What the paper says of each case."""


def measured(folder: Path, part: str) -> list[Row]:
    """Rows at full size; a quick run has none."""
    path = folder / f"{part}.jsonl"
    facts, rows = read(path) if path.is_file() else ({"quick": True}, [])
    return [] if facts["quick"] else rows


def verdicts(folder: Path) -> tuple[list[Row], str]:
    """One entry for each attacked case, and which thresholds were applied."""
    whole, glimpse, source = checks(folder / "thresholds.json")
    tables = {"to_reconstruct": whole, "to_glimpse": glimpse}
    found: list[Row] = []
    for part in EXPECTED:
        for row in (row for row in measured(folder, part) if "attack" in row):
            assumed = [Assumption(what, kind) for what, kind in row["assumptions"]]
            null, baseline = scores_of(row["null"]), scores_of(row["baseline"])
            seen = judge(scores_of(row["attack"]), null, baseline, assumed, **tables)
            best = judge(scores_of(row["oracle"]), null, baseline, assumed, **tables)
            found.append(
                {"part": part, "case": row["case"], "trained": row["trained"], "paper": row["paper"], "verdict": seen.outcome,
                 "oracle": best.outcome, "rule": rule(seen), "kind": seen.kind, "ssim": mean(row["attack"]["ssim"])}
            )  # fmt: skip
    return found, source


def not_judged(folder: Path) -> list[str]:
    """Cases on which the paper has a word and we have no verdict, and why."""
    found: list[str] = []
    for part, cases in EXPECTED.items():
        rows = {row["case"]: row for row in measured(folder, part)}
        for case in (case for case, word in cases.items() if word is not None):
            if case not in rows:
                found.append(f"{part}: {case} (not measured)")
            elif "refused" in rows[case]:
                found.append(f"{part}: {case} ({rows[case]['refused']})")
    return found


def confusion(found: list[Row], which: str) -> dict[tuple[str, str], int]:
    """How often each pair of the paper's word and our outcome occurs."""
    counts = {(word, outcome): 0 for word in ("Yes", "No") for outcome in OUTCOMES}
    for row in found:
        if row["paper"] is not None:
            counts[row["paper"], row[which]] += 1
    return counts


def table(folder: Path) -> str:
    found, source = verdicts(folder)
    if not any(row["paper"] for row in found):
        return "No attack on a case of Table 1 has been measured at full size yet."
    lines = [f"By {source}.", ""]
    for which, words in (("verdict", "the adversary's choice"), ("oracle", "the oracle's choice (an upper bound)")):
        counts = confusion(found, which)
        total = sum(counts.values())
        strict = counts["Yes", "feasible"] + sum(counts["No", o] for o in OUTCOMES[1:])
        wide = sum(counts["Yes", o] for o in OUTCOMES[:2]) + counts["No", OUTCOMES[2]]
        lines += [f"| {words}: paper says | feasible | partial | infeasible within budget |", "|---|---|---|---|"]
        lines += [f"| {word} | " + " | ".join(str(counts[word, o]) for o in OUTCOMES) + " |" for word in ("Yes", "No")]
        lines += ["", f"{strict} of {total} agree; {wide} of {total} if *partial* counts as Yes.", ""]
    lines += ["| case | paper | ours | oracle | SSIM | decided by |", "|---|---|---|---|---|---|"]
    for row in found:
        name = row["case"] + ("" if row["trained"] else " (untrained)")
        outcome = f"{in_words(row['verdict'])} ({row['kind']})"
        cells = (
            f"{row['part']}: {name}", row["paper"] or "", outcome, in_words(row["oracle"]), f"{row['ssim']:.3f}", row["rule"],
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    missing = not_judged(folder)
    if missing:
        lines += ["", f"**Without a verdict: {', '.join(missing)}.**"]
    return "\n".join(lines)


def in_words(outcome: str) -> str:
    return outcome.replace("_", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder with the results")
    print(table(parser.parse_args().out))


if __name__ == "__main__":
    main()
