"""Why attacks by optimisation fail on architecture A (Fig. 2), and why noise destroys the closed form (Fig. 6).

    python -m reproductions.april.why --data FOLDER

With freshly drawn weights attention is nearly even: every token gets almost the mean of all. What comes back through it, ∂l/∂z, is then
almost the same for all tokens, and the gradient hardly tells the patches apart. Four parts, on the small MNIST model unless said otherwise:

1. ``attention``: APRIL against models whose attention is sharper in one way or another, from noise and from near the truth.
2. ``sensitivity``: singular values of the gradient's derivative by the image's pixels.
3. ``noise``: the closed form on such models under several readings of "variance = c × gradient norm".
4. ``noise base``: the same on ViT-Base, whose patches have as many values (768) as its tokens.

A stopped run resumes. About 20 minutes on one idle core.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.attacks import april_closed_form
from leakgauge.core import Observation, Signal
from leakgauge.inversion import Given
from reproductions.april import study
from reproductions.april.attention_variants import (
    FAR,
    NEAR,
    ONE_BLOCK,
    PRINTED,
    RESIDUAL,
    SHALLOW,
    UNSCALED,
    USUAL,
    XAVIER,
    Variant,
    carrying,
    evenness,
    orthogonal_patches,
    sensitivities,
)
from reproductions.april.study import Images, Options
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.gates import squared_length
from reproductions.common.runner import Part, Pictures, Row, Rows

CASES: tuple[tuple[Variant, str], ...] = (
    (USUAL, "noise"), (XAVIER, "noise"), (UNSCALED, "noise"), (RESIDUAL, "noise"), (SHALLOW, ""), (NEAR, ""), (PRINTED, ""),
    (USUAL, "near the truth"), (FAR, "noise"), (ONE_BLOCK, "noise"),
)  # fmt: skip
"""Models and where APRIL starts; without a start only the attention is looked at."""
NEARBY = 0.1
"""Deviation of the noise on the true image from which a second run starts."""
FACTORS = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
NEEDED = ("pos_embed", "blocks.0.attn.qkv.weight")
"""What the closed form reads beside the head."""

READINGS = {
    "whole": "c times as long as the whole gradient",
    "tensor": "c times as long as each tensor's own",
    "whole variance": "variance c × ‖g‖ on every entry",
    "tensor variance": "variance c × ‖g_l‖ on every entry of tensor l",
    "positions": "c times as long as the positions' gradient, on it alone",
}


def attention(options: Options, results: Rows, images: Images) -> None:
    space, steps = study.space_of(images), options.steps(400)
    results.keep("original", images.x)
    for variant, start in CASES:
        if results.has(part="attention", model=variant.name, start=start):
            continue
        victim = variant.victim(images, study.small_model, options)
        seen = study.observed(victim, images)
        even = evenness(victim, seen, images)
        facts = {"weight": even.weight, "spread": even.spread, "condition": even.condition}
        found = None
        if start:
            attack = study.matching_attack("april", steps=steps)
            if start == "noise":
                found = attack.many(victim, seen, seed=options.seed)
            else:
                near = [replace(attack, start=Given(space.encode(x), NEARBY)) for x in images.x]
                found = [one(victim, s, seed=options.seed) for one, s in zip(near, seen, strict=True)]
        if found is not None:
            results.keep(variant.name if start == "noise" else f"{variant.name}, {start}", study.shown(found, space))
        results.add(
            f"attention, {variant.name}, start {start}",
            part="attention",
            model=variant.name,
            start=start,
            data=images.name,
            steps=steps if found else 0,
            **facts,
            **({} if found is None else study.measured(found, images) | study.curves(found, seen, images)),
        )


def sensitivity(options: Options, results: Rows, images: Images) -> None:
    for variant in (USUAL, UNSCALED):
        if results.has(part="sensitivity", model=variant.name):
            continue
        victim = variant.victim(images, study.small_model, options)
        values, length = sensitivities(victim, images, pixels=60 if options.quick else None, seed=options.seed)
        results.add(
            f"sensitivity, {variant.name}",
            part="sensitivity",
            model=variant.name,
            data=images.name,
            pixels=len(values),
            patch_values=victim.parameters()["patch_embed.proj.weight"][0].numel(),
            carrying_99=carrying(values, 0.99),
            largest=float(values[0]) / length,
            median=float(values.median()) / length,
            smallest=float(values[-1]) / length,
            values=study.rounded((values / length).tolist()),
        )


def deviation(reading: str, factor: float, signal: Signal, name: str) -> float:
    """σ of the noise on one tensor."""
    whole = math.sqrt(squared_length(signal))
    own, entries = float(signal[name].double().norm()), signal[name].numel()
    return {
        "whole": factor * whole / math.sqrt(sum(t.numel() for t in signal.values())),
        "tensor": factor * own / math.sqrt(entries),
        "whole variance": math.sqrt(factor * whole),
        "tensor variance": math.sqrt(factor * own),
        "positions": factor * own / math.sqrt(entries) if name == "pos_embed" else 0.0,
    }[reading]


def noisy(seen: Observation, reading: str, factor: float, *, seed: int) -> Observation:
    """Gaussian noise on the two tensors that matter; the others are not read, save the head's, for the label."""
    rng = torch.Generator().manual_seed(seed)

    def changed(name: str, value: Tensor) -> Tensor:
        if name not in NEEDED:
            return value
        sigma = deviation(reading, factor, seen.signal, name)
        return value + sigma * torch.randn(value.shape, generator=rng).to(value)

    kept = {n: v for n, v in seen.signal.items() if n in NEEDED or n.startswith("head.")}
    return replace(seen, signal={name: changed(name, value) for name, value in kept.items()})


