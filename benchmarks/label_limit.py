"""How much of the labels of a batch the gradient of the head holds at most: cross-validated estimators that are given true labels.

    python -m benchmarks.label_limit [--out FILE] [--families NAME ...] [--batches N] [--tests N]

The networks are those of :mod:`benchmarks.label_rules` that are reported, after 2 and 6 epochs; the batches are 32 images drawn at random.
None of the 1250 images was trained on. They are parted into three folds by image: estimators are fitted on batches of two of them and
scored on batches of the third, each in turn, so no image is in both. The score is the share of the label multiset that is right.

``even`` guesses every class equally often. ``expected`` and ``expected+`` are our rule, without and with 250 public images.
Two estimators know what no server does, the labels of the other images. ``informed`` is E[n | ∂b] for Gaussians, with the means and
covariances of the model's answers to each class measured with true labels. ``regression`` is kernel ridge from all of ∂W and ∂b
to B·p̄ = n + B·∂b, linear, on N batches, with the penalty that is best on a third of these, which are of other images.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.json_lines import append_lines
from benchmarks.label_rules import CLASSES, FAMILIES, MIDDLE, REPORTED, counts, nearest_counts, train
from leakgauge.channels import Gradient
from leakgauge.core import Observation, Pixels, Victim
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.engine.reference import capturing
from leakgauge.errors import Inapplicable
from leakgauge.inversion.labels import _head

FOLDS = 3
PENALTIES = (1e-3, 1e-2, 0.1, 1.0, 10.0, 1e3)


def head_gradients(victim: Victim, x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """∂W and ∂b (N, K, d) and (N, K) of N batches ``rows`` (N, B): means of (p − y) ⊗ h and p − y, from one forward pass for each batch.

    In eval mode the answer to an image does not depend on its batch, so every image passes once.
    """
    name, _ = _head(victim)

    def answers(images: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), capturing(victim.model, (name,)) as seen:
            scores = victim(images)
        return scores.softmax(1).double(), seen[name].double()

    if victim.mode == "eval":
        p, h = answers(x)
        p, h = p[rows], h[rows]
    else:
        each = [answers(x[own]) for own in rows]
        p, h = torch.stack([one[0] for one in each]), torch.stack([one[1] for one in each])
    off = p - F.one_hot(y[rows], CLASSES)
    return torch.einsum("nbk,nbd->nkd", off, h) / rows.shape[1], off.mean(1)


def informed(p: Tensor, y: Tensor, slope: Tensor, size: int) -> Tensor:
    """E[n | ∂b] (N, K) of ``size`` labels drawn at random, with the answers ``p`` (M, K) to images with the labels ``y``.

    ∂b = A·s + noise with A = meanᵀ − 1; the noise has the mean covariance of the answers within a class.
    """
    mean = torch.stack([p[y == c].mean(0) for c in range(CLASSES)])
    within = sum((torch.cov(p[y == c].T, correction=0) * float((y == c).double().mean()) for c in range(CLASSES)), 0.0)
    usual = torch.bincount(y, minlength=CLASSES).double() / len(y)
    prior = (usual.diag() - usual[:, None] * usual) / size
    matrix = mean.T - torch.eye(CLASSES).double()
    total = matrix @ prior @ matrix.T + within / size + 1e-9 * torch.eye(CLASSES).double()
    gain = prior @ matrix.T @ torch.linalg.inv(total)
    return size * (usual + (slope - matrix @ usual) @ gain.T)


def regression(inputs: Tensor, wanted: Tensor, new: Tensor, *, kept: int) -> Tensor:
    """Linear kernel ridge, with the penalty that is best on all but the first ``kept`` rows of the ``inputs``."""
    centre, usual = inputs.mean(0), wanted.mean(0)
    inputs, new, wanted = inputs - centre, new - centre, wanted - usual
    kernel = inputs @ inputs.T
    unit = float(kernel.diagonal().mean())

    def solved(count: int, penalty: float) -> Tensor:
        own = kernel[:count, :count] + penalty * unit * torch.eye(count).double()
        return torch.linalg.solve(own, wanted[:count])

    miss = [
        (float((kernel[kept:, :kept] @ solved(kept, one) - wanted[kept:]).square().mean()), one) for one in PENALTIES
    ]
    return usual + new @ inputs.T @ solved(len(inputs), min(miss)[1])


def _drawn(images: Tensor, batches: int, rng: torch.Generator) -> Tensor:
    return images[torch.randint(len(images), (batches, MIDDLE), generator=rng)]


def rows_of(family: str, epochs: int, *, batches: int, tests: int) -> Iterator[dict[str, Any]]:
    space, part = Pixels((1, 28, 28), mean=MEAN, std=STD), REPORTED
    (images, labels), (held, truth) = fashion(), fashion("test")
    known = space.encode(images)
    seed = part.seeds[epochs]
    model = train(FAMILIES[family](seed), known[part.trained], labels[part.trained], epochs=epochs, seed=seed)
    victim = Victim(model.eval(), space)
    victim = Victim(model, space, mode="train") if victim.depends_on_mode() else victim
    x = torch.cat([known[part.others], space.encode(held)[part.private]])
    y = torch.cat([labels[part.others], truth[part.private]])
    rng = torch.Generator().manual_seed(seed)
    fold = torch.randperm(len(y), generator=rng) % FOLDS
    name, _ = _head(victim)
    for number in range(FOLDS):
        inside, outside = (fold != number).nonzero()[:, 0], (fold == number).nonzero()[:, 0]
        kept = 2 * batches // 3
        first, last = inside[: 2 * len(inside) // 3], inside[2 * len(inside) // 3 :]
        fit = torch.cat([_drawn(first, kept, rng), _drawn(last, batches - kept, rng)])
        new = _drawn(outside, tests, rng)
        (w, b), (w_new, b_new) = head_gradients(victim, x, y, fit), head_gradients(victim, x, y, new)
        with torch.no_grad():
            answers = torch.cat([victim(some).softmax(1).double() for some in x[inside].split(MIDDLE)])
        true, had = (F.one_hot(y[rows], CLASSES).sum(1).double() for rows in (new, fit))
        flat = [torch.cat([one.flatten(1), other], 1) for one, other in ((w, b), (w_new, b_new))]
        found = {
            "informed": informed(answers, y[inside], b_new, MIDDLE),
            "regression": regression(flat[0], had + MIDDLE * b, flat[1], kept=kept) - MIDDLE * b_new,
        }
        for place in range(tests):
            signal = {f"{name}.weight": w_new[place].float(), f"{name}.bias": b_new[place].float()}
            seen = Observation(signal=signal, channel=Gradient(), size=MIDDLE)
            scores = {}
            for rule in ("even", "expected", "expected+"):
                try:
                    got = counts(rule, victim, seen, known[part.public])[0]
                except Inapplicable:
                    continue
                scores[rule] = float(torch.minimum(got, true[place]).sum()) / MIDDLE
            for rule, expected in found.items():
                got = nearest_counts(expected[place].float(), MIDDLE)
                scores[rule] = float(torch.minimum(got, true[place]).sum()) / MIDDLE
            yield {"family": family, "epochs": epochs, "fold": number, "draw": place, "scores": scores}


def table(rows: list[dict[str, Any]]) -> str:
    """Mean scores with their standard errors, as Markdown."""
    rules = ("even", "expected", "expected+", "informed", "regression")
    lines = [f"| network | epochs | batches | {' | '.join(rules)} |", "|" + "---|" * (3 + len(rules))]
    for cell in dict.fromkeys((row["family"], row["epochs"]) for row in rows):
        own = [row["scores"] for row in rows if (row["family"], row["epochs"]) == cell]
        values = [torch.tensor([one[rule] for one in own if rule in one]) for rule in rules]
        said = [f"{float(v.mean()):.3f} ± {float(v.std() / len(v) ** 0.5):.3f}" for v in values]
        lines.append(f"| {cell[0]} | {cell[1]} | {len(own)} | {' | '.join(said)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--batches", type=int, default=1500, help="with which estimators are fitted, in each fold")
    parser.add_argument("--tests", type=int, default=40, help="batches that are scored, in each fold")
    parser.add_argument("--out", type=Path, help="file to append one JSON line per batch to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    out: Path | None = options.out
    for family in options.families:
        for epochs in (2, 6):
            new = list(rows_of(family, epochs, batches=options.batches, tests=options.tests))
            rows += new
            print(table(new), flush=True)
            append_lines(out, *new)
    print(table(rows))


if __name__ == "__main__":
    main()
