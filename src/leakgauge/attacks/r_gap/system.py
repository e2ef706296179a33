"""The linear equations of R-GAP for the input of one layer, how many of them are independent, and their solution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.certificate import SMALL_ERROR, wrong_pixels
from leakgauge.attacks.r_gap.chain import Layer

DETERMINED = 1e-6
"""A value counts as determined if at most this share of it, squared, is outside the equations' row space."""


@dataclass(frozen=True)
class Judgement:
    """What one layer's equations determine, known before they are solved.

    ``rank`` of the ``unknowns`` follow from ``equations``; the largest singular value is ``condition`` times the smallest that
    counts. ``noise`` is how far the right side is from any solution, relative to its length, and ``off`` the expected error of
    each determined value because of it (root mean square). ``guessed`` values are not determined although the gradient passes
    them, so all layers before are wrong.
    """

    name: str
    unknowns: int
    equations: int
    rank: int
    condition: float
    noise: float
    off: float
    guessed: int = 0

    @property
    def lost(self) -> int:
        return self.unknowns - self.rank


@dataclass(frozen=True, eq=False)
class Solution:
    """A layer's input ``x``, the expected error ``off`` of each value, which values the equations ``determined``, and the
    judgement on the equations."""

    x: Tensor
    off: Tensor
    determined: Tensor
    judged: Judgement


@dataclass(frozen=True, eq=False)
class System:
    """Equations ``matrix`` x = ``side``. ``outside`` is the sum of squares of those among ``equations`` that turned out to hold for no x
    when equations were combined; ``matrix`` has the rest."""

    matrix: Tensor
    side: Tensor
    equations: int
    outside: float = 0.0

    def solve(self, name: str, *, rounding: float, guess: Tensor | None = None) -> Solution:
        """The best solution; if there are several, the one nearest to ``guess`` (zero). Singular values that ``rounding`` alone
        explains do not count."""
        rows, unknowns = self.matrix.shape
        left, singular, right = torch.linalg.svd(self.matrix, full_matrices=False)
        least = float(singular[0]) * rounding * math.sqrt(max(rows, unknowns))
        rank = int((singular > least).sum())
        left, singular, right = left[:, :rank], singular[:rank], right[:rank]
        guess = torch.zeros(unknowns, dtype=right.dtype) if guess is None else guess
        side = self.side - self.matrix @ guess
        reached = left.T @ side
        square = float((side - left @ reached).square().sum()) + self.outside
        length = math.sqrt(float(self.side.square().sum()) + self.outside)
        error = max(math.sqrt(square / max(self.equations - rank, 1)), rounding * length / math.sqrt(self.equations))
        off = error * (right / singular[:, None]).norm(dim=0)
        judged = Judgement(
            name=name,
            unknowns=unknowns,
            equations=self.equations,
            rank=rank,
            condition=float(singular[0] / singular[-1]) if rank else math.inf,
            noise=math.sqrt(square) / (length or 1.0),
            off=float(off.square().mean().sqrt()),
        )
        determined = right.square().sum(0) > 1 - DETERMINED  # its unit vector is in the row space
        return Solution(guess + right.T @ (reached / singular), off, determined, judged)


def system_of_convolution(
    layer: Layer, weight: Tensor, delta: Tensor, gradient: Tensor, z: Tensor, known: Tensor
) -> System:
    """What is known about the input x of a convolution z = W x: the output, and the gradient of the weight.

        W x = z                          one equation for each value of z that is ``known``
        Σ_p δ_o,p x_c,p+k = ∂W_o,c,k      one for each entry of the weight

    δ = ∂L/∂z is ``delta``; ``z`` is without the bias. The second kind of equations is the same for all channels c of a group and
    is combined by its singular vectors. Both kinds are divided by the mean length of their rows.

    Ref: R-GAP (Zhu and Blaschko 2021) — weight and gradient constraints of a layer
    """
    known = known.flatten()
    weights = layer.product(torch.eye(layer.unknowns, dtype=weight.dtype).view(-1, *layer.enters), weight)
    weights = weights.flatten(1).T[known]
    scale = _row_length(weights)
    matrices, sides = [weights / scale], [z.flatten()[known] / scale]
    channels, places = layer.enters[0], math.prod(layer.enters[1:])
    taken = _kernel_positions(layer, weight)
    own = channels // layer.groups
    sent = delta.flatten(1).view(layer.groups, -1, delta[0].numel())
    slopes = gradient.flatten(2).view(layer.groups, -1, *gradient.flatten(2).shape[1:])
    outside, equations = 0.0, len(weights) + gradient.numel()
    scale = _row_length(torch.einsum("gop,nkp->gokn", sent, taken).flatten(0, 2))
    for group in range(layer.groups):
        matrix = torch.einsum("op,nkp->okn", sent[group], taken).flatten(0, 1) / scale
        left, singular, right = torch.linalg.svd(matrix, full_matrices=False)
        for channel in range(own):
            side = slopes[group, :, channel].flatten() / scale
            inside = left.T @ side
            outside += float((side - left @ inside).square().sum())
            rows = torch.zeros(len(singular), channels, places, dtype=weight.dtype)
            rows[:, group * own + channel] = singular[:, None] * right
            matrices.append(rows.flatten(1))
            sides.append(inside)
    return System(torch.cat(matrices), torch.cat(sides), equations, outside)


