"""What a generative prior adds: `generative_prior` beside `inverting_gradients`, and beside what its generator makes without any signal.

python -m benchmarks.generative [--images 4] [--out FILE] [--cases PART]   half an hour on one core; PART is in the names of the cases
python -m benchmarks.generative --quick              a minute, to see it run
python -m benchmarks.generative --show FILE [FILE …]   the table of what was measured

The embedded networks, trained, on test images that the generator has not seen; it learns from 900 others, which `--own` changes. Both
attacks have 400 steps; the prior's last quarter is among pixels, in one row none. Every row is a mean over the same images.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.json_lines import read_lines, write_lines
from leakgauge.attacks import generative_prior, inverting_gradients
from leakgauge.audit.case import Case
from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import score
from leakgauge.audit.session import embedded
from leakgauge.channels import Gradient
from leakgauge.core import Auxiliary, Defense, Size, share
from leakgauge.defenses import GaussianNoise, Prune

CASES: dict[str, tuple[str, int, Sequence[Defense]]] = {
    "cnn": ("cnn", 1, ()),
    "vgg": ("vgg", 1, ()),
    "vit": ("vit", 1, ()),
    "cnn, batch of 4": ("cnn", 4, ()),
    "vit, batch of 4": ("vit", 4, ()),
    "cnn, noise as long as the gradient": ("cnn", 1, (GaussianNoise(relative=1.0),)),
    "vit, noise as long as the gradient": ("vit", 1, (GaussianNoise(relative=1.0),)),
    "cnn, 99 % pruned": ("cnn", 1, (Prune(0.99),)),
    "vit, 99 % pruned": ("vit", 1, (Prune(0.99),)),
}
NULL = "generator alone"


def measured(name: str, *, images: int, own: int, quick: bool) -> list[dict[str, object]]:
    """One row for each attack on this case."""
    model, batch, defenses = CASES[name]
    setup = embedded(Case(model=model, batch_size=batch))
    victim, encode = setup.victim, setup.victim.space.encode
    reveal = (Size(), Auxiliary(encode(setup.images[-own:])))
    steps, learned = (20, {"epochs": 2}) if quick else (400, {})
    prior = generative_prior(steps=steps, **learned)
    attacks = {
        "inverting_gradients": inverting_gradients(steps=steps),
        "generative_prior": prior,
        "generative_prior, pixels=0": generative_prior(steps=steps, pixels=0, **learned),
    }
    rows: dict[str, list[tuple[float, float]]] = {}
    for first in range(0, images * batch, batch):
        x, y = encode(setup.images[first : first + batch]), setup.labels[first : first + batch]
        seen = share(victim, Gradient(), x, y, defenses=defenses, reveal=reveal, secret=first)
        found = {attack: one(victim, seen, seed=0) for attack, one in attacks.items()}
        found[NULL] = null_run(prior, victim, seen, seed=0)
        for attack, one in found.items():
            quality = score(one, x, y, space=victim.space)
            rows.setdefault(attack, []).extend(zip(quality.psnr, quality.ssim, strict=True))
    return [
        {
            "case": name, "attack": attack, "images": len(each), "own": own, "steps": steps,
            "psnr": statistics.mean(p for p, _ in each), "ssim": statistics.mean(s for _, s in each),
            "each_ssim": [round(s, 4) for _, s in each],
        }
        for attack, each in rows.items()
    ]  # fmt: skip


def table(rows: Sequence[dict[str, object]]) -> str:
    names = list(dict.fromkeys(str(row["attack"]) for row in rows))
    lines = [f"| SSIM (PSNR in dB) | images | {' | '.join(names)} |", "|---|" + "---|" * (len(names) + 1)]
    for case in dict.fromkeys(row["case"] for row in rows):
        own = {row["attack"]: row for row in rows if row["case"] == case}
        cells = [f"{own[name]['ssim']:.2f} ({own[name]['psnr']:.1f})" if name in own else "–" for name in names]
        lines.append(f"| {case} | {next(iter(own.values()))['images']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--images", type=int, default=4, help="observations of each case")
    parser.add_argument("--own", type=int, default=900, help="images that the generator learns from")
    parser.add_argument("--cases", default="", help="only those whose name has this in it")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="+")
    given = parser.parse_args()
    if given.show:
        print(table([row for path in given.show for row in read_lines(path) if "case" in row]))
        return
    cases = ("cnn", "vit, 99 % pruned") if given.quick else [name for name in CASES if given.cases in name]
    rows = []
    for name in cases:
        rows += measured(
            name, images=1 if given.quick else given.images, own=40 if given.quick else given.own, quick=given.quick
        )
        facts = {"torch": torch.__version__, "device": "cpu", "seed": 0}
        write_lines(given.out, (facts, *rows))
    print(table(rows))


if __name__ == "__main__":
    main()
