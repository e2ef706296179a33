"""The span of a linear layer's inputs, read off the gradient of its weight, and whether a vector is in it up to rounding or noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

EDGE = 1.25
"""A singular value counts if it is this many times as large as those of white noise,"""
ROUGH = 4.0
"""or this many times where the noise is the rounding of a sum, which is known roughly and is not quite white."""
SLACK = 4.0
"""A vector is in the span if it is outside by at most this many times what the rounding of a sum is expected to do,"""
TIGHT = 2.0
"""or this many times what noise, or rounding of a known size, does: on true inputs that is within a fifth of what is expected."""
SCREEN = 16
"""Directions outside the span on which vectors are tested first."""
COARSE = 8.0
"""Noise this many times as large as float rounding is called noise: what is found by it is a guess."""
ONCE = 0.21
"""Size of the error of one rounding, in units of ε: √(1/12 · 3/(8 ln 2)), the mean over mantissas of the same chance in each octave."""
CLEAR = 2.5
"""If the weakest direction is this many times above the noise, none is hidden in it: with a gradual decline one would be nearer."""
TAIL = 16
"""Directions that must be left to measure noise in."""


@dataclass(frozen=True, eq=False)
class RowSpan:
    """Row space of gradients G = Σ_p δ_p z_pᵀ of layers that read the same inputs z_p, as R G C / σ = U S Vᵀ.

    R and C are diagonal, or ones: they make rows and columns equally long, because rounding is relative to what is rounded, and trained
    networks have entries of δ and z that are a thousand times as large as others. ``scale`` (width,) is the diagonal of C; vectors are
    multiplied by it before they are compared. ``basis`` (width, width) is V and ``values`` (width,) is S, in units of the noise σ of an
    entry. The first ``rank`` values are above the largest of noise of ``rows`` × width, √rows + √width if it is white. ``filled``
    counts those that are above it at all, rounding or not. ``coarse``: σ is above what rounding in the gradient's own type explains.
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
    def slack(self) -> float:
        return TIGHT if self.coarse else SLACK

    @property
    def weakest(self) -> float:
        """The last of the first ``rank`` values, as a multiple of the largest of white noise; 0 if there is none."""
        return float(self.values[self.rank - 1]) / self._edge if self.rank else 0.0

    @property
    def clear(self) -> bool:
        """Whether the directions above the noise are all that the inputs have: the weakest is far above it."""
        return self.weakest >= CLEAR

    @property
    def saturated(self) -> bool:
        """Whether there may be more inputs than the gradient has directions: then even true inputs are outside of its span."""
        return self.rank >= min(self.rows, self.width)

    def outside(self, vectors: Tensor) -> Tensor:
        """How far each vector (n, width) is outside the span, as a multiple of what is expected of a true input; in the span if ≤ 1.

            ‖z⊥‖² / (slack² · ((width − rank) Σ_{i ≤ rank} (v_i·z)² / s_i²  +  width ε² ‖z‖²))

        A true input is z = Gᵀc, with the shortest c = Σ u_i (v_i·z) / s_i. Noise E of unit size in G moves it out of the row space by
        Eᵀc, which has the squared length ‖c‖² per direction. √width ε is the rounding of z itself, which sums that many products.
        Zeros, which an embedding may have for padding, are in every span and say nothing: they count as outside.
        """
        vectors = vectors * self.scale
        inside = (vectors @ self.basis).square()
        size = vectors.square().sum(1)
        expected = self.free * (inside[:, : self.rank] / self.values[: self.rank].square()).sum(1)
        expected = self.slack**2 * (expected + self.width * self.rounding**2 * size)
        found = inside[:, self.rank :].sum(1) / expected.clamp_min(torch.finfo(size.dtype).tiny)
        return found.masked_fill(size == 0, math.inf)

    def holds(self, vectors: Tensor) -> Tensor:
        """Which vectors (n, width) are in the span; most others are ruled out by a few directions outside of it."""
        few = self.basis[:, self.rank : self.rank + SCREEN]
        scaled = vectors * self.scale
        size = scaled.square().sum(1)
        loosest = self.free / float(self.values[self.rank - 1]) ** 2 if self.rank else 0.0
        rows = (
            ((scaled @ few).square().sum(1) <= self.slack**2 * (loosest + self.width * self.rounding**2) * size)
            .nonzero()
            .flatten()
        )
        held = torch.zeros(len(vectors), dtype=torch.bool, device=vectors.device)
        held[rows] = self.outside(vectors[rows]) <= 1
        return held

    def distance(self, vectors: Tensor) -> Tensor:
        """Smooth form, in [0, 1]: Σ_i (v_i·z)² min(1, e² / s_i²) / ‖z‖², where e is the largest singular value of the noise.

        A direction counts by how much of it noise could have made, so no rank has to be chosen. Small for inputs, even where noise
        hides some of their directions. Above the number of directions, where every vector is in the span, inputs are still those that
        least of the gradient is needed for: for m inputs with δ_p of the same size and a width d < m, about 1 / m to 1 / (m − d) of others.
        """
        vectors, weights = vectors * self.scale, self._weights()
        size = vectors.square().sum(1)
        if self.rows < self.width:  # directions without a gradient all have the weight 1
            seen = (vectors @ self.basis[:, : self.rows]).square() @ (1 - weights[: self.rows])
            found = (1 - seen / size).clamp_min(0.0)
        else:
            found = (vectors @ self.basis).square() @ weights / size
        return found.masked_fill(size == 0, 1.0)

    def nearest(self, vectors: Tensor, others: Tensor) -> Tensor:
        """The point of the line from each of ``vectors`` (…, width) to its partner in ``others`` that is outside the span by least.

        z + t (z' − z),  t = − z⊥·(z' − z)⊥ / ‖(z' − z)⊥‖², at least 0 and at most 1
        """
        free = self.basis[:, self.rank :]
        moved = others - vectors
        start, along = (vectors * self.scale) @ free, (moved * self.scale) @ free
        size = along.square().sum(-1, keepdim=True)
        share = -(start * along).sum(-1, keepdim=True) / size.clamp_min(torch.finfo(size.dtype).tiny)
        return vectors + share.clamp(0.0, 1.0) * moved

    @property
    def _edge(self) -> float:
        return math.sqrt(self.rows) + math.sqrt(self.width)

    def _weights(self) -> Tensor:
        return (self._edge / self.values.clamp_min(self._edge)).square()

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
        share = self.slack**2 * (self.free * inside.sum(1) / vectors.square().sum(1) + self.width * self.rounding**2)
        return float(betainc(self.free / 2, self.rank / 2, min(1.0, float(share.max()))))