def system_of_linear(delta: Tensor, gradient: Tensor) -> System:
    """What is known about the input of a linear layer from its gradient ∂W = δ xᵀ, combined: ‖δ‖ x = ∂Wᵀ δ / ‖δ‖."""
    length = delta.norm()
    side = gradient.T @ delta / length
    outside = float((gradient - torch.outer(delta / length, side)).square().sum())
    return System(length * torch.eye(len(side), dtype=side.dtype), side, gradient.numel(), outside)


def _kernel_positions(layer: Layer, weight: Tensor) -> Tensor:
    """Which position n of a channel the kernel entry k meets at output position p: (n, k, p) of zeros and ones."""
    places, entries = math.prod(layer.enters[1:]), math.prod(weight.shape[2:])
    single = torch.eye(places, dtype=weight.dtype).view(places, 1, *layer.enters[1:])
    kernels = torch.eye(entries, dtype=weight.dtype).view(entries, 1, *weight.shape[2:])
    return layer.product(single, kernels, groups=1).flatten(2)


def _row_length(matrix: Tensor) -> Tensor:
    """Root mean square length of the rows; 1 if there is nothing to divide by."""
    length = matrix.norm() / math.sqrt(max(len(matrix), 1))
    return length if length > 0 else torch.ones_like(length)


@dataclass(frozen=True)
class RankAnalysis:
    """What the chain of systems recovers, layer by layer, first layer first."""

    layers: tuple[Judgement, ...]
    span: float
    rounding: float

    @property
    def index(self) -> float:
        """Σ_i (d − (i − 1))/d · (rank(A_i) − n_i) over the d layers: 0 if every layer's input is determined, else negative.

        Ref: R-GAP (Zhu and Blaschko 2021), rank analysis — index of an architecture's risk
        """
        depth = len(self.layers)
        return sum((depth - i) / depth * (layer.rank - layer.unknowns) for i, layer in enumerate(self.layers))

    @property
    def pixel_error(self) -> float | None:
        """Expected error of a pixel as a share of its range, where undetermined unknowns of the image are off by half of it. None if a
        later layer's input is guessed: then nothing is known about the layers before it."""
        first, *later = self.layers
        if any(layer.guessed for layer in later):
            return None
        return math.sqrt(min(first.off / self.span, 0.5) ** 2 + 0.25 * first.lost / first.unknowns)

    def lost(self) -> tuple[str, ...]:
        """Predicted losses, in words; empty if everything is recovered."""
        first, *later = self.layers
        found = [
            f"{layer.guessed} of the {layer.unknowns} values that enter {layer.name} are not determined: they and everything before are "
            "a guess"
            for layer in later
            if layer.guessed
        ]
        if first.lost:
            found.append(
                f"{first.lost} of the {first.unknowns} unknowns of the image are not determined: detail is lost"
            )
        off = self.pixel_error
        if not found and off is not None and off > SMALL_ERROR:
            found.append(wrong_pixels(off))
        return tuple(found)

    def rows(self) -> tuple[tuple[str, str], ...]:
        """The same as a table of questions and answers."""
        return (
            *(
                (
                    f"input of {layer.name}",
                    f"{layer.rank} of {layer.unknowns} unknowns from {layer.equations} equations, condition {layer.condition:.1e}",
                )
                for layer in self.layers
            ),
            ("rank analysis index", f"{self.index:g}"),
            ("expected error of a pixel", f"{self._off()} (numbers are rounded to {self.rounding:.0e})"),
            ("predicted", "; ".join(self.lost()) or "everything is recovered"),
        )

    def __str__(self) -> str:
        systems = ", ".join(f"{layer.rank} of {layer.unknowns} before {layer.name}" for layer in self.layers)
        return (
            f"identifiability: {systems}; rank analysis index {self.index:g}, expected error of a pixel {self._off()}; "
            f"predicted: {', '.join(self.lost()) or 'everything is recovered'}"
        )

    def _off(self) -> str:
        return "unknown" if self.pixel_error is None else f"{self.pixel_error:.1e} of its range"
