"""Why attacks on trained CIFAR-10 residual networks fail: the cause and the control of every verdict.

    python -m benchmarks.causes --data FOLDER --weights FOLDER [--depth 20 --depth 56] [--images 16] [--steps 60] [--out FILE]

``FOLDER`` holds ``cifar10_test.zip``, and ``cifar10_resnet20.safetensors`` and ``cifar10_resnet56.safetensors``. One image each, eval
mode, labels given, ``inverting_gradients`` with a weight of total variation of 0.01; all images of a network are attacked in one batch.
Steps are few, for a CPU. So whether they are enough is not asked, and every negative is judged by its truth test and its control.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from leakgauge.attacks import inverting_gradients
from leakgauge.audit.cause import Client
from leakgauge.audit.control import Controls
from leakgauge.audit.evaluate import assess
from leakgauge.audit.session import one_of_each_class
from leakgauge.audit.wording import rule
from leakgauge.channels import Gradient
from leakgauge.core import Labels, Observation, Reconstruction, Size, Victim, share
from leakgauge.inversion import Matching
from reproductions.common.networks.cifar_resnet import load_cifar_resnet
from reproductions.common.sheets import sheets


@dataclass(frozen=True, eq=False)
class Known:
    """An attack that has been run already."""

    found: Reconstruction
    matching: Matching

    def blind(self) -> Matching:
        return self.matching.blind()

    def objective_at(self, *given: Any, seed: int = 0) -> float:
        return self.matching.objective_at(*given, seed=seed)

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        return self.found


def rows(depth: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    model, space = load_cifar_resnet(options.weights / f"cifar10_resnet{depth}.safetensors")
    victim = Victim(model, space, name=f"resnet{depth}")
    images, labels = sheets(options.data / "cifar10_test.zip", 1000)
    order = one_of_each_class(labels)[: options.images]
    x, y = space.encode(images[order]), labels[order]
    attack = inverting_gradients(steps=options.steps, tv=0.01)
    seen = [share(victim, Gradient(), x[i : i + 1], y[i : i + 1], reveal=(Size(), Labels())) for i in range(len(x))]
    began = time.perf_counter()
    found = attack.many(victim, seen)
    seconds = time.perf_counter() - began
    controls = Controls()

    def control_of(_: object, victim: Victim, seen: Observation, /, *, starts: bool) -> Any:
        return controls(attack, victim, seen, x[:1], y[:1], starts=starts)

    for i, (one, made) in enumerate(zip(seen, found, strict=True)):
        truth, label = x[i : i + 1], y[i : i + 1]
        judged = partial(assess, Known(made, attack), victim, one, truth, label)
        result = judged(client=Client(label, Gradient(), None), control_of=control_of)
        yield {
            "model": victim.name, "image": int(order[i]), "label": int(label), "steps": options.steps, "seed": 0,
            "outcome": result.outcome.label, "cause": result.verdict.cause, "rule": rule(result.verdict),
            "ssim": result.scores.mean("ssim"), "null_ssim": result.null.mean("ssim"),
            "test": None if result.test is None else asdict(result.test),
            "control": None if result.control is None else {**asdict(result.control), "reach": result.control.reach},
            "attack_seconds": round(seconds / len(x), 2),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--depth", type=int, action="append", choices=(20, 56))
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for depth in options.depth or (20, 56):
        for row in rows(depth, options):
            print(
                f"{row['model']} image {row['image']}: {row['outcome']}, {row['cause']}, SSIM {row['ssim']:.2f}",
                flush=True,
            )
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
