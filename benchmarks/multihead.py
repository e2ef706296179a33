"""What layer rules save on models built on ``nn.MultiheadAttention``, against vmap and against the plain reference, in one run.

    python -m benchmarks.multihead [--restarts 1,8] [--rounds 5] [--seconds 2] [--quick] [--out FILE]

A step is the replay of all restarts, the cosine distance and its slope in the images. The three ways alternate in one process; ratios
are of the same round, given as median with the lowest and the highest. CPU time of the process on a CPU. Our own ViT of the same size,
which calls linear layers and attention itself, stands beside them. Needs torch and numpy; one row also needs torchvision.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.engine import DEVICE, Case, prepared, rounds
from benchmarks.json_lines import write_lines
from leakgauge.channels import Gradient
from leakgauge.core import Victim
from leakgauge.engine import ByRules, Observed, Reference, Replay, VmapReplay
from leakgauge.integrations.torchvision_guest import invite_torchvision
from leakgauge.models.vit import ViT

SIDE, PATCH, HEADS = 32, 4, 6


class OnEncoder(nn.Module):
    """A vision transformer on ``nn.TransformerEncoder``, samples or positions first."""

    def __init__(self, width: int, depth: int, *, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        positions = (SIDE // PATCH) ** 2
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.positions = nn.Parameter(torch.randn((1, positions, width) if batch_first else (positions, 1, width)))
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 4 * width, activation="gelu", batch_first=batch_first, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).permute((0, 2, 1) if self.batch_first else (2, 0, 1))
        return self.head(self.encoder(tokens + self.positions).mean(1 if self.batch_first else 0))


def of_torchvision(width: int, depth: int) -> nn.Module:
    invite_torchvision()
    from torchvision.models import VisionTransformer

    model = VisionTransformer(SIDE, PATCH, depth, HEADS, width, 4 * width, num_classes=10)
    for parameter in model.heads.parameters():  # torchvision starts them at zero, and no gradient gets through
        nn.init.normal_(parameter, std=0.02)
    return model


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "torchvision's VisionTransformer": of_torchvision,
    "nn.TransformerEncoder, batch_first": lambda width, depth: OnEncoder(width, depth, batch_first=True),
    "nn.TransformerEncoder, positions first": lambda width, depth: OnEncoder(width, depth, batch_first=False),
    "our ViT": lambda width, depth: ViT(
        in_channels=3, side=SIDE, patch=PATCH, width=width, depth=depth, heads=HEADS, classes=10
    ),
}


def stepper(replay: Callable[[Tensor, Tensor], Replay], x: Tensor, y: Tensor, slope: Tensor) -> Callable[[], None]:
    """A step that leaves its derivative in ``slope``."""
    at = x.clone().requires_grad_()

    def step() -> None:
        found = replay(at, y)
        weights = dict.fromkeys(found.names, 1.0)
        cosine = found.dot(weights) / (found.square(weights) * found.observed_square(weights)).sqrt()
        slope.copy_(torch.autograd.grad((1 - cosine).sum(), at)[0])

    return step


def ways(victim: Victim, observed: Observed) -> dict[str, Callable[[Tensor, Tensor], Replay]]:
    return {
        "rules": ByRules(victim, observed),
        "vmap": VmapReplay(victim, Gradient(), observed),
        "reference": Reference(victim, Gradient(), observed),
    }


def measured(name: str, rows: int, *, width: int, depth: int, count: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    victim, _, y, observed = prepared(Case(lambda: MODELS[name](width, depth), SIDE))
    x = torch.randn(rows, 1, *victim.space.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    all_ways = ways(victim, observed)
    slopes = {way: torch.zeros_like(x) for way in all_ways}
    steps = {way: stepper(replay, x, y.expand(rows, -1), slopes[way]) for way, replay in all_ways.items()}
    taken = rounds(steps, count=count, seconds=seconds)
    off = float((slopes["rules"] - slopes["reference"]).norm() / slopes["reference"].norm())
    line: dict[str, Any] = {"model": name, "restarts": rows, "width": width, "depth": depth, "rounds": count}
    for other in ("vmap", "reference"):
        ratios = sorted(theirs / ours for theirs, ours in zip(taken[other], taken["rules"], strict=True))
        line[f"times_faster_than_{other}"] = [round(v, 2) for v in (statistics.median(ratios), ratios[0], ratios[-1])]
    line |= {f"{way}_ms": round(1e3 * statistics.median(values), 1) for way, values in taken.items()}
    return line | {
        "slope_off": off,
        "device": torch.cuda.get_device_name()
        if DEVICE.type == "cuda"
        else f"CPU, {torch.get_num_threads()} thread(s)",
        "torch": str(torch.__version__),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", default="1,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="length of one round of one way")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="narrow models, two short rounds")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.width, given.depth, given.rounds, given.seconds = 48, 2, 2, 0.1
    lines = []
    for name in MODELS:
        for rows in map(int, given.restarts.split(",")):
            lines.append(
                measured(name, rows, width=given.width, depth=given.depth, count=given.rounds, seconds=given.seconds)
            )
            print(json.dumps(lines[-1]), flush=True)
    write_lines(given.out, lines)


if __name__ == "__main__":
    main()
