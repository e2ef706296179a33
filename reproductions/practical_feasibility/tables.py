"""Writes README.md from the rows under results/, and draws the figures whose pictures are there.

python -m reproductions.practical_feasibility.tables [--check | --draw]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from leakgauge.data.embedded import photographs
from reproductions.common import page
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.runner import SHOWN, Pictures, Row, measured_on, read, read_pictures
from reproductions.practical_feasibility import confusion, shared_statistics, start_scores
from reproductions.practical_feasibility.claims import (
    claims,
    finals,
    gate_rows,
    longer_finals,
    longer_train_mode,
    longest_batches,
    mean,
    percent,
)
from reproductions.practical_feasibility.setting import RESULTS
from reproductions.practical_feasibility.stems import STEMS

AGAIN = tuple(f"{form} trained, batch {batch}" for form, batch in (("post", 4), ("pre", 1), ("pre", 4), ("post", 1)))
"""Training mode again, in the order of measuring; the pictures of the first two are from another call."""
PAGE = Path(__file__).parent / "README.md"
PARTS = ("freeze_thresholds", "freeze_layout", "accuracy", "small", "large", "shared_statistics", "detection")
SHARED = "shared_statistics_longer"


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
    again = read(RESULTS / "control_longer.jsonl")
    both = [
        *((case, row, rows) for case, row in finals(RESULTS).items()),
        *((f"{case}, again", row, again) for case, row in longer_finals(RESULTS).items()),
    ]
    lines = [
        [
            case,
            row["setting"],
            str(sum(r.get("kind") == "trial" and r["case"] == row["case"] for r in tried)),
            str(row["steps"]),
            str(row["restarts"]),
            ", ".join(f"{value:.1f}" for value in row["psnr"]),
            f"**{row['mean_psnr']:.1f}**",
            f"{mean(row['ssim']):.2f}",
        ]
        for case, row, tried in both
    ]
    return "\n\n".join(
        [
            f"{measured_on(RESULTS / 'control.jsonl')} The last two: {measured_on(RESULTS / 'control_longer.jsonl')}",
            page.table(heads, lines),
            "![Originals and reconstructions](results/control.png)",
            "After training, again:",
            "![Originals and reconstructions of the last two lines](results/control_longer.png)",
        ]
    )


def train_mode() -> str:
    heads = ["network", "batch", "steps", "PSNR of 8 images", "mean", "SSIM", "1 − cos"]
    lines = [
        [
            f"{row['case']}{', again' if 'kind' in row else ''}",
            str(row["batch"]),
            str(row["steps"]),
            ", ".join(f"{value:.1f}" for value in row["psnr"]),
            f"**{row['mean_psnr']:.1f}**",
            f"{mean(row['ssim']):.2f}",
            f"{min(row['mismatch']):.2g} to {max(row['mismatch']):.2g}",
        ]
        for row in [*read(RESULTS / "train_mode.jsonl"), *longer_train_mode(RESULTS).values()]
        if "psnr" in row
    ]
    said = [measured_on(RESULTS / "train_mode.jsonl"), page.table(heads, lines)]
    said.append("![Originals and reconstructions](results/train_mode.png)")
    if longer_train_mode(RESULTS):
        said[0] += f" Again: {measured_on(RESULTS / 'train_mode_longer.jsonl')}"
        said += ["Again:"]
        said += [
            f"![Originals and reconstructions of the lines named again](results/{name}.png)"
            for name in ("train_mode_longer", "train_mode_longer_2")
        ]
    return "\n\n".join(said)


def starts() -> str:
    done = {attacked(row): row for row in read(RESULTS / "starts.jsonl") if row["kind"] == "final"}
    heads = ["network", "SSIM of", *(f"{share:g}" for share in next(iter(done.values()))["shares"])]
    lines, said = [], []
    for name, row in done.items():
        lines.append([name, "paper", *(f"{value:.2f}" for value in row["paper"])])
        lines += [[name, kind, *(f"{mean(each):.2f}" for each in row[kind])] for kind in ("start", "best", "last")]
        off = [max(row["mismatch"][i : i + 3]) for i in range(0, len(row["mismatch"]), 3)]
        lines.append([name, "1 − cos, worst image", *(f"{value:.0e}" for value in off)])
        said.append(f"{name}: {row['setting']}, {row['steps']} steps.")
    files = {name: f"starts_{name.replace(' ', '_')}.png" for name in done}
    pictures = [
        f"![Starts and reconstructions of {name}](results/{file})"
        for name, file in files.items()
        if (RESULTS / file).is_file()
    ]
    words = f"{measured_on(RESULTS / 'starts.jsonl')} Mean of 3 images; networks are untrained unless it is said. {' '.join(said)}"
    return "\n\n".join([words, page.table(heads, lines), "![SSIM by start](results/starts.svg)", *pictures])


def closed_form() -> str:
    rows = read(RESULTS / "closed_form.jsonl")
    heads = ["ViT-B", "accuracy", "images", "exact, and certified", "PSNR", "seconds an image"]
    lines = [
        [
            row["unit"].removesuffix(", trained"),
            percent(row) if row["trained"] else "untrained",
            str(row["images"]),
            str(row["certified"]),
            f"{min(row['psnr']):.0f} to {max(row['psnr']):.0f} dB",
            f"{row['seconds'] / row['images']:.1f}",
        ]
        for row in rows
    ]
    return "\n\n".join(
        [
            measured_on(RESULTS / "closed_form.jsonl"),
            page.table(heads, lines),
            "![Originals, and what the closed form reads from untrained and trained ViT-B/16 at 224 × 224](results/closed_form.png)",
        ]
    )


def stems() -> str:
    rows = read(RESULTS / "stems.jsonl")
    networks = {row["stem"]: row for row in rows if row["unit"].startswith("trained ")}
    heads = ["stem", "accuracy", "start", "SSIM of 8 images", "mean", "1 − cos"]
    lines = []
    for row in (row for row in rows if row.get("kind") == "final"):
        for number, (noise, best) in enumerate(zip(row["shares"], row["best"], strict=True)):
            off = row["mismatch"][number * len(best) : (number + 1) * len(best)]
            lines.append(
                [
                    row["stem"],
                    percent(networks[row["stem"]]),
                    f"{noise:g} noise",
                    ", ".join(f"{value:.2f}" for value in best),
                    f"**{mean(best):.2f}**",
                    f"{min(off):.2g} to {max(off):.2g}",
                ]
            )
    done = next(row for row in rows if row.get("kind") == "final")
    words = f"{measured_on(RESULTS / 'stems.jsonl')} {done['setting']}, {done['steps']} steps for both."
    return "\n\n".join([words, page.table(heads, lines), "![Originals and reconstructions](results/stems.png)"])


def attacked(row: Row) -> str:
    """Name of the network, and "trained" where it is."""
    return row["unit"].removeprefix("final ")


def of_part(name: str) -> str:
    path = RESULTS / f"{name}.jsonl"
    cases = (
        list(longest_batches(RESULTS).values()) if name == SHARED else [r for r in read(path) if r["unit"] != "image"]
    )
    table = import_module(f"reproductions.practical_feasibility.{name.removesuffix('_longer')}").table(cases)
    figures = [RESULTS / f"{name}.{ending}" for ending in ("svg", "png") if (RESULTS / f"{name}.{ending}").is_file()]
    return "\n\n".join([measured_on(path), table, *(f"![{name}](results/{path.name})" for path in figures)])


def sections() -> dict[str, str]:
    made = {
        "claims": page.claims_table(claims(RESULTS)),
        "gates": page.gates_table(gate_rows(RESULTS)),
        "control": control(),
        "train_mode": train_mode(),
    }
    made |= {"starts": starts(), "start_scores": start_scores.sentence(RESULTS), "confusion": confusion.table(RESULTS)}
    made |= {"closed_form": closed_form(), "stems": stems()}
    return made | {name: of_part(name) for name in (*PARTS, SHARED)}


def draw() -> None:
    """Figures of what was measured last. Pictures are not committed: a figure whose pictures are not here stays as it is."""
    kept = {name: read_pictures(RESULTS, name) for name in ("control", "train_mode", "starts")}
    kept[SHARED] = {
        k: v
        for path in sorted(RESULTS.glob(f"{SHARED}*.jsonl"), key=_size)
        for k, v in read_pictures(RESULTS, path.stem).items()
    }
    won = {case: f"final {case} {row['setting']}" for case, row in finals(RESULTS).items()}
    _lines("control", kept["control"], won)
    again = {case: f"final {case.split()[0]}" for case in longer_finals(RESULTS)}
    _lines("control_longer", read_pictures(RESULTS, "control_longer"), again)
    rows = [row for row in read(RESULTS / "train_mode.jsonl") if "psnr" in row]
    _lines("train_mode", kept["train_mode"], {f"{row['case']}, batch {row['batch']}": row["unit"] for row in rows})
    longer = {f"{row['case']}, batch {row['batch']}": unit for unit, row in longer_train_mode(RESULTS).items()}
    for name, wanted in (("train_mode_longer", AGAIN[:2]), ("train_mode_longer_2", AGAIN[2:])):
        _lines(name, read_pictures(RESULTS, "train_mode_longer"), {words: longer[words] for words in wanted})
    _stems(read_pictures(RESULTS, "stems"))
    _closed_form(read_pictures(RESULTS, "closed_form"))
    _lines(SHARED, kept[SHARED], {case: case for case in shared_statistics.CASES}, side=48)
    exact = {case: case for case, (_, kind) in shared_statistics.CASES.items() if kind == "shared"}
    _lines(f"{SHARED}_exact", read_pictures(RESULTS, f"{SHARED}_5.5"), exact, side=48)
    panels = []
    for row in (row for row in read(RESULTS / "starts.jsonl") if row["kind"] == "final"):
        _starts(row, kept["starts"])
        lines = [Line("paper", list(zip(row["shares"], row["paper"], strict=True)), dashed=True)]
        lines += [
            Line(k, [(p, mean(each)) for p, each in zip(row["shares"], row[k], strict=True)]) for k in ("start", "best")
        ]
        panels.append(
            Panel(
                attacked(row) if row["trained"] else f"{attacked(row)}, untrained",
                "share of noise",
                "SSIM",
                lines,
                bounds=(0.0, 1.0),
            )
        )
    svg(RESULTS / "starts.svg", panels, title="SSIM by the share of noise in the start")


def _size(path: Path) -> tuple[int, str]:
    """Longer runs have longer names, and come later."""
    return len(path.stem), path.stem


def _lines(name: str, pictures: Pictures, wanted: Mapping[str, str], *, side: int = 64) -> None:
    """Originals above one line for each entry of ``wanted`` (words: unit)."""
    if wanted and all(unit in pictures for unit in ("truth", *wanted.values())):
        lines = [("original", pictures["truth"]), *((words, pictures[unit]) for words, unit in wanted.items())]
        grid(RESULTS / f"{name}.png", lines, side=side)


def _stems(pictures: Pictures) -> None:
    """From half noise and from noise alone, below each other, for both stems."""
    if all(f"{stem} best" in pictures for stem in STEMS):
        count = len(pictures["truth"])
        found = [
            (f"{stem}, {noise}", pictures[f"{stem} best"][place * count : (place + 1) * count])
            for place, noise in enumerate(("half noise", "noise"))
            for stem in STEMS
        ]
        grid(RESULTS / "stems.png", [("original", pictures["truth"]), *found], side=64)


def _closed_form(pictures: Pictures) -> None:
    wanted = {"untrained": "224, patches of 16", "trained": "224, patches of 16, trained"}
    if all(unit in pictures for unit in wanted.values()):
        own = _at_side(photographs(224), SHOWN)
        shown = [("original", own), *((words, pictures[unit]) for words, unit in wanted.items())]
        grid(RESULTS / "closed_form.png", shown, side=84)


def _at_side(images: Tensor, side: int) -> np.ndarray:
    small = F.adaptive_avg_pool2d(images, (side, side))
    return (small * 255).round().byte().numpy()


def _starts(row: Row, pictures: Pictures) -> None:
    """Above each other the starts and what came of them, image by image."""
    name = attacked(row)
    if not all(key in pictures for key in ("truth", f"{name} start", f"{name} best")):
        return
    truth, found = pictures["truth"], []
    for number in range(len(truth)):
        for kind in ("start", "best"):
            own = pictures[f"{name} {kind}"][number :: len(truth)]
            found.append((f"{kind} {number + 1}", np.concatenate([truth[number : number + 1], own])))
    heads = ["original", *(f"{share:g}" for share in row["shares"])]
    grid(RESULTS / f"starts_{name.replace(' ', '_')}.png", found, side=48, heads=heads)


if __name__ == "__main__":
    if "--draw" in sys.argv:
        draw()
    sys.exit(page.write(PAGE, sections(), sys.argv[1:]))
