"""Whether an audit keeps its budget: the time that it takes beside the time it was given, the time for planning and what was left out.

python -m benchmarks.budget [--budgets 60 120 300 600] [--only embedded resnet8 timm] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge import run_audit
from leakgauge.audit import plan
from leakgauge.audit.questions import answers
from leakgauge.audit.whole import Watcher
from leakgauge.core import Pixels, Victim
from leakgauge.data import fashion
from leakgauge.data.embedded import MEAN, STD
from leakgauge.integrations.timm import load
from leakgauge.models.pretrained import pretrained


class Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.past = nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.two(self.one(x)) + self.past(x))


def resnet8() -> nn.Module:
    """78 thousand parameters on 32×32 images."""
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def smooth_images(count: int, side: int) -> Tensor:
    """Colour images that are not noise: coarse random fields, enlarged."""
    rng = torch.Generator().manual_seed(0)
    return nn.functional.interpolate(torch.rand(count, 3, 6, 6, generator=rng), side, mode="bicubic").clamp(0, 1)


def embedded() -> tuple[Victim, Any, dict[str, Any]]:
    images, labels = fashion("test")
    return Victim(pretrained("cnn"), Pixels((1, 28, 28), mean=MEAN, std=STD), name="cnn"), (images, labels), {}


def residual() -> tuple[Victim, Any, dict[str, Any]]:
    torch.manual_seed(0)
    data = (smooth_images(200, 32), torch.arange(200) % 10)
    return (
        Victim(resnet8(), Pixels((3, 32, 32)), name="resnet8"),
        data,
        {"batch_size": 32, "local_steps": 5, "local_lr": 0.1},
    )


def timm_224() -> tuple[Victim, Any, dict[str, Any]]:
    model, _ = load("resnet10t", classes=10)
    data = (smooth_images(80, 224), torch.arange(80) % 10)
    return Victim(model, Pixels((3, 224, 224)), name="resnet10t"), data, {}


MODELS: dict[str, Callable[[], tuple[Victim, Any, dict[str, Any]]]] = {
    "embedded": embedded,
    "resnet8": residual,
    "timm": timm_224,
}


class UntilPlanned(Watcher):
    """Notes the processor time at which the plan was made; on a busy machine the wall clock says more about the others."""

    cpu = 0.0

    def planned(self, estimates: Mapping[str, float]) -> None:
        self.cpu = time.process_time()


def measured(name: str, seconds: float) -> dict[str, Any]:
    victim, data, options = MODELS[name]()
    with tempfile.TemporaryDirectory() as folder:
        began, worked, watcher = time.perf_counter(), time.process_time(), UntilPlanned()
        run = run_audit(victim, data, budget=f"{seconds:g}s", out=folder, watcher=watcher, **options)
        taken, cpu = time.perf_counter() - began, time.process_time() - worked
        made, said = plan.read(Path(folder)), answers.read(Path(folder))
        assert isinstance(made, plan.Plan)
        return {
            "model": name,
            "budget": seconds,
            "taken": round(taken, 1),
            "share": round(taken / seconds, 2),
            "planning": made.planning,
            "planning_cpu": round(watcher.cpu - worked, 1),
            "cpu": round(cpu, 1),
            "load": round(os.getloadavg()[0], 1),
            "steps": sorted({int(case.options.get("steps", 0)) for case in made.cases}),
            "verdicts": [None if r.outcome is None else r.outcome.value for r in run.records if r.change is None],
            "left_out": [*made.notes, *(f"{q}: {a.reason}" for q, a in said.items() if a.status != "answered")],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=float, nargs="+", default=[60, 120, 300, 600], help="in seconds")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--out", type=Path, help="file to append a line of JSON per run to")
    options = parser.parse_args()
    for name in options.only:
        for seconds in options.budgets:
            line = json.dumps(measured(name, seconds))
            print(line, flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(f"{line}\n")


if __name__ == "__main__":
    main()
