"""Figs. 7 and 8: does keeping the position embedding's gradient at home turn the attack into "twin data"?

    python -m reproductions.april.positions --data FOLDER

Five settings, on both architectures: positions learnable and shared, attacked by APRIL and by its squared distance alone;
their gradient withheld; positions fixed (sinusoids); and their gradient withheld while the adversary does not even know
their values (it takes other draws of N(0, 1)), as when each client keeps its own. Then the accuracy that fixed positions cost.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.attacks import april_closed_form
from leakgauge.core import Observation, Victim
from leakgauge.defenses import Withhold
from leakgauge.errors import Inapplicable
from leakgauge.inversion import Adam, Descent, Given
from leakgauge.models.vit import ViT
from reproductions.april import study
from reproductions.april.attention_variants import as_asked
from reproductions.april.study import Images, Options
from reproductions.april.training import accuracies
from reproductions.common.drawing import Line, Panel, svg
from reproductions.common.gates import squared_length
from reproductions.common.runner import Part, Pictures, Row, Rows

SETTINGS = {
    "shared, APRIL": "april",
    "shared, squared distance": "l2",
    "gradient withheld": "l2",
    "fixed": "l2",
    "gradient withheld, values unknown": "l2",
}
RATES = (0.1, 0.03, 0.3)
FRAMES = (1, 2, 5, 10, 20, 50, 100, 200, 300, 400, 500, 600, 700, 1000)
SEEDS = 3


def sinusoids(tokens: int, width: int) -> Tensor:
    """Fixed positions (1, tokens, width): sines and cosines of falling frequency (Vaswani et al. 2017, section 3.5)."""
    at = torch.arange(tokens)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([at.sin(), at.cos()], 2).flatten(1)[None, :, :width]


def with_positions(model: ViT, positions: Tensor, *, fixed: bool) -> ViT:
    with torch.no_grad():
        model.pos_embed.copy_(positions)
    model.pos_embed.requires_grad_(not fixed)
    return model


def prepared(
    name: str, images: Images, architecture: str, options: Options, position_std: float
) -> tuple[Victim, list[Observation]]:
    """What the adversary takes for the victim, and what it sees."""

    def model() -> ViT:
        made = study.small_model(
            images, architecture=architecture, quick=options.quick, seed=options.seed, position_std=position_std
        )
        return as_asked(made, options)

    true = model()
    if name == "fixed":
        true = with_positions(true, sinusoids(*true.pos_embed.shape[1:]), fixed=True)
    victim = study.victim_of(true, images, options.device)
    withheld = [Withhold(("position_embedding",))] if "withheld" in name else []
    seen = study.observed(victim, images, defenses=withheld)
    if "unknown" in name:
        rng = torch.Generator().manual_seed(options.seed + 1000)
        other = position_std * torch.randn(true.pos_embed.shape, generator=rng)
        victim = study.victim_of(with_positions(model(), other, fixed=False), images, options.device)
    return victim, seen


def attack(
    options: Options, results: Rows, images: Images, architecture: str, steps: int, names: list[str], std: float = 1.0
) -> None:
    for name in names:
        unit = f"attack on {images.name}, {architecture}, {name}, scale {std:g}"
        if results.has(unit):
            continue
        victim, seen = prepared(name, images, architecture, options, std)
        matching = study.matching_attack(SETTINGS[name], steps=steps, frames=FRAMES)
        found = matching.many(victim, seen, seed=options.seed)
        if std == 1.0:
            results.keep(f"{images.name}/{architecture}/{name}", study.shown(found, study.space_of(images)))
        results.add(
            unit,
            part="attack",
            setting=name,
            architecture=architecture,
            data=images.name,
            position_std=std,
            steps=steps,
            seconds=round(found[0].seconds * len(found), 1),
            **study.measured(found, images),
            **study.curves(found, seen, images),
        )


def fixed_rates(options: Options, results: Rows, images: Images) -> None:
    """Fixed positions at three rates and 3000 steps, from noise and from near the truth: is it the positions or the search?"""
    for lr, near in (
        (RATES[0], False),
        (RATES[0], True),
        *(() if options.quick else ((lr, False) for lr in RATES[1:])),
    ):
        unit = f"fixed on {images.name}, rate {lr:g}, start {'near the truth' if near else 'noise'}"
        if results.has(unit):
            continue
        victim, seen = prepared("fixed", images, "B", options, 1.0)
        solver = Descent(Adam(lr), options.steps(3000), project=False)
        matching = replace(study.matching_attack("l2", steps=options.steps(3000)), solver=solver)
        if near:
            starts = [replace(matching, start=Given(victim.space.encode(x), 0.1)) for x in images.x]
            found = [one(victim, each, seed=options.seed) for one, each in zip(starts, seen, strict=True)]
        else:
            found = matching.many(victim, seen, seed=options.seed)
        squares = [squared_length(one.signal) for one in seen]
        results.add(
            unit,
            part="fixed rates",
            data=images.name,
            lr=lr,
            near=near,
            steps=options.steps(3000),
            relative_loss=study.rounded([one.loss / s for one, s in zip(found, squares, strict=True)]),
            **study.measured(found, images),
        )


def closed_form(options: Options, results: Rows, images: Images) -> None:
    """Architecture A only: recovered where the gradient is shared, refused with the reason where it is not."""
    for name in ("shared, APRIL", "gradient withheld", "fixed"):
        unit = f"closed form, {name}"
        if results.has(unit):
            continue
        victim, seen = prepared(name, images, "A", options, 1.0)
        try:
            found = [april_closed_form()(victim, one) for one in seen]
        except Inapplicable as reason:
            results.add(unit, part="closed form", setting=name, data=images.name, ssim=None, refused=str(reason))
        else:
            scores = study.measured(found, images)
            results.add(unit, part="closed form", setting=name, data=images.name, refused=None, **scores)


def accuracy(options: Options, results: Rows) -> None:
    """The paper's CIFAR-10 model (patch 8) with learnable and with fixed positions, trained side by side."""
    train = study.objects(options, 200 if options.quick else 50_000, train=True)
    test = study.objects(options, 200 if options.quick else 10_000)
    kinds = ("learnable", "learnable, from 0.02", "fixed sinusoids", "fixed draws", "none")
    seeds = range(1 if options.quick else SEEDS)
    epochs = 1 if options.quick else 10
    for architecture in "BA":
        unit = f"accuracy, {architecture}"
        if results.has(unit):
            continue
        models: list[ViT] = []
        frozen: list[tuple[str, ...]] = []
        for kind in kinds:
            for s in seeds:
                model = study.small_model(train, architecture=architecture, quick=options.quick, seed=options.seed + s)
                start = {
                    "learnable, from 0.02": 0.02 * model.pos_embed.detach(),
                    "fixed sinusoids": sinusoids(*model.pos_embed.shape[1:]),
                    "none": torch.zeros_like(model.pos_embed),
                }.get(kind, model.pos_embed.detach().clone())
                models.append(with_positions(model, start, fixed=False))
                frozen.append(("pos_embed",) if kind.startswith(("fixed", "none")) else ())
        found = accuracies(
            models, (train.x, train.y), (test.x, test.y), frozen=frozen, epochs=epochs, device=options.device
        )
        own = [found[i * len(seeds) : (i + 1) * len(seeds)] for i in range(len(kinds))]
        facts = {"part": "accuracy", "architecture": architecture, "data": train.name, "trained_on": len(train.x)}
        results.add(
            unit,
            *(
                facts | {"epochs": epochs, "positions": kind, "accuracy": study.mean(each), "each": study.rounded(each)}
                for kind, each in zip(kinds, own, strict=True)
            ),
        )


