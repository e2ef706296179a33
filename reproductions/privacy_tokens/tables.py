"""Writes the tables of README.md from the lines under results/: paper | ours | gap, with the controls beside it.

python reproductions/privacy_tokens/tables.py [--check]   (with --check nothing is written; exit code 1 if it is not up to date)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE, RESULTS = HERE / "README.md", HERE / "results"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"

PUBLISHED: dict[str, dict[int, tuple[float, float, float, float]]] = {
    "lenet": {
        0: (0.1039, 0.03288, 0.01588, 0.030866),
        1: (0.1793, 0.98077, 1.56315, 0.039146),
        5: (0.2613, 2.18896, 2.70519, 0.059506),
        8: (0.2970, 2.59941, 3.09143, 0.042847),
        60: (0.4745, 4.15026, 4.30479, 0.057305),
        100: (0.5124, 3.88313, 3.97720, 0.075161),
        200: (0.5706, 3.30983, 3.55665, 0.153886),
    },
    "alexnet": {
        0: (0.1000, -0.00109, -0.00197, 0.026696),
        5: (0.2145, 2.81713, 2.84957, 0.058184),
        15: (0.3055, 3.01831, 2.97529, 0.102552),
        30: (0.3671, 2.90797, 2.64001, 0.054689),
        50: (0.4351, 2.73608, 2.31924, 0.135055),
        120: (0.5321, 1.85140, 1.40926, 0.132451),
        200: (0.5742, 1.42161, 1.15953, 0.138820),
    },
    "cnn": {
        0: (0.6405, 0.00033, -0.00633, 0.000584),
        1: (0.6885, 0.27901, 1.20039, 0.000719),
        5: (0.7323, 0.67145, 3.04729, 0.000981),
        10: (0.7594, 1.29205, 4.44203, 0.003755),
        20: (0.8646, 1.66154, 6.18565, 0.008027),
        50: (0.9042, 1.69969, 5.76775, 0.011614),
        100: (0.9417, 1.39744, 5.63270, 0.011776),
    },
    "mlp": {
        0: (0.3615, 0.000583, 0.00133, 0.000052),
        1: (0.6781, 0.67829, 0.41561, 0.000071),
        5: (0.7615, 1.80015, 1.39898, 0.000240),
        10: (0.7927, 2.27453, 1.78570, 0.000624),
        20: (0.8708, 2.0571, 1.90173, 0.001258),
        50: (0.9146, 1.37297, 1.72956, 0.021301),
        100: (0.9281, 1.2793, 1.70819, 0.021320),
    },
}
"""Table 1 of the paper: test accuracy, gap with the autoencoder token, gap with the transformer token, MSE of its attack."""


def lines() -> list[dict[str, Any]]:
    files = sorted(RESULTS.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def shown(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _gaps(model: str, token: str, reading: str, rows: list[dict[str, Any]]) -> str:
    head = (
        f"### {model}, {token} token, critic trained: {reading}\n\n"
        "| sub-epoch | accuracy (paper / ours) | gap, paper | gap, ours (frozen weights) | difference | held out | "
        "collected pairs | decoy | null |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    out = []
    for row in rows:
        published = PUBLISHED.get(model, {}).get(row["sub_epoch"])
        said = None if published is None else published[1 if token == "autoencoder" else 2]
        accuracy = f"{'' if published is None else f'{published[0]:.0%}'} / {row['accuracy']:.0%}"
        cells = [str(row["sub_epoch"]), accuracy, shown(said), shown(row["gap"])]
        cells += [shown(None if said is None else row["gap"] - said)]
        cells += [shown(row[column]) for column in ("held_out", "collected", "decoy", "null")]
        out.append("| " + " | ".join(cells) + " |")
    return head + "\n".join(out) + "\n"


def _attacks(model: str, rows: list[dict[str, Any]]) -> str:
    head = (
        f"### {model}: what attacks do at the same checkpoints\n\n"
        "| sub-epoch | InfoNCE, nats [95 %] | of at most | MSE, paper | MSE, ours | PSNR, ours | SSIM, ours | "
        "the same with data range 255 | targets |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    out = []
    for row in rows:
        published = PUBLISHED.get(model, {}).get(row["sub_epoch"])
        count = len(row["psnr"])
        cells = [
            str(row["sub_epoch"]),
            f"{row['infonce_nats']:.2f} [{row['infonce_low']:.2f}, {row['infonce_high']:.2f}]",
            f"{row['infonce_ceiling']:.2f}",
            shown(None if published is None else published[3], 4),
            shown(row["mean_mse"], 4),
            f"{row['mean_psnr']:.1f} dB",
            shown(sum(row["ssim"]) / count),
            shown(sum(row["ssim_data_range_255"]) / count, 4),
            str(count),
        ]
        out.append("| " + " | ".join(cells) + " |")
    return head + "\n".join(out) + "\n"


def _correlations(model: str, row: dict[str, Any]) -> str:
    head = (
        f"### {model}: rank correlation with the attack's quality (−MSE) over checkpoints\n\n"
        "| measure | ρ, mean of all targets | ρ, first target alone | checkpoints |\n|---|---|---|---|\n"
    )
    out = [
        f"| {name} | {shown(found['rho'], 2) or 'none'} | {shown(found['rho_first_target'], 2) or 'none'} | {found['checkpoints']} |"
        for name, found in row.items()
        if isinstance(found, dict)
    ]
    return head + "\n".join(out) + "\n"


def tables() -> str:
    """All tables, in the order of models; of each the gaps, the attacks and the correlations."""
    every = lines()
    parts: list[str] = []
    for model in dict.fromkeys(row["model"] for row in every):
        mine = [row for row in every if row["model"] == model]
        for token, reading in dict.fromkeys((r["token"], r["reading"]) for r in mine if r["kind"] == "paper"):
            rows = [r for r in mine if r["kind"] == "paper" and (r["token"], r["reading"]) == (token, reading)]
            parts.append(_gaps(model, token, reading, rows))
            (cost,) = [r for r in mine if r["kind"] == "cost" and (r["token"], r["reading"]) == (token, reading)]
            parts.append(
                f"{cost['critic_steps']} critic steps, {cost['critic_parameters'] / 1e6:.1f} million critic parameters, "
                f"{cost['stored'] / 1e6:.0f} MB of stored pairs. "
                + " ".join(f"Note: {note}." for note in cost["notes"])
                + "\n"
            )
        parts.append(_attacks(model, [r for r in mine if r["kind"] == "attack"]))
        parts += [_correlations(model, r) for r in mine if r["kind"] == "correlation"]
    missing = [model for model in PUBLISHED if model not in {row["model"] for row in every}]
    if missing:
        parts.append(f"Not yet run in full: {', '.join(missing)}.\n")
    return "\n".join(parts)


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


def main(arguments: list[str]) -> int:
    made = page()
    if "--check" in arguments:
        same = PAGE.read_text(encoding="utf-8") == made
        print("README.md: up to date" if same else "README.md is not up to date; run tables.py")
        return 0 if same else 1
    PAGE.write_text(made, encoding="utf-8")
    print("written: README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
