"""What an adversary gains by knowing the defense.

    python -m benchmarks.defended [--images 6] [--first 200] [--seeds 0] [--steps 800] [--defenses prune:0.9 …] [--out FILE]

Embedded CNN in eval mode, a batch of one, ``inverting_gradients`` (tv 0.01), or the ``--attack`` NAME:option=value,… with its own
steps. Every update is attacked twice with the same steps, start and seed: *static*, as if it had not been defended, and *adaptive*,
with the defense revealed (``Defended``). The settings of ``inversion/defended.py`` were chosen on images 0 to 5 and 100 to 103; these
are images 200 and following.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.json_lines import append_lines
from leakgauge.attacks import diffusion, generative_prior, inverting_gradients
from leakgauge.audit import Case, embedded
from leakgauge.audit.scoring import pair_images
from leakgauge.audit.specs import made_from
from leakgauge.core import Attack, Defended, Size, share

GRID = ("prune:0.9", "prune:0.99", "quantize:4", "quantize:2", "sign", "gaussian_noise:relative=1.0")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--images", type=int, default=6)
    words.add_argument("--first", type=int, default=200)
    words.add_argument("--seeds", type=int, nargs="+", default=[0])
    words.add_argument("--steps", type=int, default=800)
    words.add_argument("--model", default="cnn")
    words.add_argument("--attack", default="")
    words.add_argument("--defenses", nargs="+", default=list(GRID))
    words.add_argument("--out", type=Path, default=Path("benchmarks/results/defended_cpu.jsonl"))
    asked = words.parse_args()
    setup = embedded(Case(model=asked.model))
    victim, matching = setup.victim, inverting_gradients(tv=0.01, steps=asked.steps)
    attack: Attack = matching
    if asked.attack:
        attack = made_from(asked.attack, {"diffusion": diffusion, "generative_prior": generative_prior}, kind="attack")
    for spec in asked.defenses:
        for seed in asked.seeds:
            row = {"model": asked.model, "defense": spec, "seed": seed, "steps": asked.steps, "images": asked.images}
            row |= {"first": asked.first, "attack": asked.attack or "inverting_gradients"}
            for name, reveal in (("static", (Size(),)), ("adaptive", (Size(), Defended()))):
                cases = [
                    Case(model=asked.model, defenses=(spec,), first=asked.first + i, seed=seed)
                    for i in range(asked.images)
                ]
                pairs = [setup.private(case) for case in cases]
                seen = [
                    share(victim, case.build_channel(), x, y, defenses=case.build_defenses(), reveal=reveal, seed=seed)
                    for case, (x, y) in zip(cases, pairs, strict=True)
                ]
                began = time.perf_counter()
                found = (
                    [attack(victim, one, seed=seed) for one in seen]
                    if asked.attack
                    else matching.many(victim, seen, seed=seed)
                )
                row[f"{name}_seconds"] = round(time.perf_counter() - began, 1)
                row[name] = [
                    round(pair_images(victim.space.decode(one.x), victim.space.decode(x)).scores.mean("ssim") or 0.0, 4)
                    for one, (x, _) in zip(found, pairs, strict=True)
                ]
                row[f"{name}_mean"] = round(sum(row[name]) / len(row[name]), 4)
            append_lines(asked.out, row)
            print(row["defense"], seed, row["static_mean"], row["adaptive_mean"], flush=True)


if __name__ == "__main__":
    main()
