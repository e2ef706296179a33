"""What TF32 and bfloat16 do to the final reconstruction: the same attack on the same ten images in each precision.

    python -m benchmarks.precision [--steps 500] [--restarts 4] [--out FILE]

On a CPU TF32 changes nothing; the figures of docs/engine.md are from a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.engine import DEVICE, PRECISIONS
from benchmarks.json_lines import write_lines
from leakgauge.attacks import inverting_gradients
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.measures.image import psnr, ssim
from leakgauge.models.pretrained import pretrained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    images, labels = fashion("test")
    images, labels = images[:10], labels[:10]
    space = Pixels((1, 28, 28), mean=MEAN, std=STD)
    victim = Victim(pretrained("cnn").to(DEVICE), space)
    x, y = space.encode(images).to(DEVICE), labels.to(DEVICE)
    seen = [share(victim, Gradient(), x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    lines = []
    for name, precision in PRECISIONS.items():
        attack = replace(
            inverting_gradients(steps=options.steps, restarts=options.restarts, tv=0.01), precision=precision
        )
        began = time.perf_counter()
        found = attack.many(victim, seen)
        guesses = space.decode(torch.cat([one.x for one in found])).cpu()
        quality = psnr(guesses, images)
        lines.append(
            {
                "precision": name,
                "psnr_mean": round(float(quality.mean()), 2),
                "psnr_lowest": round(float(quality.min()), 2),
                "ssim_mean": round(float(ssim(guesses, images).mean()), 4),
                "seconds": round(time.perf_counter() - began, 1),
                "notes": found[0].notes,
                "steps": options.steps,
                "restarts": options.restarts,
                "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
            }
        )
        print(json.dumps(lines[-1]), flush=True)
    write_lines(options.out, lines)


if __name__ == "__main__":
    main()
