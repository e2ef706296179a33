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
LARGE = 512
"""Values of x from which a spectrum is first looked for in a third of its directions. Smaller ones take a fraction of a second."""
PROBES, DEPTH = 8, 64
"""Random vectors of a sketch, and the products with JᵀJ that each of them gets."""
MOVED, MOVED_DB = 0.1, 0.5
"""By how much the second half of the products may change the share of directions, and the PSNR, of a sketch that is used."""
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

    @property
    def largest(self) -> float:
        return float(self.values[0])

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


class _Derivative:
    """Products with J = ∂f/∂x at ``x``. Jᵀu is linear in u, so one graph of it gives J v too, by reverse derivatives alone."""

    def __init__(self, f: Callable[[Tensor], Tensor], x: Tensor) -> None:
        self.x = x.detach().double().requires_grad_()
        with torch.enable_grad():
            self.value = f(self.x)
            self.u = torch.zeros_like(self.value, requires_grad=True)
            made = (
                torch.autograd.grad(self.value, self.x, self.u, create_graph=True) if self.value.requires_grad else ()
            )
        self.pulled = made[0] if made and made[0].requires_grad else None
        self.n, self.m = self.x.numel(), self.value.numel()
        self.scale = float(self.value.detach().square().mean().sqrt())

    def push(self, v: Tensor) -> Tensor:
        """J v for each row of ``v`` (k, n), as (k, m)."""
        assert self.pulled is not None
        given = v.view(len(v), *self.x.shape)
        return torch.autograd.grad(self.pulled, self.u, given, is_grads_batched=True, retain_graph=True)[0]

    def gram(self, v: Tensor) -> Tensor:
        """JᵀJ v for each row of ``v`` (k, n)."""
        pushed = self.push(v)
        return torch.autograd.grad(self.value, self.x, pushed, is_grads_batched=True, retain_graph=True)[0].flatten(1)

    def in_chunks(self, product: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        return torch.cat([product(batch) for batch in v.split(max(1, CHUNK // self.m))])


def spectrum(f: Callable[[Tensor], Tensor], x: Tensor) -> Spectrum:
    """The spectrum of ``f`` (x of any shape → (m,)) at ``x``, in float64.

    The columns of J are products with unit vectors; where its rank is low, a third of the directions is decomposed alone. If J is too
    large to be held, its Gram matrix JᵀJ is decomposed instead, which resolves singular values to about √ε of the largest only.

    Ref: Halko, Martinsson and Tropp 2011, Algorithms 4.1 and 5.1 — randomised range finder, where the rank is low
    """
    at = _Derivative(f, x)
    n, m, x, scale = at.n, at.m, at.x, at.scale
    if n * m > MOST_PRODUCTS:
        raise BadInput(f"a spectrum of {n} values by {m} numbers is too large (at most {MOST_PRODUCTS} products)")
    if at.pulled is None:
        return Spectrum(x.new_zeros(n).detach(), torch.eye(n, dtype=x.dtype, device=x.device), scale, 0.0)
    whole = n * m <= MOST_ENTRIES
    found = at.in_chunks(at.push if whole else at.gram, torch.eye(n, dtype=x.dtype, device=x.device))
    if whole:
        values, directions = _few_directions(found) or _all_directions(found)
        return Spectrum(values, directions, scale, EPSILON * max(n, m) * float(values[0]))
    squares, vectors = torch.linalg.eigh((found + found.T) / 2)
    values = squares.flip(0).clamp_min(0).sqrt()
    return Spectrum(values, vectors.T.flip(0), scale, math.sqrt(EPSILON * n) * float(values[0]))


def _all_directions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values (n,) and directions (n, n) of the matrix J whose columns are ``rows`` (n, m)."""
    n, m = rows.shape
    _, values, directions = torch.linalg.svd(rows.T, full_matrices=n > m)
    return torch.cat([values, values.new_zeros(n - len(values))]), directions


def _few_directions(rows: Tensor) -> tuple[Tensor, Tensor] | None:
    """The same in a quarter of the time where J has rank n/3 at most, up to rounding; None where it has more, or is small.

    Random combinations of its rows span all that it sees. What they miss is measured, first on a few more combinations.
    """
    n, m = rows.shape
    rank = n // 3
    if n < LARGE or rank >= m:
        return None
    drawn = torch.randn(m, rank + PROBES, dtype=rows.dtype, generator=torch.Generator().manual_seed(0)).to(rows.device)
    combined, probes = (rows @ drawn).split([rank, PROBES], 1)
    basis, rounding = torch.linalg.qr(combined).Q, EPSILON * max(n, m)
    if float((probes - basis @ (basis.T @ probes)).norm()) > rounding * float(probes.norm()):
        return None
    inside = basis.T @ rows
    if float((rows - basis @ inside).norm()) > rounding * float(inside.norm(dim=1).max()):
        return None
    _, values, turned = torch.linalg.svd(inside.T, full_matrices=False)
    rest = torch.linalg.qr(basis, mode="complete").Q[:, rank:]
    return torch.cat([values, values.new_zeros(n - rank)]), torch.cat([turned @ basis.T, rest.T])


@dataclass(frozen=True, eq=False)
class Sketch:
    """What random products tell of a spectrum that is too large to compute: for each of k probes, ``squares`` (k, d) of singular values
    with the shares ``weights`` (k, d) of the n directions that are near each of them. ``scale`` and ``resolution`` as in :class:`Spectrum`.

    Ref: Ubaru, Chen and Saad 2017, Algorithm 1 — stochastic Lanczos quadrature
    """

    squares: Tensor
    weights: Tensor
    size: int
    scale: float
    resolution: float
    gram: Callable[[Tensor], Tensor] | None
    half: Sketch | None = None
    """The same after half of the products, to see whether more of them would change anything."""

    def settled(self, noise: float, *, spread: float = SPREAD) -> bool:
        """Whether the second half of the products changed little. Small singular values far below the largest are found last."""
        if self.half is None:
            return True
        moved = abs(self.above(noise, spread=spread) - self.half.above(noise, spread=spread))
        return (
            moved <= MOVED * self.size
            and abs(self.psnr(noise, spread=spread) - self.half.psnr(noise, spread=spread)) <= MOVED_DB
        )

    @property
    def largest(self) -> float:
        return float(self.squares.max().clamp_min(0).sqrt())

    def above(self, noise: float, *, spread: float = SPREAD) -> int:
        """As :meth:`Spectrum.above`, estimated."""
        return round(self.size * float(self._above(noise, spread).mean()))

    def error(self, noise: float, *, spread: float = SPREAD) -> float:
        """Standard error of :meth:`above` over the probes."""
        return self.size * float(self._above(noise, spread).std()) / math.sqrt(len(self.weights))

    def psnr(self, noise: float, *, spread: float = SPREAD) -> float:
        """As :meth:`Spectrum.psnr`, estimated."""
        variances = 1 / (self.squares / noise**2 + 1 / spread**2)
        return -10 * math.log10(float((self.weights * variances).sum(1).mean()))

    def kept(self, change: Tensor, noise: float, *, spread: float = SPREAD) -> Tensor:
        """As :meth:`Spectrum.kept`, to what ``DEPTH`` products resolve: f(JᵀJ)·change, for f(λ) = λ / (λ + s²/τ²)."""
        if self.gram is None or not bool(change.any()):
            return torch.zeros_like(change)
        matrix, basis = _lanczos(self.gram, change[None])
        squares, vectors = _ritz(matrix)
        shares = squares / (squares + noise**2 / spread**2)
        return change.norm() * torch.einsum("kij,kj,kj,kin->n", vectors, shares, vectors[:, 0], basis)

    def _above(self, noise: float, spread: float) -> Tensor:
        least = max(noise / spread, self.resolution) ** 2
        return torch.where(self.squares > least, self.weights, 0.0).sum(1)


def sketch_spectrum(f: Callable[[Tensor], Tensor], x: Tensor, *, seed: int = 0) -> Sketch:
    """The spectrum of ``f`` at ``x`` as ``PROBES`` random vectors see it, in twice ``PROBES`` · ``DEPTH`` products, whatever the size of x.

    What it resolves are squares of singular values to about ε of the largest, so singular values to √ε.
    """
    at = _Derivative(f, x)
    if at.pulled is None:
        return Sketch(at.x.new_zeros(2, 1).detach(), at.x.new_ones(2, 1).detach(), at.n, at.scale, 0.0, None)
    signs = torch.randint(0, 2, (PROBES, at.n), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1

    def gram(v: Tensor) -> Tensor:
        return at.in_chunks(at.gram, v)

    matrix, _ = _lanczos(gram, signs.to(at.x))
    depth = matrix.shape[-1]
    found, half = (_ritz(matrix[:, :d, :d]) for d in (depth, max(1, depth // 2)))
    resolution = math.sqrt(EPSILON * at.n) * float(found[0].max().sqrt())
    rest = (at.n, at.scale, resolution, gram)
    at_half = (
        Sketch(half[0], half[1][:, 0].square(), *rest) if depth == DEPTH else None
    )  # fewer: nothing was left to find
    return Sketch(found[0], found[1][:, 0].square(), *rest, half=at_half)


def _ritz(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (k, d), which are squares here, and eigenvectors (k, d, d), one per column."""
    squares, vectors = torch.linalg.eigh(matrix)
    return squares.clamp_min(0), vectors


def _lanczos(gram: Callable[[Tensor], Tensor], start: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix JᵀJ in the Krylov spaces of the rows of ``start`` (k, n), (k, d, d), and their bases (k, d, n)."""
    depth = min(DEPTH, start.shape[1])
    basis = start.new_empty(len(start), depth, start.shape[1])
    basis[:, 0] = start / start.norm(dim=1, keepdim=True)
    diagonal, beside = list[Tensor](), list[Tensor]()
    for step in range(depth):
        known, moved = basis[:, : step + 1], gram(basis[:, step])
        diagonal.append((moved * basis[:, step]).sum(1))
        for _ in range(2):  # against all, twice: rounding would bring found directions back
            shares = torch.bmm(known, moved[:, :, None])
            moved = moved - torch.bmm(shares.transpose(1, 2), known)[:, 0]
        length = moved.norm(dim=1)
        if step + 1 == depth or not bool((length > EPSILON * diagonal[0].abs()).any()):
            break
        beside.append(length)
        basis[:, step + 1] = moved / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None]
    matrix = torch.diag_embed(torch.stack(diagonal, 1))
    if beside:
        off = torch.stack(beside, 1)
        matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    return matrix, basis[:, : len(diagonal)]