def row_span(
    gradients: Sequence[Tensor],
    *,
    inputs: int | None,
    floors: Sequence[float] | None = None,
    sent: Sequence[Tensor] | None = None,
) -> RowSpan | None:
    """Span of the rows of ``gradients``, each (outputs, width), of at most ``inputs`` inputs; None if all are zero.

    If they are what is left of gradients from which something known was subtracted, ``sent`` are the gradients before: these were rounded.

    Each gradient is divided by the noise σ of its entries: float rounding of a sum, ε ‖G‖ / √(outputs · width), one rounding to the
    precision that its numbers have (:func:`precision`), the given ``floors``, or what the singular values beyond the first ``inputs``
    hold, which is all noise, whichever is largest. Where that shows noise in one of them, the noise of each is read off the end of its
    singular values: the batch may have fewer inputs, and a small gradient none beyond them. ``inputs`` None measures no noise. Rows and
    columns are scaled, unless noise that is the same everywhere (``floors``, or as measured) is seen better without.
    """
    known = [0.0] * len(gradients) if floors is None else floors
    before = gradients if sent is None else sent
    given = [
        _Given(g.double(), b.double(), *_roundings(b, floor), floor)
        for g, b, floor in zip(gradients, before, known, strict=True)
    ]
    given = [one for one in given if bool(one.gradient.any())]
    if not given:
        return None
    plain = _Weighed.of(
        given,
        [one.gradient for one in given],
        [one.sent for one in given],
        given[0].gradient.new_ones(given[0].width),
        inputs,
    )
    even = plain if any(one.floor > 0 for one in given) else _evened(given, plain, inputs)
    chosen = even if even.uneven <= plain.uneven else plain
    noisy = any(spread > COARSE * one.sigma(b) for one, _, b, spread in chosen.rows(given))
    stacked = torch.cat([g / max(one.sigma(b), spread) for one, g, b, spread in chosen.rows(given)])
    rows, width = stacked.shape
    _, s, v = (
        one.to(stacked.device) for one in torch.linalg.svd(stacked.cpu(), full_matrices=rows < width)
    )  # slow on a GPU
    values = torch.cat([s, s.new_zeros(width - len(s))])
    coarse = noisy or any(one.once > one.sums for one in given)
    rough = not coarse and not any(one.floor > 0 for one in given)
    rank, filled = (
        int((values > factor * (math.sqrt(rows) + math.sqrt(width))).sum())
        for factor in (ROUGH if rough else EDGE, EDGE)
    )
    return RowSpan(v.T.contiguous(), values, chosen.scale, rank, filled, rows, max(one.sums for one in given), coarse)


def precision(values: Tensor) -> float:
    """The coarsest ε of a binary floating-point format that holds all of ``values``, as bits show: 2⁻⁷ for bfloat16, 2⁻¹⁰ for float16.

    >>> precision(torch.linspace(0, 1, 50).bfloat16().float()) == torch.finfo(torch.bfloat16).eps
    True
    """
    mantissa = {torch.float32: (torch.int32, 23), torch.float64: (torch.int64, 52)}.get(values.dtype)
    if mantissa is None:
        return torch.finfo(values.dtype).eps
    kind, bits = mantissa
    found = values[values != 0].contiguous().view(kind)
    unused = 0
    while unused < bits and not bool((found & ((1 << (unused + 1)) - 1)).any()):
        unused += 1
    return 2.0 ** (unused - bits)


