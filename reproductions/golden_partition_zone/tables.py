"""Prints what the paper reports beside what ``run.py`` measured, as markdown.

    python reproductions/golden_partition_zone/tables.py [RESULTS.jsonl]

Errors are in the paper's unit, summed over channels. Several seeds are shown as mean and range. A line without a
measurement says so; nothing is filled in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from leaks import Ledger, Row

RESULTS = Path(__file__).parent / "results" / "run.jsonl"
PAPERS_DECODER = "deconvolution, paper"

ACCURACY = {
    ("ir152", "one-hot"): 0.9059, ("ir152", "LS+"): 0.9076, ("ir152", "LS-"): 0.9049,
    ("vgg19", "one-hot"): 0.9150, ("vgg19", "LS+"): 0.9185,
    ("vit", "one-hot"): 0.7865, ("vit", "LS+"): 0.7926,
}  # fmt: skip
"""Table 2."""

VGG19_MSE = {30: 0.066493, 39: 0.136896}
"""Section 4.2; the other blocks of Fig. 5 are only drawn."""

PREDICTIONS = {"Normal": 0.169263, "LS+": 0.163499, "LS-": 0.169522, "Log": 0.162863, "Power": 0.163184}
"""Table 3, test set."""

ENHANCEMENTS = {
    (50, "baseline"): 0.057010, (50, "FFT (residual)"): 0.112854, (50, "FFT (concat)"): 0.068011,
    (50, "Normalize (input)"): 0.056266, (50, "Normalize (residual)"): 0.056317, (50, "Normalize (concat)"): 0.055434,
    (50, "NN without dropout (residual)"): 0.061043, (50, "NN with dropout (residual)"): 0.055617,
    (50, "NN without dropout (concat)"): 0.057163, (50, "NN with dropout (concat)"): 0.051740,
    (50, "Normalize (input) & NN without dropout"): 0.055669, (50, "Normalize (input) & NN with dropout"): 0.051937,
    (40, "baseline"): 0.018245, (40, "Normalize (input) & NN with dropout"): 0.014026,
}  # fmt: skip
"""Table 4, test set."""

ATTENTION = {
    (50, "baseline"): 0.057010, (50, "MHA"): 0.052159, (50, "AttentionAsConv"): 0.053299,
    (50, "AttentionAsConv+SE"): 0.051737, (50, "AttentionAsConv+SE+LSK+MSCA"): 0.050579,
    (50, "Attention & NN with dropout"): 0.049272, (50, "Inversion-IR152"): 0.051795,
    (40, "baseline"): 0.018245, (40, "Attention & NN with dropout"): 0.011905,
}  # fmt: skip
"""Table 5, test set."""


@dataclass(frozen=True)
class Line:
    what: str
    paper: float
    ours: list[float]

    def __str__(self) -> str:
        if not self.ours:
            return f"| {self.what} | {self.paper:.4g} | not measured | |"
        spread = f" ({min(self.ours):.4g} to {max(self.ours):.4g})" if len(self.ours) > 1 else ""
        return f"| {self.what} | {self.paper:.4g} | {mean(self.ours):.4g}{spread} | {mean(self.ours) / self.paper - 1:+.0%} |"


def chosen(rows: list[Row], column: str, **wanted: object) -> list[float]:
    return [row[column] for row in rows if column in row and all(row.get(k) == v for k, v in wanted.items())]


def accuracy_lines(rows: list[Row]) -> Iterator[Line]:
    targets = [row for row in rows if row["key"].startswith("target/") and row["data"] == "cifar10"]
    for (network, labels), paper in ACCURACY.items():
        yield Line(
            f"accuracy of {network}, {labels}", paper, chosen(targets, "accuracy", network=network, labels=labels)
        )


def error_lines(rows: list[Row]) -> Iterator[Line]:
    for block, paper in VGG19_MSE.items():
        found = chosen(
            rows, "test_mse_paper", part="vgg19-curve", labels="one-hot", block=block, decoder=PAPERS_DECODER
        )
        yield Line(f"VGG19 block {block}", paper, found)
    for name, paper in PREDICTIONS.items():
        yield Line(f"Table 3, {name}", paper, chosen(rows, "test_mse_paper", part="predictions", decoder=name))
    for table, part, numbers in ((4, "enhancements", ENHANCEMENTS), (5, "attention", ATTENTION)):
        for (block, name), paper in numbers.items():
            found = chosen(rows, "test_mse_paper", part=part, block=block, decoder=name)
            yield Line(f"Table {table}, block {block}, {name}", paper, found)


def claim_lines(rows: list[Row]) -> Iterator[Line]:
    """The two numbers of the abstract, as the paper's own tables yield them.

    "Over 4×": mean error of VGG19's blocks from 39 on over that of its blocks up to 26. "66 %": 1 − the gain in dB by all
    enhancements at block 50 over the gain at block 40; a ratio of two gains, no resistance.
    """
    curve = [r for r in rows if r.get("part") == "vgg19-curve" and r.get("labels") == "one-hot"]
    ratios: list[float] = []
    for seed in sorted({row["seed"] for row in curve}):
        own = [r for r in curve if r["seed"] == seed and r.get("decoder") == PAPERS_DECODER and "test_mse" in r]
        deep, shallow = (
            [r["test_mse"] for r in own if keep(r["block"])] for keep in (lambda b: b >= 39, lambda b: b <= 26)
        )
        if deep and shallow:
            ratios.append(mean(deep) / mean(shallow))
    yield Line("claim: error of deep over shallow blocks", 4.0, ratios)
    gains: list[float] = []
    for block in (50, 40):
        quality = [
            chosen(rows, "test_psnr_batches", part="attention", block=block, decoder=name)
            for name in ("baseline", "Attention & NN with dropout")
        ]
        if all(quality):
            gains.append(quality[1][0] - quality[0][0])
    yield Line("claim: weaker gain at the decision level", 0.66, [1 - gains[0] / gains[1]] if len(gains) == 2 else [])


def zone_lines(rows: list[Row]) -> Iterator[str]:
    """The search of the zone against decoders at every cut, from one run; seconds of the GPU, ridge included."""
    compared = [row for row in rows if row["key"].startswith("zone/compared/")]
    if compared:
        yield "\n| threshold | every cut, 100 epochs | find_zone | bisection by depth |\n|---|---|---|---|"
    for row in sorted(compared, key=lambda row: row["threshold"]):
        ways = [f"`{row['exhaustive']['cut']}`, {row['exhaustive']['seconds']:.0f} s"]
        for name in ("find_zone", "bisection"):
            way = row[name]
            ways.append(f"`{way['cut']}`, {way['seconds']:.0f} s, {way['epochs']} epochs ({way['ratio']:.1f}×)")
        yield f"| {row['threshold']:g} | {' | '.join(ways)} |"


def class_lines(rows: list[Row]) -> Iterator[str]:
    """FVU and R_c² per dimension by the number of classes; several seeds as their mean."""
    found = [row for row in rows if row.get("part") == "classes" and "fvu" in row]
    sets = sorted({row["data"] for row in found}, key=lambda name: int(name.split(", ")[1].split()[0]))
    blocks = sorted({row["block"] for row in found})
    if found:
        yield "\n| block | " + " | ".join(f"{name.split(', ')[1]}: FVU, R_c²/D" for name in sets) + " |"
        yield "|---" * (1 + len(sets)) + "|"
    for block in blocks:
        cells = [
            f"{mean(chosen(found, 'fvu', data=name, block=block)):.3f}, "
            f"{mean(chosen(found, 'radius_per_dimension', data=name, block=block)):.3g}"
            for name in sets
            if chosen(found, "fvu", data=name, block=block)
        ]
        yield f"| {block} | {' | '.join(cells)} |"


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    if not file.is_file():
        raise SystemExit(f"{file} is not there; run.py writes it")
    rows = list(Ledger(file).done.values())
    print("| what | paper | ours | gap |\n|---|---|---|---|")
    for lines in (accuracy_lines, error_lines, claim_lines):
        for line in lines(rows):
            print(line)
    for lines in (zone_lines, class_lines):
        print(*lines(rows), sep="\n")


if __name__ == "__main__":
    main()
