"""Put an attack together from parts, and see what each part is worth.

    python examples/compose_an_attack.py [--quick] [--out FOLDER]

An attack is an objective (a distance and priors, written like its equation), a start and a solver. Here one weight update of two
local steps is attacked three times. Look at the distance: the direction of an update tells far more than its length. The
strip shows the original and the three reconstructions. Full: 400 steps. Quick: 100. About 22 s, quick 8 s, on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from leakgauge import Pixels, Victim, share
from leakgauge.audit import score
from leakgauge.audit.files import save_strip
from leakgauge.channels import FedAvg
from leakgauge.data import MEAN, STD, fashion
from leakgauge.inversion import L2, Adam, Cosine, CosineDecay, Descent, Matching, Sign, TotalVariation, Uniform
from leakgauge.models.pretrained import pretrained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-compose_an_attack"), help="run folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    victim = Victim(pretrained("cnn"), Pixels((1, 28, 28), mean=MEAN, std=STD), name="cnn")
    images, labels = fashion("test")
    x, y = victim.space.encode(images[:1]), labels[:1]
    seen = share(victim, FedAvg(steps=2, lr=0.01), x, y)  # two local steps, the weight update is sent

    steps = 100 if options.quick else 400
    plain = Descent(Adam(0.1), steps, schedule=CosineDecay())
    signed = Descent(Adam(0.1), steps, gradient=(Sign(),), schedule=CosineDecay())
    attacks = [
        Matching(L2(), start=Uniform(), solver=plain, name="squared distance"),
        Matching(Cosine(), start=Uniform(), solver=plain, name="cosine distance"),
        Matching(
            Cosine() + 0.01 * TotalVariation(), start=Uniform(), solver=signed, name="cosine, smooth, signed steps"
        ),
    ]
    psnr: dict[str, float] = {}
    strip = [images[:1]]
    for attack in attacks:
        found = attack(victim, seen, seed=0)
        psnr[attack.name] = score(found, x, y, space=victim.space).psnr[0]
        strip.append(victim.space.decode(found.x))
        print(f"{attack.name}: PSNR {psnr[attack.name]:.1f} dB   {attack.objective!r}")
    print(f"picture: {options.out / save_strip(options.out, 'original-and-attacks', torch.cat(strip))}")

    squared, cosine, prior = psnr.values()
    print(
        f"Finding: matching the direction instead of the values of the update is worth {cosine - squared:+.1f} dB, "
        f"a smooth prior with signed steps {prior - cosine:+.1f} dB on top."
    )


if __name__ == "__main__":
    main()
