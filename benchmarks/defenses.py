"""What each defense leaves to an adversary who does not know it (static) and to one who does (adaptive), with the default attack.

    python -m benchmarks.defenses [--weights trained] [--first 240] [--images 3] [--steps 600] [--train 60] [--only prune:0.99 …]
        [--batch 1] [--attack strongest] [--reveal size]

Embedded CNN in eval mode, a batch of one (MixUp, InstaHide: of two), ``strongest``. Every trial is one of the question *defenses* of an
audit, so SSIM and verdict are those of ``leakgauge audit --only defenses``; accuracy and membership are measured on the first image's
trial (Soteria's with ``--releases 8``: it takes a derivative for each feature). Local work (``local:epochs=20``) is no defense of that
question: there *static* is the same attack as if the change of weights were one gradient.
``--weights fresh`` takes untrained weights, as early in training. Rows are appended to ``--out``; those that it holds are not made again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.json_lines import append_lines, kept_lines
from leakgauge.audit import Case, embedded
from leakgauge.audit.control import fresh
from leakgauge.audit.evaluate import assess
from leakgauge.audit.questions.defense_records import Trial, protected
from leakgauge.audit.questions.defenses import run_trials
from leakgauge.audit.run import attack_case
from leakgauge.audit.session import Load, Setup
from leakgauge.channels import Gradient

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
    "transformed:rotate=-40,shear=0,shift=0.05",
    "transformed:rotate=0,shear=0.4,shift=0.15,invert=true",
    "mixup:0.7",
    "instahide:0.65",
    "local:epochs=20",
    "local:epochs=5,steps=4",
)

KEY = ("weights", "defense", "image", "steps", "batch", "attack", "reveal")
"""What identifies a row."""


def trial(base: Case, spec: str, load: Load, train: int, releases: int) -> dict[str, Any]:
    """One trial of the question *defenses*."""
    trials = [Trial(protected(base, some), train, releases=releases) for some in ((), (spec,))]
    with tempfile.TemporaryDirectory() as folder:
        plain, found = run_trials(trials, load=load, folder=Path(folder))
    return {
        "status": found.status, "reason": found.reason, "undefended": plain.ssim, "adaptive": found.ssim,
        "adaptive_verdict": found.verdict and found.verdict.outcome.label,
        "adaptive_cause": found.test and found.test.cause,
        "static": found.static and found.static.ssim,
        "static_verdict": found.static and found.static.verdict.outcome.label,
        "static_cause": found.static and found.static.verdict.cause,
        "epsilon": found.epsilon, "auc": found.auc, "cost": found.cost, "seconds": round(found.seconds),
    }  # fmt: skip


def local_work(base: Case, spec: str, load: Load) -> dict[str, Any]:
    """The attack that replays the local steps, and the one that takes their sum for a gradient."""
    began = time.perf_counter()
    given = [one.split("=") for one in spec.removeprefix("local:").split(",")]
    setup, case = load(base), replace(base, **{f"local_{name}": int(value) for name, value in given}, name="")
    seen, (x, y) = setup.observation(case), setup.private(case)
    one_step = replace(seen, channel=Gradient(), signal={name: -value for name, value in seen.signal.items()})
    plain, found = (attack_case(one, setup) for one in (base, case))
    static = assess(
        case.build_attack(), setup.victim, one_step, x, y, seed=case.seed, pool=setup.pool(case), client=setup.client(case),
        defenses=(),
    )  # fmt: skip
    return {
        "status": "done", "reason": "", "undefended": plain.scores.mean("ssim"), "adaptive": found.scores.mean("ssim"),
        "adaptive_verdict": found.verdict.outcome.label, "adaptive_cause": found.test and found.test.cause,
        "static": static.scores.mean("ssim"), "static_verdict": static.verdict.outcome.label,
        "static_cause": static.verdict.cause, "epsilon": None, "auc": None, "cost": None,
        "seconds": round(time.perf_counter() - began),
    }  # fmt: skip


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--weights", choices=("trained", "fresh"), default="trained")
    words.add_argument("--first", type=int, default=240)
    words.add_argument("--images", type=int, default=3)
    words.add_argument("--steps", type=int, default=600)
    words.add_argument("--batch", type=int)
    words.add_argument("--attack", default="strongest")
    words.add_argument("--reveal", nargs="+", default=["size"])
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

    known = kept_lines(asked.out)
    plainest = {"attack": "strongest", "reveal": ["size"]}
    done = {json.dumps([{**plainest, **row}[name] for name in KEY]) for row in known}
    for spec in asked.only:
        size = asked.batch or (2 if spec.startswith(("mixup", "instahide")) else 1)
        for number in range(asked.images):
            image = asked.first + number * size
            row: dict[str, Any] = {
                "weights": asked.weights, "defense": spec, "image": image, "steps": asked.steps, "batch": size,
                "attack": asked.attack, "reveal": asked.reveal,
            }  # fmt: skip
            if json.dumps([row[name] for name in KEY]) in done:
                continue
            base = Case(
                attack=asked.attack,
                first=image,
                batch_size=size,
                options={"steps": asked.steps},
                reveal=tuple(asked.reveal),
            )
            train = 0 if number or asked.weights == "fresh" else asked.train
            row |= (
                local_work(base, spec, load)
                if spec.startswith("local")
                else trial(base, spec, load, train, asked.releases)
            )
            append_lines(asked.out, row)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
