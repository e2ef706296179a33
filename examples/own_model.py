"""Audit a model of your own: what could a server read out of one shared gradient?

python examples/own_model.py [--quick]
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from leakgauge import Pixels, Victim, share
from leakgauge.attacks import inverting_gradients
from leakgauge.audit import judge, score
from leakgauge.audit.run import null_run
from leakgauge.audit.scoring import trivial_baseline
from leakgauge.channels import Gradient
from leakgauge.data import photographs


def my_model() -> nn.Module:
    """Put your own here; any ``torch.nn.Module`` that maps images to class scores will do."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(24, 24, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 8 * 8, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    steps = 100 if parser.parse_args().quick else 2000

    space = Pixels((3, 32, 32), mean=(0.5,), std=(0.25,))  # what the model takes: (image - mean) / std
    victim = Victim(my_model(), space)
    images, labels = photographs(32)[:1], torch.tensor([3])  # your private data, values in [0, 1]

    x = space.encode(images)
    seen = share(victim, Gradient(), x, labels)  # all that leaves the device
    attack = inverting_gradients(steps=steps, tv=0.01)
    found = attack(victim, seen)  # the attack gets the observation, never x
    nothing = null_run(attack, victim, seen, seed=0)  # the same attack without the gradient

    scores = score(found, x, labels, space=space)
    null = score(nothing, x, labels, space=space)
    verdict = judge(scores, null, trivial_baseline(images), seen.assumptions)
    print(f"attack   PSNR {scores.psnr[0]:5.1f} dB   SSIM {scores.ssim[0]:.3f}   label found: {found.y}")
    print(f"null run PSNR {null.psnr[0]:5.1f} dB   SSIM {null.ssim[0]:.3f}")
    print(f"verdict: {verdict.outcome} ({verdict.kind}): {verdict.rule}")


if __name__ == "__main__":
    main()
