"""The samples of a batch, separated at the head: the label, the output's gradient and the features of each, from one shared gradient.

With features h_k, scores z_k = W h_k + b and labels y_k, a client shares ∂W = 1/B Σ_k d_k h_kᵀ and ∂b = 1/B Σ_k d_k under cross entropy,
d_k = softmax(z_k) − e_{y_k}. With h_k = (features, 1) and ∂ = (∂W, ∂b), a singular value decomposition B·∂ = U S Vᵀ of rank r leaves

    h_k = V m_k,    d_k = U S n_k,    m_k · n_l = 1 if k = l, else 0.

W and b are public, so m_k decides d_k(m_k, y_k), and each sample alone satisfies

    d(m, y) ∈ span U,    m · S⁻¹ Uᵀ d(m, y) = 1,    (V m)_last = 1:

C − r + 1 equations for r unknowns. So up to r = C/2 samples are isolated solutions, which a search finds one by one from many starts
for every class y. No feature need be positive. Samples of which a trained network is so sure that d_k is lost in rounding are not seen.

Where that fails, because samples are faint or more than C/2, the loudest are looked for alone: after a gap in the singular values the
smaller ones count as noise, and the samples found are subtracted before the next group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from leakgauge.errors import Inapplicable
from leakgauge.inversion.beneath_head import INEXACT, layer_inputs

ROUNDING = 3e-8
"""Error of a shared gradient in float32, as a share of its largest singular value."""
NEAR_ONE = 6e-8
"""Spacing of float32 below 1, where the probability of a certain class is rounded."""
STARTS, ROUNDS = 480, 6
"""Starts at a time, and how often as many are added while samples are missing."""
ITERATIONS = 40
FITS, FITS_LOUD = 0.05, 0.1
"""Largest residual of a sample that counts, relative to its own d; and where the fainter samples were left out of the equations."""
LOST, FAINTEST = 1e-3, 1e-6
"""Share of the gradient that is left above which the search starts again with the loudest samples, and below which none is looked for."""
GAP = 0.2
"""Ratio of two singular values from which on the smaller ones can be left out, to find the loudest samples alone."""
PROGRESS = 0.5
"""Samples count that leave at most this share of what was left before them."""
FEW_ROUNDS = 2
"""How often starts are added for a group of loud samples: several groups are tried."""
MOST_LEFT = 0.2
"""Share of the gradient that the samples found may leave unexplained."""
TRACE = 1e-3
"""How far the sum of a row must be below zero to show a label, as a share of the largest."""
FAINT = 1e-12
"""Gradient at the output of a sample that was not seen."""
MOST_CLASSES, MOST_SAMPLES = 100, 8
"""Above these the search is not made: it would take longer than the attack that asks for labels."""


@dataclass(frozen=True, eq=False)
class HeadSamples:
    """Of each sample of a batch: label (B,), gradient at the output (B, C) and features (B, F), the largest gradient first.

    Only the first ``seen`` were separated. The others have hardly any gradient; their rows are next to zero, and their labels are guesses.
    """

    labels: Tensor
    outputs: Tensor
    features: Tensor
    seen: int
    left: float
    """Share of the head's gradient that the separated ones do not explain."""


