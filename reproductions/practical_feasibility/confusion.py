"""Table 1: our verdicts, by thresholds that were frozen before, against the paper's Yes and No.

    python reproductions/practical_feasibility/confusion.py [--out FOLDER]

Reads the results of the parts ``small``, ``large`` and ``detection``. Feasible and partial verdicts are told apart; against the
paper's two words *feasible* counts as Yes, the other two as No, and a second count takes *partial* for Yes too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from attacking import scores_of
from freeze_thresholds import checks
from ledger import Row, mean, read
from setting import RESULTS

from leakgauge.audit.verdict import judge
from leakgauge.core import Assumption

PARTS = ("small", "large", "detection")
OUTCOMES = ("feasible", "partial", "infeasible_within_budget")


def verdicts(folder: Path) -> tuple[list[Row], str]:
    """One entry for each attacked case, and which thresholds were applied."""
    whole, glimpse, source = checks(folder / "thresholds.json")
    found: list[Row] = []
    for part in PARTS:
        path = folder / f"{part}.jsonl"
        for row in read(path)[1] if path.is_file() else []:
            if "attack" not in row:
                continue
            assumed = [Assumption(what, kind) for what, kind in row["assumptions"]]
            null, baseline = scores_of(row["null"]), scores_of(row["baseline"])
            tables = {"to_reconstruct": whole, "to_glimpse": glimpse}
            seen = judge(scores_of(row["attack"]), null, baseline, assumed, **tables)
            best = judge(scores_of(row["oracle"]), null, baseline, assumed, **tables)
            found.append(
                {"part": part, "case": row["case"], "trained": row["trained"], "paper": row["paper"], "verdict": seen.outcome,
                 "oracle": best.outcome, "rule": seen.rule, "kind": seen.kind, "ssim": mean(row["attack"]["ssim"])}
            )  # fmt: skip
    return found, source


def confusion(found: list[Row], which: str) -> dict[tuple[str, str], int]:
    """How often each pair of the paper's word and our outcome occurs."""
    counts = {(word, outcome): 0 for word in ("Yes", "No") for outcome in OUTCOMES}
    for row in found:
        if row["paper"] is not None:
            counts[row["paper"], row[which]] += 1
    return counts


def table(folder: Path) -> str:
    found, source = verdicts(folder)
    lines = [f"By {source}.", ""]
    for which, words in (("verdict", "the adversary's choice"), ("oracle", "the oracle's choice (an upper bound)")):
        counts = confusion(found, which)
        total = sum(counts.values())
        if not total:
            return "No attack on a case of Table 1 has been measured yet."
        strict = counts["Yes", "feasible"] + sum(counts["No", o] for o in OUTCOMES[1:])
        wide = sum(counts["Yes", o] for o in OUTCOMES[:2]) + counts["No", OUTCOMES[2]]
        lines += [f"| {words}: paper says | feasible | partial | infeasible within budget |", "|---|---|---|---|"]
        lines += [f"| {word} | " + " | ".join(str(counts[word, o]) for o in OUTCOMES) + " |" for word in ("Yes", "No")]
        lines += ["", f"{strict} of {total} agree; {wide} of {total} if *partial* counts as Yes.", ""]
    lines += ["| case | paper | ours | oracle | SSIM | decided by |", "|---|---|---|---|---|---|"]
    for row in found:
        name = row["case"] + ("" if row["trained"] else " (untrained)")
        outcome = f"{row['verdict']} ({row['kind']})"
        cells = (
            f"{row['part']}: {name}",
            row["paper"] or "",
            outcome,
            row["oracle"],
            f"{row['ssim']:.3f}",
            row["rule"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder with the results")
    print(table(parser.parse_args().out))


if __name__ == "__main__":
    main()
