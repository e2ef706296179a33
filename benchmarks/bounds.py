"""Attacks beside what no attack can exceed, under DP-SGD.

    python -m benchmarks.bounds [--parts NAME ...] [--out FILE]
    python -m benchmarks.bounds --from FILE

Parts: ``membership`` (200 runs: the likelihood-ratio test for one sample at 10 % false positives, the attack that the bound is tight for),
``candidates`` (naming one of 10 images, each with its real gradient, by the largest likelihood: no test is right more often)
and ``imprint`` (a malicious server that reads one image off the first layer, against the law of reconstruction from scratch).

Each trial is a batch of 4 embedded images through ``DPSGD.release`` with its own noise, ``steps`` times at the same weights; the adversary
knows the three other images. A run is ``TRIALS`` trials; ``low`` is the lower end of the exact 99 % interval of its rate.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.json_lines import read_lines, write_lines
from leakgauge.attacks import imprint
from leakgauge.audit.evaluate import observe
from leakgauge.channels import DPSGD
from leakgauge.channels.gradient import each_gradient
from leakgauge.channels.rows import clip_rows
from leakgauge.core import Pixels, Victim
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.measures.first_layer import from_scratch_psnr
from leakgauge.measures.intervals import clopper_pearson
from leakgauge.measures.rero import GaussianSteps, reconstruction_bound
from leakgauge.models import pretrained
from leakgauge.servers import ImprintServer

SPACE = Pixels((1, 28, 28), mean=MEAN, std=STD)
TRIALS, RUNS, CLIP = 200, 200, 0.01
PRIOR = 0.1
SETTINGS = tuple((ratio, steps) for ratio in (0.25, 0.5, 1.0, 2.0, 3.0) for steps in (1, 10, 100))
NOISES = (0.002, 0.005, 0.01, 0.02, 0.05)


def small_victim(seed: int) -> Victim:
    """A network with few weights, so that a hundred releases of its gradient are quick to draw."""
    torch.manual_seed(seed)
    return Victim(nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(49, 10)), SPACE, name="pooled")


def clipped_gradients(victim: Victim, rows: Tensor) -> Tensor:
    """The clipped gradient of each image (n, d)."""
    images, labels = fashion("test")
    x, y = SPACE.encode(images[rows]), labels[rows]
    each = each_gradient(victim, x, y, parameters=victim.parameters(), buffers=victim.buffers())
    return torch.cat([value.flatten(1) for value in clip_rows(each, CLIP).values()], 1).detach()


def released(own: Tensor | None, others: Tensor, channel: DPSGD, steps: int, rng: torch.Generator) -> Tensor:
    """The sum over ``steps`` releases of what is left of a batch's gradient without the samples that the adversary knows."""
    batch = others if own is None else torch.cat([others, own[None]])
    total = torch.zeros(others.shape[1])
    for _ in range(steps):
        total += len(batch) * channel.release({"g": batch}, rng)["g"] - others.sum(0)
    return total


def membership(run: int) -> dict[str, Any]:
    ratio, steps = SETTINGS[run % len(SETTINGS)]
    noise, rng = math.sqrt(steps) / ratio, torch.Generator().manual_seed(run)
    channel, victim = DPSGD(clip=CLIP, noise=noise), small_victim(run)
    gradients = clipped_gradients(victim, torch.randperm(1000, generator=rng)[:4])
    own, others = gradients[0], gradients[1:]
    limit = math.sqrt(steps) * noise * CLIP * float(torch.special.ndtri(torch.tensor(1 - PRIOR, dtype=torch.float64)))
    hits = 0
    for _ in range(TRIALS):
        seen = released(own, others, channel, steps, rng)
        hits += float(seen @ own / own.norm()) > limit
    return rated("membership", ratio, steps, noise, run, hits)


def candidates(run: int) -> dict[str, Any]:
    ratio, steps = SETTINGS[run % len(SETTINGS)]
    noise, rng = math.sqrt(steps) / ratio, torch.Generator().manual_seed(run)
    channel, victim = DPSGD(clip=CLIP, noise=noise), small_victim(run)
    gradients = clipped_gradients(victim, torch.randperm(1000, generator=rng)[:13])
    others, known = gradients[:3], gradients[3:]
    hits = 0
    for _ in range(TRIALS):
        drawn = int(torch.randint(len(known), (1,), generator=rng))
        seen = released(known[drawn], others, channel, steps, rng)
        fit = known @ seen - steps * known.square().sum(1) / 2
        hits += int(fit.argmax()) == drawn
    return rated("candidates", ratio, steps, noise, run, hits)


