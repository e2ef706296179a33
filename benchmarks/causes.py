"""Why attacks on trained CIFAR-10 residual networks fail: the cause and the control of every verdict.

    python -m benchmarks.causes --data FOLDER --weights FOLDER [--depth 20 --depth 56] [--images 16] [--steps 2400] [--restarts 4]
        [--out FILE]                                                                       for a GPU
    python -m benchmarks.causes --quick            half a minute on one core, no data needed: crops of the embedded photographs

``FOLDER`` holds ``cifar10_test.zip``, and ``cifar10_resnet20.safetensors`` and ``cifar10_resnet56.safetensors``. One image each, eval
mode, labels given, ``inverting_gradients`` with a weight of total variation of 0.01; all images of a network and their null runs are
attacked in one batch each. Below the steps that :func:`earns_negative` asks for (480), whether they are enough is not asked, and every
negative is judged by its truth test and its control.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.json_lines import append_lines
from leakgauge.attacks import inverting_gradients
from leakgauge.audit.cause import Client
from leakgauge.audit.control import Controls
from leakgauge.audit.evaluate import assess
from leakgauge.audit.session import one_of_each_class
from leakgauge.audit.wording import rule
from leakgauge.channels import Gradient
from leakgauge.core import Labels, Observation, Pixels, Reconstruction, Size, Victim, share
from leakgauge.data.embedded import photographs
from leakgauge.inversion import Matching
from reproductions.common.networks.cifar_resnet import CifarResNet, load_cifar_resnet
from reproductions.common.sheets import sheets


@dataclass(frozen=True, eq=False)
class Known:
    """An attack that has been run already."""

    found: Reconstruction
    matching: Matching

    def objective_at(self, *given: Any, seed: int = 0) -> float:
        return self.matching.objective_at(*given, seed=seed)

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        return self.found


def crops() -> tuple[Tensor, Tensor]:
    """Crops of photographs in place of CIFAR-10, to see the script run."""
    tiles = photographs(224).unfold(2, 32, 32).unfold(3, 32, 32).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 32, 32)
    return tiles, torch.arange(len(tiles)) % 10


def rows(depth: int, options: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    if options.quick:
        model, space = CifarResNet(depth=8, width=4), Pixels((3, 32, 32))
        images, labels = crops()
    else:
        model, space = load_cifar_resnet(options.weights / f"cifar10_resnet{depth}.safetensors")
        images, labels = sheets(options.data / "cifar10_test.zip", 1000)
    victim = Victim(model.to(device), space, name=f"resnet{depth}")
    order = one_of_each_class(labels)[: options.images]
    x, y = victim.to_input(space.encode(images[order])), labels[order].to(device)
    attack = inverting_gradients(steps=options.steps, tv=0.01, restarts=options.restarts)
    seen = [share(victim, Gradient(), x[i : i + 1], y[i : i + 1], reveal=(Size(), Labels())) for i in range(len(x))]
    began = time.perf_counter()
    found = attack.many(victim, seen)
    seconds = time.perf_counter() - began
    nothing = attack.blind().many(victim, seen)
    controls = Controls()

    def control_of(_: object, victim: Victim, seen: Observation, /, *, starts: bool) -> Any:
        return controls(attack, victim, seen, x[:1], y[:1], starts=starts)

    for i, (one, made, null) in enumerate(zip(seen, found, nothing, strict=True)):
        truth, label = x[i : i + 1], y[i : i + 1]
        judged = partial(assess, Known(made, attack), victim, one, truth, label, nothing=null)
        result = judged(client=Client(label, Gradient(), None), control_of=control_of)
        yield {
            "model": victim.name, "image": int(order[i]), "label": int(label), "steps": options.steps, "restarts": options.restarts,
            "seed": 0, "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "torch": torch.__version__,
            "outcome": result.outcome.label, "cause": result.verdict.cause, "rule": rule(result.verdict),
            "ssim": result.scores.mean("ssim"), "null_ssim": result.null.mean("ssim"),
            "test": None if result.test is None else asdict(result.test),
            "control": None if result.control is None else {**asdict(result.control), "reach": result.control.reach},
            "attack_seconds": round(seconds / len(x), 2),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--depth", type=int, action="append", choices=(20, 56))
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.images, options.steps, options.restarts = 2, 40, 1
    elif options.data is None or options.weights is None:
        parser.error("give --data FOLDER and --weights FOLDER, or --quick")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for depth in options.depth or (20, 56):
        for row in rows(depth, options, device):
            print(
                f"{row['model']} image {row['image']}: {row['outcome']}, {row['cause']}, SSIM {row['ssim']:.2f}",
                flush=True,
            )
            append_lines(options.out, row)


if __name__ == "__main__":
    main()
