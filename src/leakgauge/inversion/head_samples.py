"""The samples of a batch told apart at the head: the label, the output's gradient and the features of each, from one shared gradient.

With features h_k, scores z_k = W h_k + b and labels y_k, a client shares ∂W = 1/B Σ_k d_k h_kᵀ and ∂b = 1/B Σ_k d_k under cross entropy,
d_k = softmax(z_k) − e_{y_k}. With h_k = (features, 1) and ∂ = (∂W, ∂b), a singular value decomposition B·∂ = U S Vᵀ of rank r leaves

    h_k = V m_k,    d_k = U S n_k,    m_k · n_l = 1 if k = l, else 0.

W and b are public, so m_k decides d_k(m_k, y_k), and each sample alone satisfies

    d(m, y) ∈ span U,    m · S⁻¹ Uᵀ d(m, y) = 1,    (V m)_last = 1:

C − r + 1 equations for r unknowns. So up to r = C/2 samples are isolated solutions, which a search finds one by one from many starts
for every class y. No feature need be positive. Samples of which a trained network is so sure that d_k is lost in rounding are not seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from leakgauge.errors import Inapplicable

ROUNDING = 3e-8
"""Error of a shared gradient in float32, as a share of its largest singular value."""
NEAR_ONE = 6e-8
"""Spacing of float32 below 1, where the probability of a certain class is rounded."""
STARTS, ROUNDS = 480, 6
"""Starts at a time, and how often as many are added while samples are missing."""
ITERATIONS = 40
FITS = 0.05
"""Largest residual of a sample that counts, relative to its own d."""
LOST = 1e-3
"""Share of the gradient that samples may hold which were not found: those of which the network is almost certain."""
MOST_CLASSES, MOST_SAMPLES = 100, 8
"""Above these the search is not made: it would take longer than the attack that asks for labels."""


@dataclass(frozen=True, eq=False)
class HeadSamples:
    """Of each sample of a batch: label (B,), gradient at the output (B, C) and features (B, F), the largest gradient first.

    Only the first ``seen`` were told apart. The others have hardly any gradient; their rows are next to zero, and their labels are guesses.
    """

    labels: Tensor
    outputs: Tensor
    features: Tensor
    seen: int


def tell_apart(slope: Tensor, head: Tensor, likely: Tensor, *, size: int, seed: int = 0) -> HeadSamples:
    """The samples of a batch of ``size`` from the gradient ``slope`` (C, F + 1) of the head's weight and bias, ``head`` (C, F + 1).

    ``likely`` (N, F + 1) are features of any inputs, to start from. ``Inapplicable`` where the gradient holds more samples than can be told
    apart, noise, or samples that the search does not find.
    """
    slope, head, likely = (value.detach().double().cpu() for value in (slope, head, likely))
    if not all(bool(value.isfinite().all()) for value in (slope, head, likely)):
        raise Inapplicable("the head or its gradient is not finite")
    left, sizes, right = torch.linalg.svd(size * slope, full_matrices=False)
    rank = int((sizes > 2 * ROUNDING * sizes[0]).sum())
    if not 1 <= rank <= size:
        raise Inapplicable(f"the head's gradient shows {rank} samples, but the batch has {size}")
    if 2 * rank > len(head) or rank > MOST_SAMPLES or len(head) > MOST_CLASSES:
        raise Inapplicable(f"{rank} samples cannot be told apart by the scores of {len(head)} classes")
    at = _Equations(head, left[:, :rank], sizes[:rank], right[:rank].T)
    rng = torch.Generator().manual_seed(seed)
    u, y, residual = head.new_zeros(0, rank + 1), torch.zeros(0, dtype=torch.long), head.new_zeros(0)
    chosen = y
    for _ in range(ROUNDS):
        solved = _solved(at, *_starts(at, likely, rng))
        u, y, residual = (torch.cat(pair) for pair in zip((u, y, residual), solved, strict=True))
        chosen = _independent(at, u, y, residual)
        if len(chosen) == rank:
            break
    return _together(at, u[chosen], y[chosen], size)


@dataclass(frozen=True, eq=False)
class _Equations:
    """Those of one sample with class y and unknowns u = (m, t) of r + 1 values; t is the rounding of the label's entry, in ``NEAR_ONE``."""

    head: Tensor
    left: Tensor
    sizes: Tensor
    right: Tensor

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
        scale = d.abs() + 1e-2 * d.abs().max() + ROUNDING * self.sizes[0] * n.norm()
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


def _independent(at: _Equations, u: Tensor, y: Tensor, residual: Tensor) -> Tensor:
    """Of the solutions, best first, those that are no copy of one before: m_k · n_l = 0."""
    chosen: list[int] = []
    duals = u.new_zeros(0, len(at.sizes))
    for which in residual.argsort().tolist():
        if not float(residual[which]) <= FITS or len(chosen) == len(at.sizes):
            break
        if len(chosen) and float((duals @ u[which, :-1]).abs().max()) > 0.1:
            continue
        chosen.append(which)
        duals = torch.cat((duals, at.dual(at.output(u[which], y[which]))[None]))
    return torch.tensor(chosen, dtype=torch.long)


def _together(at: _Equations, u: Tensor, y: Tensor, size: int) -> HeadSamples:
    """The batch, if these samples explain all but ``LOST`` of the gradient."""
    m = u[:, :-1]
    outputs = vmap(at.output)(u, y) if len(u) else m @ at.scores.T
    rest = (at.left * at.sizes - outputs.T @ m) @ at.right.T
    if not float(rest.norm()) <= LOST * float(at.sizes[0]):
        raise Inapplicable(f"only {len(m)} of {len(at.sizes)} samples were told apart at the head")
    order, missing = outputs.norm(dim=1).argsort(descending=True), size - len(m)
    guess = rest.sum(1).argmin()
    faint = torch.full((missing, len(at.head)), FAINT).to(m)
    faint[:, guess] = -FAINT * (len(at.head) - 1)
    features = (m @ at.right.T)[order, :-1]
    return HeadSamples(
        torch.cat((y[order], guess.expand(missing))),
        torch.cat((outputs[order], faint)),
        torch.cat((features, features.new_zeros(missing, features.shape[1]))),
        len(m),
    )


FAINT = 1e-12
"""Gradient at the output of a sample that was not seen."""
