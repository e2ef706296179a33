"""Does the fast path reconstruct the same images as the reference? Final images after 50 steps, and step directions.

    python -m benchmarks.same_reconstruction [--cases convnet,vit] [--steps 50] [--out FILE]

For each model: the largest difference of the final candidates (in image values) from the same starts, and the cosine
between the two derivatives at the solution plus noise of 1e-3, for cosine, l2 and l1.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.engine import CASES, DEVICE, prepared
from benchmarks.json_lines import write_lines
from leakgauge.channels import Gradient
from leakgauge.core import Victim
from leakgauge.engine import ByRules, Exact, Reference, Replayer
from leakgauge.inversion import L1, L2, Adam, Cosine, Descent, TotalVariation
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.solvers import Moving
from leakgauge.inversion.terms import Candidate, Term

TERMS: dict[str, Term] = {"cosine": Cosine(), "l2": L2(), "l1": L1()}


def final(victim: Victim, replay: Replayer, start: Tensor, y: Tensor, steps: int) -> Tensor:
    x = start.clone().requires_grad_()
    objective = Cosine() + 1e-3 * TotalVariation()

    def losses(candidates: Tensor, logits: Tensor | None, rows: object) -> Tensor:
        return objective(Candidate(candidates, victim, replay(candidates, y)))

    move = Descent(Adam(0.01), steps).begin(Moving(x=x, losses=losses, space=victim.space, draws=Draws.of(len(x))))
    for number in range(steps):
        move(number)
    return victim.space.decode(x.detach())


def direction(term: Term, victim: Victim, replay: Replayer, at: Tensor, y: Tensor) -> Tensor:
    x = at.clone().requires_grad_()
    total = term(Candidate(x, victim, replay(x, y))).sum()
    return torch.autograd.grad(total, x)[0].flatten(1).double()


def compare(name: str, steps: int, rows: int = 2) -> dict[str, object]:
    victim, x, y, observed = prepared(CASES[name])
    fast, slow = ByRules(victim, observed), Reference(victim, Gradient(), observed)
    labels = y.expand(rows, -1)
    rng = torch.Generator().manual_seed(2)
    start = torch.stack([victim.space.start(len(y), rng) for _ in range(rows)]).to(DEVICE)
    apart = (final(victim, fast, start, labels, steps) - final(victim, slow, start, labels, steps)).abs()
    near = x + 1e-3 * torch.stack([victim.space.start(len(y), rng) for _ in range(rows)]).to(DEVICE)
    cosines = {
        distance: float(
            torch.cosine_similarity(
                direction(term, victim, fast, near, labels), direction(term, victim, slow, near, labels)
            ).min()
        )
        for distance, term in TERMS.items()
    }
    return {"case": name, "device": DEVICE.type, "steps": steps, "largest_difference": float(apart.max()), **cosines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="convnet,resnet18_pre,resnet18_pre_train_b4,vit")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = []
    with Exact().inside(DEVICE):
        for name in options.cases.split(","):
            results.append(compare(name, options.steps))
            print(json.dumps(results[-1]), flush=True)
    write_lines(options.out, results)


if __name__ == "__main__":
    main()