def rated(part: str, ratio: float, steps: int, noise: float, run: int, hits: int) -> dict[str, Any]:
    bound = reconstruction_bound(GaussianSteps(noise, steps=steps), PRIOR)
    low = clopper_pearson(hits, TRIALS, level=0.99)[0]
    return {
        "part": part, "ratio": ratio, "steps": steps, "noise": round(noise, 4), "seed": run, "trials": TRIALS, "hits": hits,
        "low": round(low, 4), "bound": round(bound, 4), "passes": low > bound,
    }  # fmt: skip


def imprinted() -> Iterator[dict[str, Any]]:
    images, _ = fashion("test")
    for name in ("cnn", "vgg"):
        sent = ImprintServer(bins=64, gain=1e6)(Victim(pretrained(name), SPACE, name=name))
        for noise in NOISES:
            reached, expected = [], []
            for number in range(20):
                image = images[number : number + 1]
                x, y = SPACE.encode(image), torch.tensor([0])
                seen = observe(sent, DPSGD(noise=noise, seed=number), x, y)
                found = imprint(norm=float(x.norm()))(sent, seen)
                error = float((SPACE.decode(found.x) - image).square().mean())
                reached.append(-10 * math.log10(error))
                expected.append(float(from_scratch_psnr(image, noise * x.flatten(1).norm(dim=1)[:, None] * STD[0])))
            psnr, law = sum(reached) / len(reached), sum(expected) / len(expected)
            yield {
                "part": "imprint",
                "model": name,
                "noise": noise,
                "images": 20,
                "psnr": round(psnr, 2),
                "law": round(law, 2),
            }


def named(ratio: float, candidates: int = 10) -> tuple[float, float]:
    """How often the largest likelihood names one of ``candidates`` with gradients as long as clipping allows: orthogonal ones, and the
    corners of a regular simplex, which are as far apart as can be.

        ∫ φ(x − r) Φ(x)^(M−1) dx,  with r = √T/σ, or that times √(M / (M − 1)) for the simplex
    """
    x = torch.linspace(-10, 10 + 2 * ratio, 20001, dtype=torch.float64)
    below = torch.special.ndtr(x) ** (candidates - 1)

    def rate(r: float) -> float:
        return float(torch.trapezoid(torch.exp(-((x - r) ** 2) / 2) / math.sqrt(2 * math.pi) * below, x))

    return rate(ratio), rate(ratio * math.sqrt(candidates / (candidates - 1)))


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    for part in ("membership", "candidates"):
        own = [row for row in rows if row["part"] == part]
        if own:
            yield f"{part}: {sum(row['passes'] for row in own)} of {len(own)} runs have a lower limit above the bound"
        for setting in SETTINGS:
            here = [row for row in own if (row["ratio"], row["steps"]) == setting]
            if here:
                rate = sum(row["hits"] for row in here) / sum(row["trials"] for row in here)
                bound = here[0]["bound"]
                yield f"  √T/σ = {setting[0]:g}, T = {setting[1]}: {rate:.3f}, bound {bound:.3f}, gap {bound - rate:.3f}"
    if any(row["part"] == "candidates" for row in rows):
        for ratio in dict.fromkeys(ratio for ratio, _ in SETTINGS):
            bound = reconstruction_bound(GaussianSteps(1 / ratio), PRIOR)
            orthogonal, simplex = named(ratio)
            yield f"  the best test, √T/σ = {ratio:g}: orthogonal gradients {orthogonal:.3f}, a simplex {simplex:.3f}, bound {bound:.3f}"
    for row in rows:
        if row["part"] == "imprint":
            yield f"imprint, {row['model']}, σ = {row['noise']:g}: {row['psnr']:.2f} dB, law {row['law']:.2f} dB"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", nargs="+", default=["membership", "candidates", "imprint"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/bounds_cpu.jsonl"))
    parser.add_argument("--from", dest="source", type=Path, help="print the summary of an earlier --out file and stop")
    options = parser.parse_args()
    if options.source is not None:
        print("\n".join(summary(read_lines(options.source))))
        return
    rows: list[dict[str, Any]] = []
    if "membership" in options.parts:
        rows += [membership(run) for run in range(RUNS)]
    if "candidates" in options.parts:
        rows += [candidates(run) for run in range(len(SETTINGS) * 2)]
    if "imprint" in options.parts:
        rows += imprinted()
    write_lines(options.out, rows)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