def run(options: Options, results: Rows) -> None:
    count = options.count(10)
    mnist, cifar = study.digits(options, count), study.objects(options, count)
    closed_form(options, results, mnist)
    names = list(SETTINGS)
    results.keep(f"{mnist.name}/original", mnist.x)
    for architecture in "BA":
        attack(options, results, mnist, architecture, options.steps(800), names[::2] if options.quick else names)
    if options.quick:
        fixed_rates(options, results, mnist)
        accuracy(options, results)
        return
    if options.unscaled:
        return
    results.keep(f"{cifar.name}/original", cifar.x)
    attack(options, results, cifar, "B", 1500, [*names[::2], "fixed"])
    attack(options, results, mnist, "B", 800, [names[0], names[2]], std=0.02)
    for images in (mnist, cifar):
        fixed_rates(options, results, images)
    accuracy(options, results)


def draw(rows: list[Row], pictures: Pictures, out: Path, *, suffix: str = "") -> None:
    panels: list[Panel] = []
    cases = dict.fromkeys((r["data"], r["architecture"]) for r in rows if r["part"] == "attack")
    for data, architecture in cases:
        own = [
            r for r in rows if r["part"] == "attack" and (r["data"], r["architecture"]) == (data, architecture)
            and r["position_std"] == 1.0
        ]  # fmt: skip
        where = f"{data}, architecture {architecture}"
        panels.append(
            Panel(
                where, "iteration", "gradient loss / ‖g*‖²",
                [Line(r["setting"], list(zip(r["loss_steps"], r["loss"], strict=True))) for r in own], log_y=True,
            )
        )  # fmt: skip
        panels.append(
            Panel(
                where, "iteration", "mean squared error of the image",
                [Line(r["setting"], list(zip(r["frame_steps"], r["frame_mse"], strict=True))) for r in own], log_y=True,
            )
        )  # fmt: skip
    svg(
        out / f"positions{suffix}.svg",
        panels,
        title="Gradient loss and image error over the iterations, with and without positions",
    )
    for data in dict.fromkeys(data for data, _ in cases):
        shown = [r for r in rows if r["part"] == "attack" and r["data"] == data and r["position_std"] == 1.0]
        names, short = [f"{r['architecture']}/{r['setting']}" for r in shown], data.split()[0].lower()
        study.lines(out / f"positions{suffix}_{short}.png", pictures, data, ["original", *names], side=64)
        if "B/gradient withheld" not in {name.removeprefix(f"{data}/") for name in pictures}:  # an earlier run's
            study.lines(out / f"positions{suffix}_{short}_fixed.png", pictures, data, ["original", "B/fixed"], side=64)