def _roundings(g: Tensor, floor: float) -> tuple[float, float]:
    """ε of the type of the numbers, and the error of one rounding to what they hold. A change of weights has its rounding as ``floor``."""
    sums = torch.finfo(g.dtype).eps
    return sums, 0.0 if floor > 0 or g.numel() < TAIL else ONCE * precision(g)


@dataclass(frozen=True, eq=False)
class _Given:
    """A gradient, as it was ``sent`` or what is left of it, and its noise: ε of its type, the error of one rounding, and a floor."""

    gradient: Tensor
    sent: Tensor
    sums: float
    once: float
    floor: float

    @property
    def width(self) -> int:
        return self.gradient.shape[1]

    def sigma(self, scaled: Tensor) -> float:
        """Noise of an entry of what was sent, once rows and columns are scaled."""
        return max(max(self.sums, self.once) * float(scaled.norm()) / math.sqrt(scaled.numel()), self.floor)


@dataclass(frozen=True, eq=False)
class _Weighed:
    """Gradients, and those ``sent``, with scaled rows and columns, and the noise in them beyond ``inputs`` directions, 0 if not measured.

    ``spreads`` are the σ of their entries. ``uneven`` is how many times as large as in white noise the largest singular value is.
    """

    gradients: list[Tensor]
    sent: list[Tensor]
    scale: Tensor
    spreads: list[float]
    uneven: float

    def rows(self, given: Sequence[_Given]) -> Iterator[tuple[_Given, Tensor, Tensor, float]]:
        return zip(given, self.gradients, self.sent, self.spreads, strict=True)

    @classmethod
    def of(
        cls, given: Sequence[_Given], gradients: list[Tensor], sent: list[Tensor], scale: Tensor, inputs: int | None
    ) -> _Weighed:
        spreads, uneven = [0.0] * len(gradients), 0.0
        if inputs is None:
            return cls(gradients, sent, scale, spreads, uneven)
        for k, g in enumerate(gradients):
            if inputs < min(g.shape):
                beyond = torch.linalg.svdvals(g.cpu())[inputs:]
                spreads[k], white = _white(beyond, g.shape, inputs)
                uneven = max(uneven, float(beyond[0]) / white if white else 0.0)
        if any(spread > COARSE * one.sigma(b) for one, b, spread in zip(given, sent, spreads, strict=True)):
            spreads = [max(spread, _end_noise(g)) for spread, g in zip(spreads, gradients, strict=True)]
        return cls(gradients, sent, scale, spreads, uneven)


def _white(beyond: Tensor, shape: tuple[int, ...], used: int) -> tuple[float, float]:
    """σ of noise with these singular values after ``used`` directions of a matrix of ``shape``, and its largest one if it is white."""
    rows, columns = shape
    sigma = math.sqrt(float(beyond.square().sum()) / ((rows - used) * (columns - used)))
    return sigma, sigma * (math.sqrt(rows) + math.sqrt(columns))


def _end_noise(g: Tensor) -> float:
    """σ of the noise in a matrix that may be almost full of inputs: that of the longest end of its singular values that looks white.

    In an end that does, the largest value is at most ``EDGE`` times √rows + √columns, in units of the σ that their median shows. 0 if no
    end of ``TAIL`` values does.
    """
    s, (rows, columns) = torch.linalg.svdvals(g.cpu()), g.shape
    for used in range(len(s) - TAIL):
        left = (rows - used, columns - used)
        sigma = float(s[used:].median()) / _median_value(*left)
        if float(s[used]) <= EDGE * sigma * (math.sqrt(left[0]) + math.sqrt(left[1])):
            return _white(s[used:], g.shape, used)[0]
    return 0.0


@lru_cache(maxsize=4096)
def _median_value(rows: int, columns: int) -> float:
    """The median singular value of white noise of unit size, by the law of Marchenko and Pastur, integrated on a grid."""
    few, many = sorted((rows, columns))
    low, high = math.sqrt(many) - math.sqrt(few), math.sqrt(many) + math.sqrt(few)
    x = torch.linspace(low, high, 513, dtype=torch.float64)[1:-1]
    density = ((high**2 - x**2) * (x**2 - low**2)).clamp_min(0).sqrt() / x
    sums = density.cumsum(0)
    return float(x[int((sums >= sums[-1] / 2).nonzero()[0])])


def _evened(given: Sequence[_Given], plain: _Weighed, inputs: int | None) -> _Weighed:
    """All rows, then all columns, of what was sent equally long."""
    lengths = [_lengths(b, 1) for b in plain.sent]
    columns = _lengths(torch.cat([b / own for b, own in zip(plain.sent, lengths, strict=True)]), 0)
    gradients, sent = (
        [g / own / columns for g, own in zip(many, lengths, strict=True)] for many in (plain.gradients, plain.sent)
    )
    return _Weighed.of(given, gradients, sent, 1 / columns[0], inputs)


def _lengths(g: Tensor, dim: int) -> Tensor:
    """Norms along ``dim``, 1 where they are zero."""
    found = g.norm(dim=dim, keepdim=True)
    return found.where(found > 0, 1.0)
