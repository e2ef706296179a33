"""What a diffusion prior adds: `diffusion` and `diffusion_guided` with the embedded prior, and what it draws without any signal.

python -m benchmarks.diffusion [--images 4] [--out FILE] [--cases PART]   about ten minutes on one core; PART is in the names of the cases
python -m benchmarks.diffusion --quick              half a minute, to see it run
python -m benchmarks.diffusion --speed              seconds for 8 restarts of 100 steps, attack by attack
python -m benchmarks.diffusion --parts [--cases vit] [--out FILE]   what each part of the attack adds, on images 20 to 23
python -m benchmarks.diffusion --show FILE [FILE …]   the table of what was measured

The cases and images are those of `benchmarks.generative`, whose rows can be shown beside these. The prior learned from 57,000 images that
are not attacked; its options were chosen on other images than the first four (see :func:`leakgauge.attacks.diffusion`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import generative
from benchmarks.generative import table
from benchmarks.json_lines import read_lines, write_lines
from leakgauge.attacks import diffusion, diffusion_guided
from leakgauge.attacks.diffusion import WithDiffusion
from leakgauge.audit.case import Case
from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import score
from leakgauge.audit.session import embedded
from leakgauge.channels import Gradient
from leakgauge.core import Attack, Size, share
from leakgauge.inversion import Cosine, FixedLength, Sampling

PRIOR = "fashion"
NULL = "prior alone"


CASES = generative.CASES | {"vgg, batch of 4": ("vgg", 4, ())}


def attacks(steps: int, restarts: int) -> Mapping[str, WithDiffusion]:
    """Ours, the paper's, and the step of fixed length; all with as many replays and restarts."""
    ours = diffusion(prior=PRIOR, steps=steps, restarts=restarts)
    plain = replace(ours.matching, objective=Cosine(), solver=Sampling(guidance=FixedLength(), steps=steps))
    return {
        "diffusion": ours,
        "diffusion_guided": diffusion_guided(prior=PRIOR, steps=steps, restarts=restarts),
        "step of fixed length": replace(ours, matching=plain),
    }


def measured(name: str, *, images: int, steps: int, restarts: int, only: str = "") -> list[dict[str, object]]:
    """One row for each attack on this case."""
    model, batch, defenses = CASES[name]
    setup = embedded(Case(model=model, batch_size=batch))
    victim, encode = setup.victim, setup.victim.space.encode
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for first in range(0, images * batch, batch):
        x, y = encode(setup.images[first : first + batch]), setup.labels[first : first + batch]
        seen = share(victim, Gradient(), x, y, defenses=defenses, reveal=(Size(),), secret=first)
        made = {name: one for name, one in attacks(steps, restarts).items() if only in ("", name)}
        found = {attack: one(victim, seen, seed=0) for attack, one in made.items()}
        if "diffusion" in made:
            found[NULL] = null_run(made["diffusion"], victim, seen, seed=0)
        for attack, one in found.items():
            quality = score(one, x, y, space=victim.space)
            rows.setdefault(attack, []).extend(
                (p, s, one.loss) for p, s in zip(quality.psnr, quality.ssim, strict=True)
            )
    return [
        {
            "case": name, "attack": attack, "images": len(each), "steps": steps, "restarts": restarts,
            "psnr": statistics.mean(p for p, _, _ in each), "ssim": statistics.mean(s for _, s, _ in each),
            "each_ssim": [round(s, 4) for _, s, _ in each], "each_loss": [round(v, 4) for _, _, v in each],
        }
        for attack, each in rows.items()
    ]  # fmt: skip


TUNED_ON = range(20, 24)


def parts(model: str) -> list[dict[str, object]]:
    """Mean SSIM with one more part of the attack in each row, on the images that its options were chosen on; all in one batch."""
    setup = embedded(Case(model=model))
    victim, encode = setup.victim, setup.victim.space.encode
    pairs = [(encode(setup.images[i : i + 1]), setup.labels[i : i + 1]) for i in TUNED_ON]
    seen = [share(victim, Gradient(), x, y, reveal=(Size(),)) for x, y in pairs]
    whole, more = diffusion(prior=PRIOR), diffusion(prior=PRIOR, steps=500, refine=0.6)
    features = diffusion(prior=PRIOR, select=0.0)
    plain = replace(features.matching, objective=Cosine(), along=False)
    tried = {
        "replaying the loss": replace(whole, matching=plain),
        "along the output's gradient": replace(whole, matching=replace(plain, along=True)),
        "features at the head": features,
        "the worst restarts give way": whole,
        "300 more steps on pixels": more,
    }
    rows: list[dict[str, object]] = []
    for name, attack in tried.items():
        found = attack.many(victim, seen, seed=0)
        each = [score(one, x, y, space=victim.space).mean("ssim") for one, (x, y) in zip(found, pairs, strict=True)]
        row = {"parts": model, "attack": name, "ssim": statistics.mean(each), "each_ssim": [round(s, 4) for s in each]}
        rows.append({**row, "each_loss": [round(one.loss, 5) for one in found]})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def speed(model: str) -> list[dict[str, object]]:
    """Seconds of 8 restarts of 100 steps on one image, without the training of the prior."""
    setup = embedded(Case(model=model))
    x, y = setup.victim.space.encode(setup.images[:1]), setup.labels[:1]
    seen = share(setup.victim, Gradient(), x, y)
    rows: list[dict[str, object]] = []
    each: Mapping[str, Attack] = attacks(100, 8)
    for name, attack in each.items():
        began = time.perf_counter()
        attack(setup.victim, seen, seed=0)
        rows.append({"speed": model, "attack": name, "seconds": round(time.perf_counter() - began, 1)})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--images", type=int, default=4, help="observations of each case")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--only", default="", help="only this attack (and the prior alone, beside diffusion)")
    parser.add_argument("--cases", default="", help="only those whose name has this in it")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if given.show:
        print(table([row for path in given.show for row in read_lines(path) if "case" in row]))
        return
    facts = {"torch": torch.__version__, "device": "cpu", "threads": 1, "seed": 0}
    rows: list[dict[str, object]] = []
    if given.speed:
        for model in ("vit", "vgg"):
            rows += speed(model)
        print(*map(json.dumps, rows), sep="\n")
    elif given.parts:
        for model in [given.cases] if given.cases else ("vgg", "vit"):
            rows += parts(model)
            write_lines(given.out, (facts, *rows))
    else:
        chosen = [given.cases] if given.cases in CASES else [name for name in CASES if given.cases in name]
        names = ["vgg"] if given.quick else chosen
        size = {"images": 1, "steps": 20, "restarts": 1} if given.quick else vars(given)
        for name in names:
            rows += measured(
                name, images=size["images"], steps=size["steps"], restarts=size["restarts"], only=given.only
            )
            write_lines(given.out, (facts, *rows))
        print(table(rows))
    write_lines(given.out, (facts, *rows))


if __name__ == "__main__":
    main()