def table(rows: list[Row]) -> str:
    lines = [
        "| data | architecture | positions (scale) | gradient loss / ‖g*‖² | MSE | SSIM |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['data']} | {r['architecture']} | {r['setting']} ({r['position_std']:g}) | {r['loss'][-1]:.1e} "
        f"| {r['mse']:.4f} | {r['ssim']:.3f} |"
        for r in rows
        if r["part"] == "attack"
    ]
    tried = [r for r in rows if r["part"] == "fixed rates"]
    if tried:
        lines += ["", "| fixed positions, architecture B | start | rate | steps | median loss / ‖g*‖² | MSE | SSIM |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [
            f"| {r['data']} | {'near the truth' if r['near'] else 'noise'} | {r['lr']:g} | {r['steps']} "
            f"| {sorted(r['relative_loss'])[len(r['relative_loss']) // 2]:.1e} | {r['mse']:.1e} | {r['ssim']:.3f} |"
            for r in tried
        ]
    lines += ["", "| closed form, architecture A | SSIM |", "|---|---|"]
    lines += [
        f"| {r['setting']} | {'refused: ' + r['refused'] if r['refused'] else format(r['ssim'], '.3f')} |"
        for r in rows
        if r["part"] == "closed form"
    ]
    found = {(r["positions"], r["architecture"]): r for r in rows if r["part"] == "accuracy"}
    if not found:
        return "\n".join(lines)
    lines += ["", study.trained(rows)]
    lines += ["", "| positions | accuracy, architecture B | accuracy, architecture A |", "|---|---|---|"]
    for kind in dict.fromkeys(k for k, _ in found):
        cells = [spread(found[kind, a]["each"]) if (kind, a) in found else "not run" for a in "BA"]
        lines.append(f"| {kind} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Mean, and the sample deviation where there are several runs."""
    mean = study.mean(values)
    if len(values) < 2:
        return f"{mean:.1%}"
    return f"{mean:.1%} ± {100 * math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)):.1f}"


if __name__ == "__main__":
    study.main(Part("positions", run, draw), __doc__, unscaled=partial(draw, suffix=study.UNSCALED))
