"""Does the closed form's guess help the optimisation on a standard vision transformer, where the theorem does not hold?

    python -m reproductions.april.closed_form_start [--quick] [--steps 800] [--device cuda]

The paper's small model (architecture B: 28×28, patch 7, width 384, 4 blocks, 4 heads, untrained) with positions of scale 1 and
0.02, five Fashion-MNIST images of five classes, ``april`` from four starts: N(0, 1) (the paper's), grey, the closed form solved
although its condition fails, and the same with a ridge. Start and end are compared with the truth here, outside the attack.
Writes results/closed_form_start.jsonl beside this file (``--quick``: one image, 20 steps, nothing written unless ``--out``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from leakgauge.attacks import april, april_closed_form
from leakgauge.audit.scoring import score
from leakgauge.channels import Gradient
from leakgauge.core import Observation, Pixels, Reconstruction, Victim, share
from leakgauge.data.embedded import fashion
from leakgauge.inversion import Constant, Given, Matching, Normal
from leakgauge.models.vit import ViT

RESULTS = Path(__file__).parent / "results"
SPACE = Pixels((1, 28, 28))
SPREAD = 0.1
"""Deviation of the noise added to the closed form's picture, as ``april_from_closed_form`` adds it."""


def small_model(position_std: float) -> ViT:
    return ViT(
        side=28, patch=7, width=384, depth=4, heads=4, qkv_bias=False, final_norm=False, position_std=position_std
    )


def begun(name: str, attack: Matching, victim: Victim, seen: Observation) -> Matching:
    """The attack with the named start."""
    if name == "normal":
        return replace(attack, start=Normal())
    if name == "grey":
        return replace(attack, start=Constant(0.5))
    guess = april_closed_form(ridge="auto" if name == "closed form, ridge" else None, force=True)(victim, seen)
    return replace(attack, start=Given(guess.x[0].cpu(), SPREAD))


STARTS = ("normal", "grey", "closed form", "closed form, ridge")


def measured(
    position_std: float, images: Sequence[int], steps: int, device: str, seeds: int
) -> Iterator[dict[str, object]]:
    victim = Victim(small_model(position_std).to(device), SPACE)
    pictures, labels = fashion("test")
    for number in images:
        x, y = pictures[number : number + 1].to(device), labels[number : number + 1].to(device)
        seen = share(victim, Gradient(), x, y)
        for name in STARTS:
            attack = begun(name, april(steps=steps), victim, seen)
            for seed in range(seeds):
                result = attack(victim, seen, seed=seed)
                row: dict[str, object] = {"position_std": position_std, "image": number, "start": name, "seed": seed}
                for when, picture in (("start", result.trace.snapshots[0].to(device)), ("end", result.x)):
                    scores = score(_as(result, picture), x, y, space=SPACE)
                    row[f"{when}_mse"], row[f"{when}_ssim"] = round(scores.mse[0], 6), round(scores.ssim[0], 4)
                yield {**row, "steps": steps, "loss": result.loss}


def _as(result: Reconstruction, picture: torch.Tensor) -> Reconstruction:
    return replace(result, x=picture)


def table(rows: Sequence[dict[str, object]]) -> Iterator[str]:
    columns = ("start_mse", "start_ssim", "end_mse", "end_ssim")
    for position_std in dict.fromkeys(row["position_std"] for row in rows):
        for name in STARTS:
            own = [r for r in rows if (r["position_std"], r["start"]) == (position_std, name)]
            mean = {c: round(sum(float(str(r[c])) for r in own) / len(own), 4) for c in columns}
            yield f"positions {position_std:g}, {name} ({len(own)} runs): {mean}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--positions", type=float, nargs="+", default=[1.0, 0.02], help="scales of the positions")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder for the rows")
    options = parser.parse_args()
    images, steps, seeds = (range(1), 20, 1) if options.quick else (range(5), options.steps, options.seeds)
    folder = options.out or (None if options.quick else RESULTS)
    rows: list[dict[str, object]] = []
    for position_std in options.positions:
        for row in measured(position_std, images, steps, options.device, seeds):
            rows.append(row)
            print(json.dumps(row), flush=True)
            if folder is not None:  # after every run, so that an interrupted study keeps what it has
                folder.mkdir(parents=True, exist_ok=True)
                text = "".join(json.dumps(row) + "\n" for row in rows)
                (folder / "closed_form_start.jsonl").write_text(text, encoding="utf-8")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
