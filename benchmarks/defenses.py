"""What each defense leaves to an adversary who does not know it (static) and to one who does (adaptive), with the default attack.

    python -m benchmarks.defenses [--weights trained] [--first 210] [--images 2] [--steps 400] [--train 60] [--only prune:0.99 …]

Embedded CNN in eval mode, a batch of one (MixUp: of two), ``strongest``. Every trial is one of the question *defenses* of an audit, so SSIM
and verdict are those of ``leakgauge audit --only defenses``; accuracy and membership are measured on the first image's trial
(Soteria's with ``--releases 8``: it takes a derivative for each feature).
``--weights fresh`` takes untrained weights, as early in training. Rows are appended to ``--out``; those that it holds are not made again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from leakgauge.audit import Case, embedded
from leakgauge.audit.control import fresh
from leakgauge.audit.questions.defense_records import Trial, protected
from leakgauge.audit.questions.defenses import run_trials
from leakgauge.audit.session import Setup

GRID = (
    "gaussian_noise:relative=1.0",
    "gaussian_noise:relative=10.0",
    "layer_noise:3",
    "prune:0.9",
    "prune:0.99",
    "gradient_dropout:0.9",
    "quantize:4",
    "quantize:2",
    "sign",
    "withhold:head",
    "dpsgd:clip=1.0,noise=0.1",
    "soteria:0.8",
    "precode:64",
    "transformed:rotate=25,shear=0.2,shift=0.1",
    "mixup:0.7",
)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--weights", choices=("trained", "fresh"), default="trained")
    words.add_argument("--first", type=int, default=210)
    words.add_argument("--images", type=int, default=2)
    words.add_argument("--steps", type=int, default=400)
    words.add_argument("--train", type=int, default=60)
    words.add_argument("--releases", type=int, default=128)
    words.add_argument("--only", nargs="+", default=list(GRID))
    words.add_argument("--out", type=Path, default=Path("benchmarks/results/defenses_cpu.jsonl"))
    asked = words.parse_args()
    setups: dict[str, Setup] = {}

    def load(case: Case) -> Setup:
        if case.mode not in setups:
            setup = embedded(case)
            if asked.weights == "fresh":
                model = fresh(setup.victim.model, seed=1, device=setup.victim.device)
                setup = replace(setup, victim=replace(setup.victim, model=model))
            setups[case.mode] = setup
        return setups[case.mode]

    known = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {(row["weights"], row["defense"], row["image"], row["steps"]) for row in known}
    for spec in asked.only:
        for number in range(asked.images):
            image = asked.first + number
            if (asked.weights, spec, image, asked.steps) in done:
                continue
            size = 2 if spec.startswith("mixup") else 1
            base = Case(first=image, batch_size=size, options={"steps": asked.steps})
            train = 0 if number or asked.weights == "fresh" else asked.train
            trials = [Trial(protected(base, some), train, releases=asked.releases) for some in ((), (spec,))]
            with tempfile.TemporaryDirectory() as folder:
                plain, found = run_trials(trials, load=load, folder=Path(folder))
            row = {
                "weights": asked.weights, "defense": spec, "image": image, "steps": asked.steps, "batch": size,
                "status": found.status, "reason": found.reason, "undefended": plain.ssim, "adaptive": found.ssim,
                "adaptive_verdict": found.verdict and found.verdict.outcome.label,
                "adaptive_cause": found.test and found.test.cause,
                "static": found.static and found.static.ssim,
                "static_verdict": found.static and found.static.verdict.outcome.label,
                "static_cause": found.static and found.static.verdict.cause,
                "epsilon": found.epsilon, "auc": found.auc, "cost": found.cost, "seconds": round(found.seconds),
            }  # fmt: skip
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