def separate_at_head(slope: Tensor, head: Tensor, likely: Tensor, *, size: int, seed: int = 0) -> HeadSamples:
    """The samples of a batch of ``size`` from the gradient ``slope`` (C, F + 1) of the head's weight and bias, ``head`` (C, F + 1).

    ``likely`` (N, F + 1) are features of any inputs, to start from. ``Inapplicable`` where the gradient holds noise, or where the samples
    that were found leave more than ``MOST_LEFT`` of it unexplained.
    """
    refuse_many_classes(len(head))
    slope, head, likely = (value.detach().double().cpu() for value in (slope, head, likely))
    if not all(bool(value.isfinite().all()) for value in (slope, head, likely)):
        raise Inapplicable("the head or its gradient is not finite")
    whole = size * slope
    sizes = torch.linalg.svdvals(whole)
    rank = int((sizes > 2 * ROUNDING * sizes[0]).sum())
    if not 1 <= rank <= size:
        raise Inapplicable(f"the head's gradient shows {rank} samples, but the batch has {size}")
    search = _Search(head, likely, torch.Generator().manual_seed(seed))
    most = min(MOST_SAMPLES, len(head) // 2)
    found = search.of_rank(whole, rank, ROUNDING, fits=FITS, rounds=ROUNDS) if rank <= most else _Samples.none(whole)
    found = search.further(found, whole, min(size, MOST_SAMPLES))
    if found.left > LOST * float(sizes[0]):
        loudest = search.further(_Samples.none(whole), whole, min(size, MOST_SAMPLES))
        found = min(found, loudest, key=lambda one: one.left)
    if len(found.labels) == rank and found.left > LOST * float(sizes[0]):
        found = found.with_solved_inputs(whole)
    share = float(found.rest.norm() / whole.norm())
    if share > MOST_LEFT:
        raise Inapplicable(
            f"at most {most} samples of {len(head)} classes can be separated, but the head's gradient shows {rank}"
            if rank > most
            else f"the samples found at the head, {len(found.labels)} of {rank}, leave {share:.0%} of its gradient unexplained"
        )
    return _together(found, share, size)


def refuse_many_classes(classes: int) -> None:
    if classes > MOST_CLASSES:
        raise Inapplicable(
            f"the samples of {classes} classes are not separated, which would take longer than the attack"
        )


@dataclass(frozen=True, eq=False)
class _Samples:
    """Samples with labels (n,), gradients at the output (n, C) and inputs of the head (n, F + 1), and what they leave of ∂, (C, F + 1)."""

    labels: Tensor
    outputs: Tensor
    inputs: Tensor
    rest: Tensor

    @classmethod
    def none(cls, whole: Tensor) -> _Samples:
        return cls(
            torch.zeros(0, dtype=torch.long), whole.new_zeros(0, len(whole)), whole.new_zeros(0, whole.shape[1]), whole
        )

    @property
    def left(self) -> float:
        return float(torch.linalg.svdvals(self.rest)[0])

    def with_solved_inputs(self, whole: Tensor) -> _Samples:
        """With the inputs that follow from ``outputs`` alone, where these are right. The scores of a head of zeros determine none."""
        solved = layer_inputs(self.outputs, whole)
        if float(solved.off.max()) > INEXACT:
            return self
        inputs = torch.cat((solved.inputs, torch.ones_like(solved.off)[:, None]), 1)
        return _Samples(self.labels, self.outputs, inputs, whole - self.outputs.T @ inputs)

    def and_then(self, other: _Samples) -> _Samples:
        """With samples found in what these leave."""
        labels, outputs = torch.cat((self.labels, other.labels)), torch.cat((self.outputs, other.outputs))
        return _Samples(labels, outputs, torch.cat((self.inputs, other.inputs)), other.rest)


@dataclass(frozen=True, eq=False)
class _Search:
    head: Tensor
    likely: Tensor
    rng: torch.Generator

    def of_rank(self, whole: Tensor, rank: int, noise: float, *, fits: float, rounds: int) -> _Samples:
        """Samples in the ``rank`` largest directions of ``whole``; the others are ``noise``, as a share of the largest."""
        left, sizes, right = torch.linalg.svd(whole, full_matrices=False)
        at = _Equations(self.head, left[:, :rank], sizes[:rank], right[:rank].T, noise)
        u, y, residual = whole.new_zeros(0, rank + 1), torch.zeros(0, dtype=torch.long), whole.new_zeros(0)
        chosen = y
        for _ in range(rounds):
            solved = _solved(at, *_starts(at, self.likely, self.rng))
            u, y, residual = (torch.cat(pair) for pair in zip((u, y, residual), solved, strict=True))
            chosen = _independent(at, u, y, residual, fits)
            if len(chosen) == rank:
                break
        if not len(chosen):
            return _Samples.none(whole)
        u, y = u[chosen], y[chosen]
        outputs, inputs = vmap(at.output)(u, y), u[:, :-1] @ at.right.T
        return _Samples(y, outputs, inputs, whole - outputs.T @ inputs)

    def further(self, kept: _Samples, whole: Tensor, most: int) -> _Samples:
        """With as many samples as can be found in what ``kept`` leaves, one group after the other, the loudest first."""
        lost = FAINTEST * float(torch.linalg.svdvals(whole)[0])
        while len(kept.labels) < most and kept.left > lost:
            largest = min(most - len(kept.labels), len(self.head) // 2)
            groups = [
                self.of_rank(kept.rest, rank, noise, fits=FITS_LOUD, rounds=FEW_ROUNDS)
                for rank, noise in _ranks(torch.linalg.svdvals(kept.rest), largest)
            ]
            ahead = min(groups, key=lambda one: one.left, default=None)
            if ahead is None or not ahead.left < PROGRESS * kept.left:
                break
            kept = kept.and_then(ahead)
        return kept


def _ranks(sizes: Tensor, most: int) -> list[tuple[int, float]]:
    """Numbers of directions after which a gap follows, the largest first, and the share that is left out."""
    each = [(rank, float(sizes[rank] / sizes[0])) for rank in range(1, min(most, len(sizes) - 1) + 1)]
    return [(rank, max(share, ROUNDING)) for rank, share in reversed(each) if sizes[rank] <= GAP * sizes[rank - 1]]


@dataclass(frozen=True, eq=False)
class _Equations:
    """Those of one sample with class y and unknowns u = (m, t) of r + 1 values; t is the rounding of the label's entry, in ``NEAR_ONE``."""

    head: Tensor
    left: Tensor
    sizes: Tensor
    right: Tensor
    noise: float
    """Error of the gradient, as a share of its largest singular value."""

    @property
    def scores(self) -> Tensor:
        return self.head @ self.right

    def output(self, u: Tensor, y: Tensor) -> Tensor:
        """d(m, y), without cancellation where the class is certain, and with the client's own rounding."""
        own = (y == torch.arange(len(self.head))).to(u)
        others = (self.scores @ u[:-1]).softmax(0) * (1 - own)
        return others - own * (others.sum() + NEAR_ONE * u[-1])

    def dual(self, output: Tensor) -> Tensor:
        return (self.left.T @ output) / self.sizes

    def residual(self, u: Tensor, y: Tensor) -> Tensor:
        m, d = u[:-1], self.output(u, y)
        n = self.dual(d)
        scale = d.abs() + 1e-2 * d.abs().max() + self.noise * self.sizes[0] * n.norm()
        outside = (d - self.left @ (self.left.T @ d)) / scale.detach()
        product = (m @ n - 1) / (m.norm() * n.norm() + 1)
        return torch.cat((outside, product[None], (self.right[-1] @ m - 1)[None], 0.01 * u[-1:]))


def _starts(at: _Equations, likely: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Likely features, shifted so the class gets a higher score."""
    classes = len(at.head)
    y = torch.arange(classes).repeat(max(4, STARTS // classes))
    m = likely[torch.randint(len(likely), (len(y),), generator=rng)] @ at.right
    scores = m @ at.scores.T
    wanted = scores.mean(1, keepdim=True) + 14 * torch.rand(len(y), 1, generator=rng) * torch.eye(classes)[y].to(m)
    shift = (wanted - scores) @ torch.linalg.pinv(at.scores).T
    m = m + shift * torch.rand(len(y), 1, generator=rng)
    m = m + 0.1 * m.abs().mean() * torch.randn(m.shape, generator=rng).to(m)
    return torch.cat((m, m.new_zeros(len(m), 1)), 1), y


def _solved(at: _Equations, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Levenberg-Marquardt from every start at once; the residual of each."""
    values, slopes = vmap(at.residual), vmap(jacfwd(at.residual))
    damping, same = torch.full((len(u),), 1e-2).to(u), 1e-9 * torch.eye(u.shape[1]).to(u)
    found = values(u, y)
    for _ in range(ITERATIONS):
        slope = slopes(u, y)
        square = slope.mT @ slope
        damped = square + damping[:, None, None] * (torch.diag_embed(square.diagonal(dim1=1, dim2=2)) + same)
        moved = u - torch.linalg.solve_ex(damped, (slope.mT @ found[..., None])[..., 0])[0]
        new = values(moved, y)
        better = new.square().sum(1) < found.square().sum(1)  # False for NaN
        u, found = torch.where(better[:, None], moved, u), torch.where(better[:, None], new, found)
        damping = torch.where(better, damping / 3, damping * 4).clamp(1e-14, 1e10)
    return u, y, found.norm(dim=1)


def _independent(at: _Equations, u: Tensor, y: Tensor, residual: Tensor, fits: float) -> Tensor:
    """Of the solutions, best first, those that are no copy of one before: m_k · n_l = 0."""
    chosen: list[int] = []
    duals = u.new_zeros(0, len(at.sizes))
    for which in residual.argsort().tolist():
        if not float(residual[which]) <= fits or len(chosen) == len(at.sizes):
            break
        if len(chosen) and float((duals @ u[which, :-1]).abs().max()) > 0.1:
            continue
        chosen.append(which)
        duals = torch.cat((duals, at.dual(at.output(u[which], y[which]))[None]))
    return torch.tensor(chosen, dtype=torch.long)


def _together(found: _Samples, share: float, size: int) -> HeadSamples:
    order, missing = found.outputs.norm(dim=1).argsort(descending=True), size - len(found.labels)
    guesses = _guesses(found.rest, missing)
    own = torch.arange(len(found.rest)) == guesses[:, None]
    faint = torch.where(own, -FAINT * (len(found.rest) - 1), FAINT).to(found.outputs)
    features = found.inputs[order, :-1]
    return HeadSamples(
        torch.cat((found.labels[order], guesses)),
        torch.cat((found.outputs[order], faint)),
        torch.cat((features, features.new_zeros(missing, features.shape[1]))),
        len(found.labels),
        share,
    )


def _guesses(rest: Tensor, count: int) -> Tensor:
    """Labels of samples that were not found: for features h ≥ 0 only a label lowers its row of ∂W. The lowest rows, each once, then the
    lowest again."""
    sums = rest.sum(1)
    order = sums.argsort()
    shown = order[sums[order] < -TRACE * sums.abs().max()]
    return torch.cat((shown, order[:1].expand(count)))[:count]
