"""The span of a linear layer's inputs, read off the gradient of its weight, and whether a vector is in it up to rounding or noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EDGE = 1.25
"""A singular value counts if it is this many times as large as those of white noise,"""
ROUGH = 4.0
"""or this many times where the noise is the rounding of a sum, which is known roughly and is not quite white."""
SLACK = 4.0
"""A vector is in the span if it is outside by at most this many times what rounding or noise is expected to do."""
SCREEN = 16
"""Directions outside the span on which vectors are tested first."""
COARSE = 8.0
"""Noise this many times as large as float rounding is called noise: what is found by it is a guess."""


@dataclass(frozen=True, eq=False)
class RowSpan:
    """Row space of gradients G = Σ_p δ_p z_pᵀ of layers that read the same inputs z_p, as R G C / σ = U S Vᵀ.

    R and C are diagonal, or ones: they make rows and columns equally long, because rounding is relative to what is rounded, and trained
    networks have entries of δ and z that are a thousand times as large as others. ``scale`` (width,) is the diagonal of C; vectors are
    multiplied by it before they are compared. ``basis`` (width, width) is V and ``values`` (width,) is S, in units of the noise σ of an
    entry. The first ``rank`` values are above the largest of noise of ``rows`` × width, √rows + √width if it is white. ``filled``
    counts those that are above it at all, rounding or not. ``coarse``: σ is above what rounding explains.
    """

    basis: Tensor
    values: Tensor
    scale: Tensor
    rank: int
    filled: int
    rows: int
    rounding: float
    coarse: bool

    @property
    def width(self) -> int:
        return len(self.values)

    @property
    def free(self) -> int:
        """Directions outside the span, which tell inputs from other vectors."""
        return self.width - self.rank

    @property
    def saturated(self) -> bool:
        """Whether there may be more inputs than the gradient has directions: then even true inputs are outside of its span."""
        return self.rank >= min(self.rows, self.width)

    def outside(self, vectors: Tensor) -> Tensor:
        """How far each vector (n, width) is outside the span, as a multiple of what is expected of a true input; in the span if ≤ 1.

            ‖z⊥‖² / (SLACK² · ((width − rank) Σ_{i ≤ rank} (v_i·z)² / s_i²  +  width ε² ‖z‖²))

        A true input is z = Gᵀc, with the shortest c = Σ u_i (v_i·z) / s_i. Noise E of unit size in G moves it out of the row space by
        Eᵀc, which has the squared length ‖c‖² per direction. √width ε is the rounding of z itself, which sums that many products.
        """
        vectors = vectors * self.scale
        inside = (vectors @ self.basis).square()
        size = vectors.square().sum(1)
        expected = self.free * (inside[:, : self.rank] / self.values[: self.rank].square()).sum(1)
        expected = SLACK**2 * (expected + self.width * self.rounding**2 * size)
        return inside[:, self.rank :].sum(1) / expected.clamp_min(torch.finfo(size.dtype).tiny)

    def holds(self, vectors: Tensor) -> Tensor:
        """Which vectors (n, width) are in the span; most others are ruled out by a few directions outside of it."""
        few = self.basis[:, self.rank : self.rank + SCREEN]
        scaled = vectors * self.scale
        size = scaled.square().sum(1)
        loosest = self.free / float(self.values[self.rank - 1]) ** 2 if self.rank else 0.0
        rows = (
            ((scaled @ few).square().sum(1) <= SLACK**2 * (loosest + self.width * self.rounding**2) * size)
            .nonzero()
            .flatten()
        )
        held = torch.zeros(len(vectors), dtype=torch.bool, device=vectors.device)
        held[rows] = self.outside(vectors[rows]) <= 1
        return held

    def distance(self, vectors: Tensor) -> Tensor:
        """Smooth form, in [0, 1]: Σ_i (v_i·z)² min(1, e² / s_i²) / ‖z‖², where e is the largest singular value of the noise.

        A direction counts by how much of it noise could have made, so no rank has to be chosen. Small for inputs, even where noise
        hides some of their directions.
        """
        vectors = vectors * self.scale
        return (vectors @ self.basis).square() @ self._weights() / vectors.square().sum(1).clamp_min(1e-300)

    def _weights(self) -> Tensor:
        edge = math.sqrt(self.rows) + math.sqrt(self.width)
        return (edge / self.values.clamp_min(edge)).square()

    @property
    def random_distance(self) -> float:
        """The mean smooth distance of a random direction."""
        return float(self._weights().mean())

    def chance(self, vectors: Tensor) -> float:
        """Probability that a random direction is as near to the span as the loosest of ``vectors`` may be."""
        from scipy.special import betainc  # here, because it takes longer to import than this whole package

        if self.rank == 0 or self.free == 0 or len(vectors) == 0:
            return 1.0
        vectors = vectors * self.scale
        inside = (vectors @ self.basis[:, : self.rank]).square() / self.values[: self.rank].square()
        share = SLACK**2 * (self.free * inside.sum(1) / vectors.square().sum(1) + self.width * self.rounding**2)
        return float(betainc(self.free / 2, self.rank / 2, min(1.0, float(share.max()))))


def row_span(gradients: Sequence[Tensor], *, inputs: int, floors: Sequence[float] | None = None) -> RowSpan | None:
    """Span of the rows of ``gradients``, each (outputs, width), of at most ``inputs`` inputs; None if all are zero.

    Each gradient is divided by the noise σ of its entries: float rounding of a sum, ε ‖G‖ / √(outputs · width), the given ``floors``, or
    what the singular values beyond the first ``inputs`` hold, which is all noise, whichever is largest. Rows and columns are scaled,
    unless noise that is the same everywhere (``floors``, or as measured) is seen better without.
    """
    known = [0.0] * len(gradients) if floors is None else floors
    given = [(g.double(), torch.finfo(g.dtype).eps, floor) for g, floor in zip(gradients, known, strict=True)]
    given = [one for one in given if bool(one[0].any())]
    if not given:
        return None
    width = given[0][0].shape[1]
    plain = _Weighed.of([g for g, _, _ in given], given[0][0].new_ones(width), inputs)
    even = plain if any(floor > 0 for _, _, floor in given) else _evened(plain, inputs)
    chosen = even if even.uneven <= plain.uneven else plain
    scaled, coarse = [], False
    for g, spread, (_, eps, floor) in zip(chosen.gradients, chosen.spreads, given, strict=True):
        sigma = max(eps * float(g.norm()) / math.sqrt(g.numel()), floor)
        coarse |= spread > COARSE * sigma
        scaled.append(g / max(sigma, spread))
    stacked = torch.cat(scaled)
    rows, width = stacked.shape
    _, s, v = torch.linalg.svd(stacked, full_matrices=rows < width)
    values = torch.cat([s, s.new_zeros(width - len(s))])
    rough = not coarse and not any(floor > 0 for _, _, floor in given)
    rank, filled = (
        int((values > factor * (math.sqrt(rows) + math.sqrt(width))).sum())
        for factor in (ROUGH if rough else EDGE, EDGE)
    )
    return RowSpan(v.T.contiguous(), values, chosen.scale, rank, filled, rows, max(eps for _, eps, _ in given), coarse)


@dataclass(frozen=True, eq=False)
class _Weighed:
    """Gradients with scaled rows and columns, and the noise in them as measured beyond ``inputs`` directions, 0 where there are none.

    ``spreads`` are the σ of their entries. ``uneven`` is how many times as large as in white noise the largest singular value is.
    """

    gradients: list[Tensor]
    scale: Tensor
    spreads: list[float]
    uneven: float

    @classmethod
    def of(cls, gradients: list[Tensor], scale: Tensor, inputs: int) -> _Weighed:
        spreads, uneven = [0.0] * len(gradients), 0.0
        for k, g in enumerate(gradients):
            rows, columns = g.shape
            if inputs < min(rows, columns):
                beyond = torch.linalg.svdvals(g)[inputs:]
                spreads[k] = math.sqrt(float(beyond.square().sum()) / ((rows - inputs) * (columns - inputs)))
                white = spreads[k] * (math.sqrt(rows) + math.sqrt(columns))
                uneven = max(uneven, float(beyond[0]) / white if white else 0.0)
        return cls(gradients, scale, spreads, uneven)


def _evened(plain: _Weighed, inputs: int) -> _Weighed:
    """All rows, then all columns, equally long."""
    rows = [g / _lengths(g, 1) for g in plain.gradients]
    columns = _lengths(torch.cat(rows), 0)
    return _Weighed.of([g / columns for g in rows], 1 / columns[0], inputs)


def _lengths(g: Tensor, dim: int) -> Tensor:
    """Norms along ``dim``, 1 where they are zero."""
    found = g.norm(dim=dim, keepdim=True)
    return found.where(found > 0, 1.0)
