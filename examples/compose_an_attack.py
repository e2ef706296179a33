"""Put an attack together from parts, and see what one part is worth.

python examples/compose_an_attack.py [--quick]
"""

from __future__ import annotations

import argparse

from leakgauge import Pixels, Victim, share
from leakgauge.audit import score
from leakgauge.channels import FedAvg
from leakgauge.data import MEAN, STD, fashion
from leakgauge.inversion import (
    Adam,
    BatchNormStatistics,
    Cosine,
    CosineDecay,
    Descent,
    Matching,
    Sign,
    TotalVariation,
    Uniform,
)
from leakgauge.inversion.terms import Term
from leakgauge.models.pretrained import pretrained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    steps = 15 if parser.parse_args().quick else 500

    victim = Victim(pretrained("cnn"), Pixels((1, 28, 28), mean=MEAN, std=STD), name="cnn")
    images, labels = fashion("test")
    x, y = victim.space.encode(images[:1]), labels[:1]
    seen = share(victim, FedAvg(steps=2, lr=0.01), x, y)  # two local steps, the weight update is sent

    objectives: dict[str, Term] = {
        "cosine alone": Cosine(),
        "with total variation": Cosine() + 0.01 * TotalVariation(),
        "and batch-norm statistics": Cosine() + 0.01 * TotalVariation() + 0.001 * BatchNormStatistics(),
    }
    for name, objective in objectives.items():
        solver = Descent(Adam(0.1), steps, gradient=(Sign(),), schedule=CosineDecay())
        attack = Matching(objective, start=Uniform(), solver=solver, name=name)
        scores = score(attack(victim, seen, seed=0), x, y, space=victim.space)
        print(f"PSNR {scores.psnr[0]:5.1f} dB   SSIM {scores.ssim[0]:6.3f}   {attack.objective!r}")


if __name__ == "__main__":
    main()
