"""What fused kernels save in a step of an attack on ViT-B/16: plain and fused in turn, several rounds, in one run.

    python -m benchmarks.fused [--images 6] [--rounds 5] [--steps 20] [--out FILE]

Each image has a target of its own, as in ``Matching.many``; a step is the replay, the distance and its slope in the image, in TF32 as a
CUDA graph. On a CPU nothing is fused: there the script only shows that it runs (--quick).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.json_lines import write_lines
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.engine import TF32, ByRules, Fused, Observed, Precision, RecordedStep, Replay
from leakgauge.models.vit import ViT

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def distance(name: str, replay: Replay) -> Tensor:
    weights = dict.fromkeys(replay.names, 1.0)
    if name == "cosine":
        return 1 - replay.dot(weights) / (replay.square(weights) * replay.observed_square(weights)).sqrt()
    return replay.l2(weights) if name == "squared" else replay.l2(weights) + 0.1 * replay.l1(weights)


def stepper(
    victim: Victim, observed: Observed, x: Tensor, y: Tensor, name: str, precision: Precision
) -> Callable[[], Tensor]:
    """A step that leaves its slope in one tensor, recorded where there is a GPU."""
    replay, at, slope = ByRules(victim, observed), x.clone().requires_grad_(), torch.zeros_like(x)

    def step() -> None:
        with precision.inside(DEVICE):
            slope.copy_(torch.autograd.grad(distance(name, replay(at, y)).sum(), at)[0])

    run = RecordedStep(step) if DEVICE.type == "cuda" else step

    def again() -> Tensor:
        run()
        return slope

    return again


def seconds(step: Callable[[], Tensor], steps: int) -> float:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="a tiny model, one step")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    side = 32 if given.quick else 224
    width, depth, heads = (192, 2, 3) if given.quick else (768, 12, 12)
    vit = ViT(
        in_channels=3, side=side, patch=16, width=width, depth=depth, heads=heads, classes=1000, qkv_bias=False, position_std=1.0,
    )  # fmt: skip
    victim = Victim(vit.to(DEVICE), Pixels((3, side, side)))
    torch.manual_seed(0)
    x = torch.rand(given.images, 1, 3, side, side, device=DEVICE)
    y = torch.arange(given.images, device=DEVICE)[:, None]
    seen = [share(victim, Gradient(), one, label).signal for one, label in zip(x, y, strict=True)]
    observed = Observed({name: torch.stack([one[name] for one in seen]) for name in seen[0]}, per_row=True)
    start = torch.randn(x.shape, device=DEVICE)
    lines = []
    for name in ("squared", "squared and absolute", "cosine"):
        steps, first = {}, {}
        for kind, precision in (("plain", TF32()), ("fused", Fused(TF32()))):
            steps[kind] = stepper(victim, observed, start, y, name, precision)
            began = time.perf_counter()
            for _ in range(1 if given.quick else 5):  # the steps before the recording, and the recording
                steps[kind]()
            first[kind] = time.perf_counter() - began
        slopes = {kind: step().double() for kind, step in steps.items()}
        off = float((slopes["fused"] - slopes["plain"]).norm() / slopes["plain"].norm())
        rounds = [
            {kind: seconds(step, 1 if given.quick else given.steps) for kind, step in steps.items()}
            for _ in range(given.rounds)
        ]
        ratios = sorted(one["plain"] / one["fused"] for one in rounds)
        lines.append(
            {
                "distance": name,
                "images": given.images,
                "plain_ms": round(1e3 * statistics.median(one["plain"] for one in rounds), 3),
                "fused_ms": round(1e3 * statistics.median(one["fused"] for one in rounds), 3),
                "times_faster": round(statistics.median(ratios), 3),
                "least": round(ratios[0], 3),
                "most": round(ratios[-1], 3),
                "slope_off": off,
                "seconds_before": {kind: round(value, 1) for kind, value in first.items()},
                "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
                "torch": str(torch.__version__),
            }
        )
        print(json.dumps(lines[-1]), flush=True)
    write_lines(given.out, lines)


if __name__ == "__main__":
    main()
