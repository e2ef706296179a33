"""Which directions of an input a signal determines near that input: the singular values of its derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput

MOST_ENTRIES = 2**25
"""Numbers that the derivative may hold (256 MiB)."""
MOST_PRODUCTS = 2**31
"""Numbers that are computed of it in all: some minutes of one core."""
EPSILON = torch.finfo(torch.float64).eps
CHUNK = 2**22
"""Numbers that one batch of products may hold (32 MiB)."""
SPREAD = 1 / math.sqrt(12)
"""Deviation of a pixel of which nothing is known but its range of 1."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Singular values of J = ∂f/∂x at one x, one for each of the n entries of x (``values``, descending, zeros included), with their
    ``directions`` (n, n), one per row. ``scale`` is the root mean square of the entries of f(x); a value
    below ``resolution`` is zero up to the rounding of this computation.
    """

    values: Tensor
    directions: Tensor
    scale: float
    resolution: float

    def above(self, noise: float, *, spread: float = SPREAD) -> int:
        """Directions that a signal with noise of deviation ``noise`` = s on each entry still tells: those with s/σ_i below ``spread``."""
        return int((self.values > max(noise / spread, self.resolution)).sum())

    def variances(self, noise: float, *, spread: float = SPREAD) -> Tensor:
        """The least mean squared error of each direction, 1 / (σ_i²/s² + 1/τ²), with ``noise`` = s and ``spread`` = τ, the deviation of
        what is known before: s²/σ_i² where the signal says much, τ² where it says nothing.

        Ref: Van Trees 1968, section 2.4 — the Cramér-Rao bound with a prior, for the signal's linear part
        """
        if not noise > 0 or not spread > 0:
            raise BadInput(f"an error needs positive noise and spread, got {noise} and {spread}")
        return 1 / ((self.values / noise).square() + 1 / spread**2)

    def psnr(self, noise: float, *, spread: float = SPREAD) -> float:
        """PSNR in dB of the mean of :meth:`variances`, for x with a range of 1. It is about this x and its neighbourhood only: an attack
        with knowledge of images can do better, and one that does not find the neighbourhood does worse."""
        return -10 * math.log10(float(self.variances(noise, spread=spread).mean()))

    def kept(self, change: Tensor, noise: float, *, spread: float = SPREAD) -> Tensor:
        """``change`` (n,) without what is lost: every direction shrunk by the share of its variance that the signal removes."""
        share = 1 - self.variances(noise, spread=spread) / spread**2
        return self.directions.T @ (share * (self.directions @ change))

    def lost(self, noise: float, *, spread: float = SPREAD) -> Tensor:
        """For each entry of x the share of its variance that stays unknown, (n,), from 0 to 1."""
        return (self.directions.square().T @ self.variances(noise, spread=spread)) / spread**2


def spectrum(f: Callable[[Tensor], Tensor], x: Tensor) -> Spectrum:
    """The spectrum of ``f`` (x of any shape → (m,)) at ``x``, in float64.

    Jᵀu is linear in u, so one graph of it gives J e_i for batches of unit vectors e_i, by reverse derivatives alone. If J is too large to
    be held, its Gram matrix JᵀJ is decomposed instead, which resolves singular values to about √ε of the largest only.
    """
    x = x.detach().double().requires_grad_()
    with torch.enable_grad():
        value = f(x)
        n, m = x.numel(), value.numel()
        if n * m > MOST_PRODUCTS:
            raise BadInput(f"a spectrum of {n} values by {m} numbers is too large (at most {MOST_PRODUCTS} products)")
        u = torch.zeros_like(value, requires_grad=True)
        (pulled,) = torch.autograd.grad(value, x, u, create_graph=True) if value.requires_grad else (None,)
    scale = float(value.detach().square().mean().sqrt())
    if pulled is None or not pulled.requires_grad:
        return Spectrum(x.new_zeros(n).detach(), torch.eye(n, dtype=x.dtype, device=x.device), scale, 0.0)
    whole, rows = n * m <= MOST_ENTRIES, list[Tensor]()
    for batch in torch.eye(n, dtype=x.dtype, device=x.device).split(max(1, CHUNK // m)):
        given = batch.view(len(batch), *x.shape)
        (row,) = torch.autograd.grad(pulled, u, given, is_grads_batched=True, retain_graph=True)
        if not whole:
            (row,) = torch.autograd.grad(value, x, row, is_grads_batched=True, retain_graph=True)
        rows.append(row.flatten(1))
    found = torch.cat(rows)
    if whole:
        _, values, directions = torch.linalg.svd(found.T, full_matrices=n > m)
        padded = torch.cat([values, values.new_zeros(n - len(values))])
        return Spectrum(padded, directions, scale, EPSILON * max(n, m) * float(padded[0]))
    squares, vectors = torch.linalg.eigh((found + found.T) / 2)
    values = squares.flip(0).clamp_min(0).sqrt()
    return Spectrum(values, vectors.T.flip(0), scale, math.sqrt(EPSILON * n) * float(values[0]))
