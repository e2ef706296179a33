"""Table 1 of the privacy-token paper, with the controls beside it, a calibrated measure, and the attacks it is to predict.

python reproductions/privacy_tokens/run.py --quick [--out FILE]
python reproductions/privacy_tokens/run.py --model lenet --data cifar10.zip --device cuda --out FILE

One JSON line per checkpoint and token, one per attacked checkpoint, and one with rank correlations over the checkpoints.
``tables.py`` makes the README's tables from those lines.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import rankdata
from setups import QUICK, SETUPS, BucketSketch, Setup, data_for
from torch import Tensor, nn

from leakgauge.audit.scoring import score
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.measures.image import ssim
from leakgauge.measures.mutual_information import InfoNCE
from leakgauge.monitor.gradient_pairs import Probe
from leakgauge.monitor.paper import MEMORY, paper_mode
from leakgauge.monitor.paper_result import Checkpoint, PaperResult, Reading
from leakgauge.monitor.token_critic import Gap
from leakgauge.monitor.tokens import AutoencoderToken, Token, TransformerToken

TOKENS: dict[str, Token] = {"autoencoder": AutoencoderToken(), "transformer": TransformerToken()}
PROJECTED = 32
"""Numbers to which a batch's mean picture is projected, at random but once and for all: no weight of the model enters."""

Row = dict[str, Any]


def gap(value: Gap | None) -> float | None:
    return None if value is None else round(value.gap, 6)


def paper_rows(name: str, token: str, found: PaperResult, notes: tuple[str, ...]) -> list[Row]:
    def row(at: Checkpoint) -> Row:
        return {
            "kind": "paper",
            "model": name,
            "token": token,
            "reading": found.reading,
            "shuffle": found.shuffle,
            "seed": found.seed,
            "sub_epoch": at.sub_epoch,
            "accuracy": round(at.accuracy, 4),
            "matched": round(at.paper.matched, 6),
            "mismatched": round(at.paper.mismatched, 6),
            "gap": gap(at.paper),
            "held_out": gap(at.controls.held_out),
            "held_out_dv": round(at.controls.held_out.matched, 6),
            "collected": gap(at.collected),
            "decoy": gap(at.controls.decoy),
            "null": gap(at.controls.null),
        }

    cost: Row = {"kind": "cost", "model": name, "token": token, "reading": found.reading, "seed": found.seed}
    cost |= dataclasses.asdict(found.cost) | {"notes": list(notes)}
    return [*map(row, found.checkpoints), cost]


def calibrated(
    model: nn.Module, setup: Setup, data: tuple[Tensor, Tensor], *, pairs: int, candidates: int, seed: int
) -> Row:
    """Held-out InfoNCE between batches and their gradients at fixed weights: which of K batches made this gradient?"""
    probe = Probe(model.train(), F.cross_entropy, setup.feature_layer, setup.gradient_layers, BucketSketch(128))
    device = next(model.parameters()).device
    rng = torch.Generator().manual_seed(seed)
    project = torch.randn(math.prod(setup.shape), PROJECTED, generator=rng)
    pictures, gradients = [], []
    for _ in range(pairs):
        rows = torch.randperm(len(data[0]), generator=rng)[: setup.schedule.batch]
        pictures.append(data[0][rows].cpu().flatten(1).mean(0) @ project)
        gradients.append(torch.cat(probe.step(data[0][rows].to(device), data[1][rows].to(device))[1]))
    found = InfoNCE(candidates)(torch.stack(pictures), torch.stack(gradients), seed=seed)
    return {"nats": found.nats, "low": found.low, "high": found.high, "ceiling": found.ceiling, "pairs": pairs}


def attacked(
    model: nn.Module, setup: Setup, space: Pixels, data: tuple[Tensor, Tensor], targets: int, seed: int
) -> Row:
    """The attack on single training images, through the public interface; also SSIM as if images went from 0 to 255."""
    victim = Victim(model, space)
    device = victim.device
    chosen = [(data[0][i : i + 1].to(device), data[1][i : i + 1].to(device)) for i in range(targets)]
    seen = [share(victim, Gradient(), x, y) for x, y in chosen]
    results = setup.attack.many(victim, seen, seed=seed)
    scores = [score(r, x, y, space=space) for r, (x, y) in zip(results, chosen, strict=True)]
    wrong_scale = [
        float(ssim(space.decode(r.x).cpu() / 255, space.decode(x).cpu() / 255))
        for r, (x, _) in zip(results, chosen, strict=True)
    ]
    return {
        "psnr": [s.psnr[0] for s in scores],
        "mse": [s.mse[0] for s in scores],
        "ssim": [s.ssim[0] for s in scores],
        "ssim_data_range_255": wrong_scale,
        "mean_psnr": sum(s.psnr[0] for s in scores) / targets,
        "mean_mse": sum(s.mse[0] for s in scores) / targets,
        "attack": repr(setup.attack),
    }


