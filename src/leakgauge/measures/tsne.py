"""A map of features in the plane by exact t-SNE, for a few hundred points. Memory and time per step grow with their square."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.errors import BadInput

BISECTIONS = 64
EXAGGERATION = 12.0
FIRST_STEPS = 100
"""First steps, with exaggerated affinities and little momentum, in which clusters form."""


def affinities(features: Tensor, *, perplexity: float = 30.0) -> Tensor:
    """p_ij = (p_j|i + p_i|j) / 2N with p_j|i ∝ exp(-β_i ‖z_i - z_j‖²) and p_i|i = 0, (N, N), summing to 1.

    z = ``features`` (N, …); β_i = 1/2σ_i² is searched so that 2 to the entropy of row i, in bits, is ``perplexity``.

    Ref: van der Maaten and Hinton 2008, Eq. (1) and section 3.1 — affinities of the points
    """
    flat = features.flatten(1).double()
    count = len(flat)
    if not 1 < perplexity < count - 1:
        raise BadInput(f"a perplexity must be between 1 and the number of other points, got {perplexity} of {count}")
    away = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    away = away / away.sum().clamp_min(1e-300) * count * (count - 1)  # scaled to mean 1, so one range of β fits all
    itself = torch.eye(count, dtype=torch.bool, device=flat.device)
    low, high = (torch.full((count, 1), edge, dtype=torch.float64, device=flat.device) for edge in (-30.0, 30.0))
    wanted = torch.tensor(perplexity, dtype=torch.float64).log()
    rows = away
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        rows = (-middle.exp() * away).masked_fill(itself, -torch.inf).softmax(1)
        entropy = torch.special.entr(rows).sum(1, keepdim=True)
        low, high = torch.where(entropy > wanted, middle, low), torch.where(entropy > wanted, high, middle)
    return (rows + rows.T) / (2 * count)


def slope(joint: Tensor, y: Tensor) -> Tensor:
    """∂KL(P‖Q)/∂y_i = 4 Σ_j (p_ij - q_ij)(y_i - y_j)(1 + ‖y_i - y_j‖²)⁻¹, with q_ij ∝ (1 + ‖y_i - y_j‖²)⁻¹.

    P = ``joint`` (N, N), ``y`` (N, 2).

    Ref: van der Maaten and Hinton 2008, Eqs. (4) and (5) — Student-t affinities in the map, and the gradient
    """
    near = 1 / (1 + torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist").square())
    near = near.fill_diagonal_(0)
    pull = (joint - near / near.sum()) * near
    return 4 * (pull.sum(1, keepdim=True) * y - pull @ y)


def tsne(features: Tensor, *, perplexity: float = 30.0, steps: int = 400) -> Tensor:
    """Positions (N, 2) of ``features`` (N, …) in a map that keeps neighbours together; distances between clusters mean nothing.

    Starts at the first two principal components and needs no seed: the same features give the same map.

    Ref: van der Maaten and Hinton 2008, Algorithm 1 — simple version of t-SNE
    """
    joint = affinities(features, perplexity=perplexity)
    y = principal_components(features, 2)
    y = y / y[:, :1].std().clamp_min(1e-300) * 1e-4
    rate = max(len(y) / EXAGGERATION, 50.0)
    moved, gains = torch.zeros_like(y), torch.ones_like(y)
    for step in range(steps):
        early = step < FIRST_STEPS
        gradient = slope(joint * EXAGGERATION if early else joint, y)
        gains = torch.where((gradient > 0) != (moved > 0), gains + 0.2, gains * 0.8).clamp_min(0.01)
        moved = (0.5 if early else 0.8) * moved - rate * gains * gradient
        y = y + moved
    return y - y.mean(0)


def principal_components(features: Tensor, count: int) -> Tensor:
    """The first ``count`` principal components of features (N, …), (N, count), from the Gram matrix of the centred points.

    The largest entry of each is positive, because the sign of an eigenvector is arbitrary.
    """
    flat = features.flatten(1).double()
    centred = flat - flat.mean(0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    chosen = vectors[:, -count:].flip(1)
    signs = chosen.gather(0, chosen.abs().argmax(0, keepdim=True)).sign()
    return chosen * signs * values[-count:].flip(0).clamp_min(0).sqrt()
