"""Freezes the thresholds of the verdict on two trained CIFAR-10 classifiers, ResNet-20 and ResNet-56, before anything else is judged.

    python -m reproductions.practical_feasibility.freeze_thresholds --data FOLDER

Each network is attacked in eval and in train mode, from noise and from partly noisy copies of the image, which gives reconstructions of
every quality. Whether one still *shows* its image is asked of the other network, which took no part in the attack: among 500 images
the true one must be nearest in its features. The thresholds are the smallest SSIM, and distances to the null run in SSIM and
PSNR, that agree best with that answer (largest true-positive minus false-positive rate). They are written to ``thresholds.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.attacks import feasibility
from leakgauge.audit.scoring import score_images_in_order
from leakgauge.audit.verdict import GLIMPSED, RECONSTRUCTED, Check
from leakgauge.channels import Gradient
from leakgauge.core import Labels, NoisyCopy, Pixels, Size, Victim, share
from reproductions.common.drawing import Line, Panel, svg
from reproductions.common.networks.cifar_resnet import CifarResNet, load_cifar_resnet
from reproductions.common.runner import Pictures, Row, Rows
from reproductions.practical_feasibility import setting
from reproductions.practical_feasibility.attacking import DEFAULTS, configured
from reproductions.practical_feasibility.setting import Images, Options, Plan

DEPTHS = (20, 56)
CASES = {f"resnet{depth}, {mode} mode": (depth, mode) for depth in DEPTHS for mode in ("eval", "train")}
PLAN: Plan = dict.fromkeys(CASES, 20.0)
POOL = 500
"""Images among which the true one is looked for."""
PERFECT = 60.0
"""PSNR of a perfect copy, which has none."""
METRICS = ("ssim", "ssim_above_null", "psnr_above_null")


def network(depth: int, options: Options) -> tuple[CifarResNet, Pixels, bool]:
    """The trained network where its weights are in the data folder; a small untrained one in quick runs."""
    path = None if options.data is None else options.data / f"cifar10_resnet{depth}.safetensors"
    if path is None:
        return CifarResNet(depth=8 if depth == 20 else 14, width=4).eval(), Pixels((3, 32, 32)), False
    return *load_cifar_resnet(path), True


def run(options: Options, ledger: Rows, plan: Plan) -> None:
    run_cases(options, ledger, plan, measure)
    if ledger.failed:
        return  # thresholds of a part of the cases would be others
    frozen: dict[str, Any] = {**freeze(ledger.rows), "quick": options.quick}
    frozen["trained"] = all(row["trained"] for row in ledger.rows if row["unit"] in CASES)
    (options.out / "thresholds.json").write_text(json.dumps(frozen, indent=2) + "\n", encoding="utf-8")


def run_cases(options: Options, ledger: Rows, plan: Plan, measure: Callable[..., None]) -> None:
    """``measure`` for every case that has no row yet, on the first images."""
    images = setting.cifar_test(options, 40 if options.quick else 600)
    shares = (0.0, 1.0) if options.quick else (0.0, 0.3, 0.6, 0.8, 1.0)
    for key in CASES:
        if not ledger.has(key):
            options.require_time(key, plan[key])
            with ledger.attempt(key):
                measure(key, options, ledger, images, shares, 2 if options.quick else 6)


@dataclass(frozen=True)
class Attempts:
    """Of each ``tried`` (share of noise in the start, number of the image): ``shown["attack"]``, ``shown["null"]`` and the truth."""

    tried: list[tuple[float, int]]
    shown: dict[str, Tensor]
    truths: Tensor
    trained: bool
    steps: int


def attempts(key: str, options: Options, images: Images, shares: Sequence[float], count: int) -> Attempts:
    depth, mode = CASES[key]
    model, space, is_trained = network(depth, options)
    victim = Victim(model.to(options.device), space, mode="train" if mode == "train" else "eval", name=key)
    x, y = (part.to(options.device) for part in setting.encoded(space, images, slice(0, count)))
    tried = [(p, i) for p in shares for i in range(count)]
    seen = [
        share(
            victim,
            Gradient(),
            x[i : i + 1],
            y[i : i + 1],
            reveal=[Size(), Labels(), NoisyCopy(p)],
            seed=options.seed + i,
        )
        for p, i in tried
    ]
    attack = configured(feasibility, DEFAULTS, steps=4 if options.quick else 400, restarts=1).matching
    truths = space.decode(torch.cat([x[i : i + 1] for _, i in tried])).cpu()
    found = {
        "attack": attack.many(victim, seen, seed=options.seed),
        "null": attack.blind().many(victim, seen, seed=options.seed),
    }
    shown = {kind: torch.cat([space.decode(one.x) for one in every]).cpu() for kind, every in found.items()}
    return Attempts(tried, shown, truths, is_trained, attack.solver.steps)


def measure(key: str, options: Options, ledger: Rows, images: Images, shares: Sequence[float], count: int) -> None:
    made = attempts(key, options, images, shares, count)
    judge, space, _ = network(sum(DEPTHS) - CASES[key][0], options)
    scores = {kind: score_images_in_order(guesses, made.truths) for kind, guesses in made.shown.items()}
    own = [i for _, i in made.tried]
    known, null_known = (recognised(judge, space, made.shown[kind], own, images) for kind in ("attack", "null"))
    ledger.add(
        key, trained=made.trained, data=images.name, shares=[p for p, _ in made.tried], images=own, steps=made.steps,
        ssim=scores["attack"].ssim, psnr=scores["attack"].psnr, null_ssim=scores["null"].ssim, null_psnr=scores["null"].psnr,
        recognised=known, null_recognised=null_known,
    )  # fmt: skip


def recognised(judge: CifarResNet, space: Pixels, shown: Tensor, own: Sequence[int], images: Images) -> list[bool]:
    """Whether the true image is the nearest of the first ``POOL`` in the judge's features (cosine)."""
    with torch.no_grad():
        guesses, others = (judge.cpu().features(space.encode(x)) for x in (shown, images.x[:POOL]))
    likeness = torch.nn.functional.normalize(guesses, dim=1) @ torch.nn.functional.normalize(others, dim=1).T
    return [int(row.argmax()) == i for row, i in zip(likeness, own, strict=True)]