def correlations(name: str, rows: list[Row]) -> Row:
    """Spearman's rank correlation over checkpoints of each measure with −MSE of the attack: its mean, and the first target's."""
    attacks = {r["sub_epoch"]: r for r in rows if r["kind"] == "attack"}
    found: Row = {"kind": "correlation", "model": name, "with": "-mse"}
    curves: dict[str, dict[Any, Any]] = {"infonce": {s: r["infonce_nats"] for s, r in attacks.items()}}
    for row in rows:
        if row["kind"] == "paper":
            for column in ("gap", "collected", "held_out"):
                curves.setdefault(f"{row['token']}/{row['reading']}: {column}", {})[row["sub_epoch"]] = row[column]
    for measure, curve in curves.items():
        shared = [s for s in attacks if curve.get(s) is not None]
        values = [curve[s] for s in shared]
        found[measure] = {
            "rho": rank_correlation(values, [-attacks[s]["mean_mse"] for s in shared]),
            "rho_first_target": rank_correlation(values, [-attacks[s]["mse"][0] for s in shared]),
            "checkpoints": len(shared),
        }
    return found


def rank_correlation(a: list[float], b: list[float]) -> float | None:
    """Spearman's ρ, or None where it has no meaning: fewer than three values, or all the same."""
    if len(a) < 3 or len(set(a)) == 1 or len(set(b)) == 1:
        return None
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small LeNet on embedded data, under a minute")
    parser.add_argument("--model", choices=list(SETUPS), default="lenet")
    parser.add_argument(
        "--data", type=Path, nargs="+", help="what leakgauge.data.read takes, or a zip of picture sheets"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", nargs="+", choices=list(TOKENS), default=list(TOKENS))
    parser.add_argument("--readings", nargs="+", choices=["once", "warm", "fresh"], default=["once"])
    parser.add_argument("--targets", type=int, default=10, help="images that are attacked at each checkpoint")
    parser.add_argument(
        "--memory", type=int, default=MEMORY, help="bytes that stored pairs may take; AlexNet's take 15e9"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    setup = QUICK if options.quick else SETUPS[options.model]
    name = "quick" if options.quick else options.model
    targets, pairs, candidates = (2, 200, 32) if options.quick else (options.targets, 1000, 64)
    tokens = ["transformer"] if options.quick else options.tokens
    parts = [data_for(setup, path) for path in (options.data or [None])]
    images, labels = (torch.cat(side) for side in zip(*parts, strict=True))
    space = Pixels(setup.shape)
    model = setup.make(options.seed).to(options.device)
    snapshots: dict[int, nn.Module] = {}

    rows: list[Row] = []

    def write(row: Row) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")

    def keep(sub_epoch: int, trained: nn.Module) -> None:
        snapshots[sub_epoch] = trained

    readings: list[Reading] = options.readings
    for token in tokens:
        for reading in readings:
            found = paper_mode(
                model,
                F.cross_entropy,
                (images, labels),
                feature_layer=setup.feature_layer,
                gradient_layers=setup.gradient_layers,
                schedule=setup.schedule,
                reading=reading,
                token=TOKENS[token],
                sketch=BucketSketch() if setup.sketched else None,
                memory=options.memory,
                on_checkpoint=keep,
                seed=options.seed,
            )
            for row in paper_rows(name, token, found, setup.notes):
                write(row)
    train = (images[: len(images) * 4 // 5], labels[: len(images) * 4 // 5])  # what paper_mode trained on
    for sub_epoch, snapshot in snapshots.items():
        leak = calibrated(snapshot, setup, train, pairs=pairs, candidates=candidates, seed=options.seed)
        quality = attacked(snapshot.eval(), setup, space, train, targets, options.seed)
        shared = {"kind": "attack", "model": name, "seed": options.seed, "sub_epoch": sub_epoch}
        write(shared | {f"infonce_{key}": value for key, value in leak.items()} | quality)
    write(correlations(name, rows))


if __name__ == "__main__":
    main()
