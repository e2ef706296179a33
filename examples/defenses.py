"""Compare defenses on the embedded network: how much of the image is left in what is sent?

python examples/defenses.py [--quick]
"""

from __future__ import annotations

import argparse

from leakgauge import Defense, Inapplicable, Pixels, Victim, share
from leakgauge.attacks import inverting_gradients
from leakgauge.audit import score
from leakgauge.channels import Gradient
from leakgauge.data import MEAN, STD, fashion
from leakgauge.defenses import Clip, GaussianNoise, Prune, Quantize, Withhold
from leakgauge.models.pretrained import pretrained

DEFENSES: list[tuple[Defense, ...]] = [
    (),
    (Quantize(4),),
    (Prune(0.9),),
    (GaussianNoise(relative=1.0),),
    (GaussianNoise(relative=10.0),),
    (Clip(1.0), GaussianNoise(std=0.01)),
    (Withhold(("first_layer",)),),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    steps = 20 if parser.parse_args().quick else 500

    victim = Victim(pretrained("cnn"), Pixels((1, 28, 28), mean=MEAN, std=STD), name="cnn")
    images, labels = fashion("test")
    x, y = victim.space.encode(images[:1]), labels[:1]
    attack = inverting_gradients(steps=steps, tv=0.01)
    for defenses in DEFENSES:
        named = " + ".join(map(repr, defenses)) or "nothing"
        seen = share(victim, Gradient(), x, y, defenses=defenses)
        try:
            scores = score(attack(victim, seen), x, y, space=victim.space)
            print(f"PSNR {scores.psnr[0]:5.1f} dB   SSIM {scores.ssim[0]:6.3f}   {named}")
        except Inapplicable as reason:  # a refusal is a result of its own, not a low score
            print(f"refused: {reason}   {named}")


if __name__ == "__main__":
    main()
