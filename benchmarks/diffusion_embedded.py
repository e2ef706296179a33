"""Studies of the diffusion prior that one CPU core does in minutes, on the embedded VGG (batch normalisation, trained on Fashion-MNIST).

    python -m benchmarks.diffusion_embedded defenses modes priors --out FILE [--mnist mnist.npz]

``defenses``: each defense, known to the adversary, with and without the prior. ``modes``: batches of 1 and 4, in eval mode and in train
mode with shared statistics. ``priors``: priors of all classes, of five of them, and of handwritten digits (MNIST), trained alike. Images
are the first ones of the audit; no setting was chosen on them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.json_lines import print_and_append
from leakgauge.attacks import diffusion, falling_variation, inverting_gradients
from leakgauge.attacks.diffusion import Learning, WithDiffusion
from leakgauge.audit.case import Case
from leakgauge.audit.cause import Client, explain
from leakgauge.audit.scoring import ALIKE, score
from leakgauge.audit.session import embedded
from leakgauge.channels import DPSGD, Gradient
from leakgauge.core import Buffers, Channel, Defended, Defense, Mode, Observation, Reconstruction, Size, Victim, share
from leakgauge.data.embedded import fashion
from leakgauge.defenses import GaussianNoise, Prune, Quantize, Signs, Withhold
from leakgauge.inversion import Guided, Staged, Strongest
from leakgauge.priors import fit_diffusion

DEFENSES: dict[str, tuple[Channel, tuple[Defense, ...]]] = {
    "none": (Gradient(), ()),
    "noise 1": (Gradient(), (GaussianNoise(relative=1.0),)),
    "pruned 99 %": (Gradient(), (Prune(0.99),)),
    "2 bits": (Gradient(), (Quantize(2),)),
    "head withheld": (Gradient(), (Withhold("head"),)),
    "DP-SGD, clip 1, noise 0.001": (DPSGD(clip=1.0, noise=0.001), ()),
    "signs": (Gradient(), (Signs(),)),
    "noise 0.1": (Gradient(), (GaussianNoise(relative=0.1),)),
    "pruned 90 %": (Gradient(), (Prune(0.9),)),
    "4 bits": (Gradient(), (Quantize(4),)),
    "DP-SGD, clip 1, noise 0.01": (DPSGD(clip=1.0, noise=0.01), ()),
    "8 bits": (Gradient(), (Quantize(8),)),
}
Any = WithDiffusion | Staged | Guided
Shared = list[tuple[Observation, Tensor, Tensor]]


class Rows:
    def __init__(self, out: Path, quick: bool) -> None:
        self.out, self.quick = out, quick
        out.write_text(json.dumps({"torch": torch.__version__, "device": "cpu", "threads": 1, "seed": 0}) + "\n")

    def attack(self, study: str, name: str, attack: Any, victim: Victim, shared: Shared, **facts: object) -> None:
        """One row; batches of one in one search."""
        began = time.perf_counter()
        seen = [one for one, _, _ in shared]
        if isinstance(attack, Guided) or seen[0].size != 1:
            found = [attack(victim, one, seed=0) for one in seen]
        else:
            found = attack.many(victim, seen, seed=0)
        seconds = time.perf_counter() - began
        nothing = attack.blind().many(victim, seen, seed=0)
        scores = [score(one, x, y, space=victim.space) for one, (_, x, y) in zip(found, shared, strict=True)]
        blind = [score(one, x, y, space=victim.space) for one, (_, x, y) in zip(nothing, shared, strict=True)]
        each = [s for one in scores for s in one.ssim]
        row = {
            "study": study,
            "attack": name,
            **facts,
            "images": len(each),
            "ssim": statistics.mean(each),
            "psnr": statistics.mean(p for one in scores for p in one.psnr),
            "each_ssim": [round(s, 4) for s in each],
            "null": statistics.mean(s for one in blind for s in one.ssim),
            "causes": _causes(attack, victim, found, nothing, shared),
            "seconds": round(seconds, 1),
        }
        print_and_append(self.out, row)

    def both(self, study: str, victim: Victim, shared: Shared, **facts: object) -> None:
        steps, plain = (20, 20) if self.quick else (100, 200)
        prior = diffusion(prior="fashion", steps=steps, restarts=2)
        self.attack(study, "diffusion", prior, victim, shared, **facts)
        if victim.mode == "train":
            matching = inverting_gradients(tv=0.1, steps=2 * plain, along=True)
            self.attack(study, "inverting_gradients", Guided(matching, Strongest(), 0.1), victim, shared, **facts)
        else:
            self.attack(study, "falling_variation", falling_variation(steps=plain), victim, shared, **facts)


def _causes(
    attack: Any, victim: Victim, found: Sequence[Reconstruction], nothing: Sequence[Reconstruction], shared: Shared
) -> dict[str, int]:
    why: dict[str, int] = {}
    for one, null, (seen, x, y) in zip(found, nothing, shared, strict=True):
        cause = "found"
        if score(one, x, y, space=victim.space).mean("ssim") < ALIKE:
            client = Client(y, seen.channel, None)
            cause = explain(attack, victim, seen, one, x, client, nothing=null, thorough=False).cause.value
        why[cause] = why.get(cause, 0) + 1
    return why


def shared_by(mode: Mode, batch: int, images: int, defense: str = "none") -> tuple[Victim, Shared]:
    setup = embedded(Case(model="vgg", batch_size=batch, mode=mode))
    channel, defenses = DEFENSES[defense]
    reveal = (Size(), *((Defended(),) if defenses else ()), *((Buffers(),) if mode == "train" else ()))
    made: Shared = []
    for first in range(0, images, batch):
        x, y = (
            setup.victim.space.encode(setup.images[first : first + batch]),
            setup.labels[first : first + batch],
        )
        sent = channel.reseed(first) if isinstance(channel, DPSGD) else channel
        seen = share(setup.victim, sent, x, y, defenses=defenses, reveal=reveal, secret=first)
        made.append((seen, x, y))
    return setup.victim, made


def defenses(rows: Rows, mnist: Path | None) -> None:
    for name in list(DEFENSES)[:2] if rows.quick else DEFENSES:
        rows.both("defenses", *shared_by("eval", 1, 1 if rows.quick else 4, name), defense=name)


def modes(rows: Rows, mnist: Path | None) -> None:
    settings: tuple[tuple[Mode, int], ...] = (("eval", 4), ("train", 4), ("eval", 1), ("train", 1))
    for mode, batch in settings:
        images = batch if rows.quick else 8 if batch > 1 else 4
        rows.both("modes", *shared_by(mode, batch, images), mode=mode, batch=batch)


def priors(rows: Rows, mnist: Path | None) -> None:
    images, labels = fashion("train")
    kinds: dict[str, tuple[Tensor, Tensor | None]] = {
        "all classes": (images, labels),
        "classes 0 to 4": (images[labels < 5], labels[labels < 5]),
    }
    if mnist is not None:
        with np.load(mnist) as kept:
            kinds["handwritten digits"] = (torch.from_numpy(kept["x_train"][: len(images), None]).float() / 255, None)
    victim, shared = shared_by("eval", 1, 1 if rows.quick else 8)
    for kind, (own, known) in kinds.items():
        known = known if known is None else known.long()
        steps = 5 if rows.quick else 400
        began = time.perf_counter()
        prior = fit_diffusion(own, labels=known, classes=None if known is None else 10, width=32, steps=steps)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "prior.safetensors"
            prior.save(file)
            attack = diffusion(prior="fashion", steps=20 if rows.quick else 100, restarts=2)
            attack = replace(attack, learning=Learning(str(file)))
            facts = {"prior": kind, "public": len(own), "training": steps, "unexplained": prior.trained.unexplained[3]}
            facts["training_seconds"] = round(time.perf_counter() - began, 1)
            rows.attack("priors", "diffusion", attack, victim, shared, **facts)
    rows.attack("priors", "falling_variation", falling_variation(steps=20 if rows.quick else 200), victim, shared)


STUDIES = {"defenses": defenses, "modes": modes, "priors": priors}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=tuple(STUDIES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mnist", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = Rows(given.out, given.quick)
    for name in given.studies:
        STUDIES[name](rows, given.mnist)


if __name__ == "__main__":
    main()