def noise(
    options: Options, results: Rows, images: Images, part: str, make: study.Make, variants: tuple[Variant, ...]
) -> None:
    readings = list(READINGS) if part == "noise" else ["whole", "tensor"]
    for variant in variants:
        if results.has(part=part, model=variant.name, reading=readings[-1], ridge=False, factor=FACTORS[-1]):
            continue
        victim = variant.victim(images, make, options)
        clean = study.observed(victim, images)
        even = evenness(victim, clean, images)
        patches = victim.parameters()["patch_embed.proj.weight"].flatten(1)
        values = torch.linalg.svdvals(patches.double())
        for reading in readings:
            ridges = (True, False) if reading == "tensor" and part == "noise" else (False,)
            for ridge, factor in [(r, c) for r in ridges for c in FACTORS]:
                unit = f"{part}, {variant.name}, {reading}{', ridge' * ridge}, {factor:g}"
                if results.has(unit):
                    continue
                attack = april_closed_form(ridge="auto") if ridge else april_closed_form()
                found = [
                    attack(victim, noisy(seen, reading, factor, seed=options.seed + i)) for i, seen in enumerate(clean)
                ]
                results.add(
                    unit,
                    part=part,
                    model=variant.name,
                    reading=reading,
                    ridge=ridge,
                    factor=factor,
                    data=images.name,
                    spread=even.spread,
                    condition=even.condition,
                    patch_condition=float(values[0] / values[-1]),
                    **study.measured(found, images),
                )


ORTHOGONAL = Variant(f"{UNSCALED.name}, orthogonal patch embedding", changes=(*UNSCALED.changes, orthogonal_patches))


def run(options: Options, results: Rows) -> None:
    images = study.digits(options, options.count(2))
    attention(options, results, images)
    noise(options, results, images, "noise", study.small_model, (USUAL, XAVIER, UNSCALED))
    large = study.large(options, options.count(1, 1))
    noise(options, results, large, "noise base", study.base_model, (USUAL, UNSCALED, ORTHOGONAL))
    sensitivity(options, results, images)


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    panels = [
        Panel(
            "Derivative of the gradient by the image", "number of the singular value", "singular value / ‖g‖",
            [Line(r["model"], list(enumerate(r["values"], 1))) for r in rows if r["part"] == "sensitivity"], log_y=True,
        ),
        Panel(
            "Noise c times as long as each tensor", "c", "SSIM of the closed form",
            [
                Line(model, [(r["factor"], r["ssim"]) for r in rows if wanted(r, model)])
                for model in dict.fromkeys(r["model"] for r in rows if r["part"] == "noise")
            ],
            log_x=True, bounds=(0, 1),
        ),
    ]  # fmt: skip
    svg(out / "why.svg", panels, title="Even attention hides the patches from each other")
    if pictures:
        grid(out / "why.png", [(plain(name), images) for name, images in pictures.items()])


def plain(name: str) -> str:
    """Without signs that the font of the pictures lacks."""
    return name.replace("√", "root ").replace("²", "^2")


def wanted(row: Row, model: str) -> bool:
    """The model under noise on each tensor, without a ridge."""
    return (row["part"], row["model"], row.get("reading"), row.get("ridge")) == ("noise", model, "tensor", False)


def table(rows: list[Row]) -> str:
    lines = [
        "| MNIST model | largest weight | spread of ∂l/∂z | its condition | start | loss / ‖g*‖² | MSE | SSIM of APRIL |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in (r for r in rows if r["part"] == "attention"):
        found = f"{r['loss'][-1]:.1e} | {r['mse']:.3f} | {r['ssim']:.2f}" if "ssim" in r else "– | – | not run"
        lines.append(
            f"| {r['model']} | {r['weight']:.2f} | {r['spread']:.1%} | {r['condition']:.0e} | {r['start'] or '–'} | {found} |"
        )
    lines += [
        "",
        "| MNIST model | directions with 99% of Σσ² | largest σ / ‖g‖ | median | smallest |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['model']} | {r['carrying_99']} of {r['pixels']} | {r['largest']:.1e} | {r['median']:.1e} | {r['smallest']:.1e} |"
        for r in rows
        if r["part"] == "sensitivity"
    ]
    for part, title in (("noise", "MNIST model"), ("noise base", "ViT-Base")):
        own = [r for r in rows if r["part"] == part]
        factors = sorted({r["factor"] for r in own})
        lines += ["", f"| {title} | noise | " + " | ".join(f"c = {c:g}" for c in factors) + " |"]
        lines += ["|---|---|" + "---|" * len(factors)]
        for model, reading, ridge in dict.fromkeys((r["model"], r["reading"], r["ridge"]) for r in own):
            ssim = {
                r["factor"]: r["ssim"] for r in own if (r["model"], r["reading"], r["ridge"]) == (model, reading, ridge)
            }
            words = READINGS[reading] + (", ridge" if ridge else "")
            lines.append(f"| {model} | {words} | " + " | ".join(f"{ssim[c]:.2f}" for c in factors) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    study.main(Part("why", run, draw), __doc__)
