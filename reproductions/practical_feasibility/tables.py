"""Writes README.md from the rows under results/, and draws the figures of the control where its pictures are there.

python -m reproductions.practical_feasibility.tables [--check | --draw]
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np

from reproductions.common import page
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.runner import measured_on, read, read_pictures
from reproductions.practical_feasibility import confusion
from reproductions.practical_feasibility.claims import claims, finals, gate_rows, mean
from reproductions.practical_feasibility.setting import RESULTS

PAGE = Path(__file__).parent / "README.md"
PARTS = ("freeze_thresholds", "freeze_layout", "accuracy", "small", "large", "shared_statistics", "detection")


def control() -> str:
    rows = read(RESULTS / "control.jsonl")
    heads = [
        "network",
        "setting, chosen on other images",
        "trials",
        "steps",
        "restarts",
        "PSNR of 8 images",
        "mean",
        "SSIM",
    ]
    lines = [
        [
            case,
            row["setting"],
            str(sum(r.get("kind") == "trial" and r["case"] == case for r in rows)),
            str(row["steps"]),
            str(row["restarts"]),
            ", ".join(f"{value:.1f}" for value in row["psnr"]),
            f"**{row['mean_psnr']:.1f}**",
            f"{mean(row['ssim']):.2f}",
        ]
        for case, row in finals(RESULTS).items()
    ]
    return "\n\n".join(
        [
            measured_on(RESULTS / "control.jsonl"),
            page.table(heads, lines),
            "![Originals and reconstructions](results/control.png)",
        ]
    )


def train_mode() -> str:
    rows = [row for row in read(RESULTS / "train_mode.jsonl") if "psnr" in row]
    heads = ["network", "batch", "steps", "PSNR of 8 images", "mean", "SSIM", "1 − cos"]
    lines = [
        [
            row["case"],
            str(row["batch"]),
            str(row["steps"]),
            ", ".join(f"{value:.1f}" for value in row["psnr"]),
            f"**{row['mean_psnr']:.1f}**",
            f"{mean(row['ssim']):.2f}",
            f"{min(row['mismatch']):.2f} to {max(row['mismatch']):.2f}",
        ]
        for row in rows
    ]
    return "\n\n".join(
        [
            measured_on(RESULTS / "train_mode.jsonl"),
            page.table(heads, lines),
            "![Originals and reconstructions](results/train_mode.png)",
        ]
    )


def starts() -> str:
    rows = read(RESULTS / "starts.jsonl")
    done = [row for row in rows if row["kind"] == "final"]
    heads = ["network", "SSIM of", *(f"{share:g}" for share in done[0]["shares"])]
    lines = []
    for row in done:
        lines.append([row["network"], "paper", *(f"{value:.2f}" for value in row["paper"])])
        lines += [
            [row["network"], kind, *(f"{mean(each):.2f}" for each in row[kind])] for kind in ("start", "best", "last")
        ]
    first = done[0]
    words = measured_on(RESULTS / "starts.jsonl")
    words += f" Untrained; setting {first['setting']}, {first['steps']} steps, mean of {len(first['best'][0])} images."
    return "\n\n".join([words, page.table(heads, lines), "![Starts and reconstructions of Swin-T](results/starts.png)"])


def of_part(name: str) -> str:
    path = RESULTS / f"{name}.jsonl"
    cases = [row for row in read(path) if row["unit"] != "image"]
    table = import_module(f"reproductions.practical_feasibility.{name}").table(cases)
    figures = [RESULTS / f"{name}.{ending}" for ending in ("svg", "png") if (RESULTS / f"{name}.{ending}").is_file()]
    return "\n\n".join([measured_on(path), table, *(f"![{name}](results/{path.name})" for path in figures)])


def sections() -> dict[str, str]:
    made = {
        "claims": page.claims_table(claims(RESULTS)),
        "gates": page.gates_table(gate_rows(RESULTS)),
        "control": control(),
        "train_mode": train_mode(),
    }
    made |= {"starts": starts(), "confusion": confusion.table(RESULTS)}
    return made | {name: of_part(name) for name in PARTS}


def draw() -> None:
    """Figures of the control, of train mode and of Fig. 4; their pictures are not committed."""
    kept = {name: read_pictures(RESULTS, name) for name in ("control", "train_mode", "starts")}
    won = {case: f"final {case} {row['setting']}" for case, row in finals(RESULTS).items()}
    lines = [(case, kept["control"][unit]) for case, unit in won.items()]
    grid(RESULTS / "control.png", [("original", kept["control"]["truth"]), *lines], side=64)
    rows = [row for row in read(RESULTS / "train_mode.jsonl") if "psnr" in row]
    lines = [(f"{row['case']}, batch {row['batch']}", kept["train_mode"][row["unit"]]) for row in rows]
    grid(RESULTS / "train_mode.png", [("original", kept["train_mode"]["truth"]), *lines], side=64)
    truth, found = kept["starts"]["truth"], []
    for number in range(len(truth)):
        for kind in ("start", "best"):
            pictures = kept["starts"][f"swin_t {kind}"][number :: len(truth)]
            found.append((f"{kind} {number + 1}", np.concatenate([truth[number : number + 1], pictures])))
    (row,) = [row for row in read(RESULTS / "starts.jsonl") if row["kind"] == "final"]
    grid(RESULTS / "starts.png", found, side=48, heads=["original", *(f"{share:g}" for share in row["shares"])])
    lines = [Line("paper", list(zip(row["shares"], row["paper"], strict=True)), dashed=True)]
    lines += [
        Line(k, [(p, mean(each)) for p, each in zip(row["shares"], row[k], strict=True)]) for k in ("start", "best")
    ]
    svg(RESULTS / "starts.svg", [Panel("Swin-T, untrained", "share of noise", "SSIM", lines, bounds=(0.0, 1.0))])


if __name__ == "__main__":
    if "--draw" in sys.argv:
        draw()
    sys.exit(page.write(PAGE, sections(), sys.argv[1:]))
