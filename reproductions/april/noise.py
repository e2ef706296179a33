"""Fig. 6: the closed form under Gaussian and Laplacian noise that is measured against the gradient's norm.

    python -m reproductions.april.noise

The paper writes "variance = c × gradient norm". Read literally, σ² = c·‖g‖ (``literal``). The other reading makes the noise, as a
vector, c times as long as the gradient (``length``); it does not change with the number of parameters. Both are measured,
on ViT-Base of architecture A; the length reading over a wider range, to find where the attack breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from leakgauge.attacks import april_closed_form
from leakgauge.core import Observation
from leakgauge.defenses import GaussianNoise, LaplacianNoise
from reproductions.april import study
from reproductions.april.attention_variants import as_asked
from reproductions.april.study import Options
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.runner import Part, Pictures, Row, Rows

Noise = GaussianNoise | LaplacianNoise
KINDS: dict[str, Callable[..., Noise]] = {"Gaussian": GaussianNoise, "Laplacian": LaplacianNoise}
PAPER = {"Gaussian": (0.1, 1.0, 3.0, 10.0), "Laplacian": (0.01, 0.1, 1.0, 3.0)}
DRAWN = (
    "Gaussian length 0", "Gaussian length 0.001", "Gaussian length 0.01", "Gaussian length 0.1", "Gaussian length 1",
    "Laplacian length 0.01", "Laplacian length 0.1", "Gaussian literal 0.1",
)  # fmt: skip
LENGTHS = (1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)


def needed(name: str) -> bool:
    """What the closed form reads; noise on anything else changes nothing, so it is not drawn."""
    return name in ("pos_embed", "blocks.0.attn.qkv.weight") or name.startswith("head.")


def defended(seen: Observation, noise: Noise, *, seed: int) -> Observation:
    """The observation with noise of the deviation that the whole gradient calls for."""
    exact = type(noise)(std=noise.deviation(seen.signal))
    part = {name: value for name, value in seen.signal.items() if needed(name)}
    return replace(seen, signal=exact(part, rng=torch.Generator().manual_seed(seed)))


def run(options: Options, results: Rows) -> None:
    images = study.large(options, options.count(4))
    model = as_asked(study.base_model(images, architecture="A", quick=options.quick, seed=options.seed), options)
    victim, space = study.victim_of(model, images, options.device), study.space_of(images)
    clean = study.observed(victim, images)
    results.keep("original", images.x)
    for kind, make in KINDS.items():
        cases = [("literal", c, make(variance_to_norm=c)) for c in PAPER[kind]]
        lengths = sorted({0.0, *PAPER[kind], *((1e-3, 0.1) if options.quick else LENGTHS)})
        cases += [("length", c, make(relative=c)) for c in lengths]
        for reading, factor, noise in cases[:: 4 if options.quick else 1]:
            name = f"{kind} {reading} {factor:g}"
            if results.has(name):
                continue
            found = [
                april_closed_form()(victim, defended(seen, noise, seed=options.seed + i))
                for i, seen in enumerate(clean)
            ]
            if name in DRAWN:
                results.keep(name, study.shown(found, space))
            results.add(
                name,
                kind=kind,
                reading=reading,
                factor=factor,
                deviation=study.mean([noise.deviation(seen.signal) for seen in clean]),
                data=images.name,
                **study.measured(found, images),
            )


def draw(rows: list[Row], pictures: Pictures, out: Path, *, suffix: str = "") -> None:
    lines = [
        Line(
            f"{kind}, {words}",
            [(r["factor"], r["ssim"]) for r in rows if r["kind"] == kind and r["reading"] == reading],
        )
        for reading, words in (("length", "c times as long as the gradient"), ("literal", "variance c times the norm"))
        for kind in KINDS
    ]
    title = "Noise against the closed form" + (", logits not divided" if suffix else "")
    panel = Panel(title, "c", "SSIM", lines, log_x=True, bounds=(0, 1))
    svg(out / f"noise{suffix}.svg", [panel], title="SSIM of the closed form under noise")
    shown = [(name, pictures[name]) for name in ("original", *DRAWN) if name in pictures]
    if shown:
        words = {" length": ", length", " literal": ", variance"}
        grid(out / f"noise{suffix}.png", [(reworded(name, words), images) for name, images in shown])


def reworded(name: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        name = name.replace(old, new)
    return name


def table(rows: list[Row]) -> str:
    lines = [
        "| noise | c | paper | SSIM, noise c times as long | SSIM, variance c times the norm |",
        "|---|---|---|---|---|",
    ]
    found = {(r["kind"], r["reading"], r["factor"]): r["ssim"] for r in rows}
    for kind in KINDS:
        for factor in sorted({f for k, _, f in found if k == kind}):
            cells = [found.get((kind, reading, factor)) for reading in ("length", "literal")]
            words = ["not run" if v is None else f"{v:.3f}" for v in cells]
            lines.append(f"| {kind} | {factor:g} | {verdict(kind, factor)} | {words[0]} | {words[1]} |")
    return "\n".join(lines)


def verdict(kind: str, factor: float) -> str:
    """What the paper says of this strength, where it shows it."""
    if factor not in PAPER[kind]:
        return "not shown"
    return "does not defend" if factor <= PAPER[kind][0] else "defends, the more the larger"


if __name__ == "__main__":
    study.main(Part("noise", run, draw), __doc__, unscaled=partial(draw, suffix=study.UNSCALED))