@dataclass(frozen=True)
class Sample:
    values: dict[str, float]
    shows: bool


def samples(rows: Sequence[Row]) -> list[Sample]:
    """Every reconstruction, compared with the null run that starts from noise alone, as those of the other parts do."""
    found: list[Sample] = []
    for row in rows:
        if row["unit"] in CASES:
            from_noise = {i: at for at, (p, i) in enumerate(zip(row["shares"], row["images"], strict=True)) if p == 1}
            for at, (i, shows) in enumerate(zip(row["images"], row["recognised"], strict=True)):
                null = from_noise[i]
                values = {
                    "ssim": row["ssim"][at],
                    "ssim_above_null": row["ssim"][at] - row["null_ssim"][null],
                    "psnr_above_null": min(row["psnr"][at], PERFECT) - row["null_psnr"][null],
                }
                found.append(Sample(values, shows))
    return found


def freeze(rows: Sequence[Row]) -> dict[str, float | str]:
    """The threshold of each metric, with how well it agrees."""
    every = samples(rows)
    frozen: dict[str, float | str] = {"samples": len(every), "recognised": sum(one.shows for one in every)}
    for metric in METRICS:
        frozen[metric], frozen[f"{metric}_agreement"] = best_threshold(
            [one.values[metric] for one in every], [one.shows for one in every]
        )
    return frozen


def best_threshold(values: Sequence[float], positive: Sequence[bool]) -> tuple[float, float]:
    """The threshold t for which ``value ≥ t`` has the largest true-positive minus false-positive rate, and that difference.

    It is put halfway to the next smaller value. With positives or negatives alone it is infinite and agrees by 0.
    """
    yes, no = sum(positive), len(positive) - sum(positive)
    if not yes or not no:
        return 1e9, 0.0
    ordered = sorted(set(values))
    best = (-1.0, 0.0)
    for i, at in enumerate(ordered):
        halfway = at if i == 0 else (at + ordered[i - 1]) / 2
        right = sum(p and v >= at for v, p in zip(values, positive, strict=True)) / yes
        wrong = sum(not p and v >= at for v, p in zip(values, positive, strict=True)) / no
        if right - wrong > best[0] + 1e-12:
            best = (right - wrong, halfway)
    return best[1], best[0]


def checks(path: Path) -> tuple[tuple[Check, ...], tuple[Check, ...], str]:
    """Tables for ``judge`` with the frozen thresholds, and which they are.

    Where there are none, or they are from a quick run or from untrained networks, the library's own are taken.
    """
    frozen: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not frozen:
        return RECONSTRUCTED, GLIMPSED, "the library's thresholds (none are frozen)"
    if frozen["quick"] or not frozen["trained"]:
        return RECONSTRUCTED, GLIMPSED, "the library's thresholds (the frozen ones are of a quick run)"
    replaced = {("ssim", "zero"): "ssim", ("ssim", "null"): "ssim_above_null", ("psnr", "null"): "psnr_above_null"}
    whole = tuple(
        Check(c.metric, frozen[replaced[c.metric, c.above]], above=c.above) if (c.metric, c.above) in replaced else c
        for c in RECONSTRUCTED
    )
    return whole, GLIMPSED, "thresholds frozen on ResNet-20 and ResNet-56"


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    every = samples(rows)
    at = [i / 50 for i in range(51)]
    lines = [
        Line(name, [(t, sum(s.values["ssim"] >= t for s in own) / len(own)) for t in at])
        for name, own in (
            ("recognised", [s for s in every if s.shows]),
            ("not recognised", [s for s in every if not s.shows]),
        )
        if own
    ]
    if lines:
        svg(out / "freeze_thresholds.svg", [Panel("SSIM", "threshold", "share above", lines)], title="Thresholds")


def table(rows: list[Row]) -> str:
    frozen = freeze(rows)
    lines = [f"{frozen['samples']} reconstructions, {frozen['recognised']} recognised by the other network.", ""]
    lines += ["| metric | threshold | true minus false positives |", "|---|---|---|"]
    lines += [f"| {metric} | {frozen[metric]:.3g} | {frozen[f'{metric}_agreement']:.2f} |" for metric in METRICS]
    return "\n".join(lines)


if __name__ == "__main__":
    setting.main("freeze_thresholds", PLAN, run, draw, __doc__)
