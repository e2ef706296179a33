"""The linear system of closed-form APRIL with noisy gradients: a ridge solution, and how wrong it can be.

The adversary sees Ã = A + E and B̃ = B + F instead of A z = B, where A = (∂l/∂E_pos)ᵀ has one row per width and one column per
token. Both sides are noisy (errors in variables). The tokens are z = z₀ + X Pᵀ, where z₀ are the tokens of a picture guessed
beforehand, X (tokens, values) is the difference of the pixels from that picture and P the patch embedding's weight (or the
identity, for tokens themselves). The ridge solution of both linear maps at once is

    X̂ = argmin ‖Ã X Pᵀ − (B̃ − Ã z₀)‖² + λ‖X‖².

With singular values s_i of Ã (left vectors l_i, right v_i) and t_j of P (left p_j, right q_j) it splits into scalars:

    v_iᵀ X̂ q_j = σ_ij / (σ_ij² + λ) · l_iᵀ (B̃ − Ã z₀) p_j,     σ_ij = s_i t_j.

Because B̃ − Ã z₀ = Ã X Pᵀ + R with R = F − E z, its error splits exactly, for noise of any size, into what the penalty removes and
what the noise adds:

    v_iᵀ (X̂ − X) q_j = −λ / (σ_ij² + λ) · v_iᵀ X q_j + σ_ij / (σ_ij² + λ) · l_iᵀ R p_j.                          (*)

s_i are those of the *observed* Ã, which the adversary knows, so (*) gives a rigorous bound, not a first-order one:
:func:`error_bound`. In terms of the unknown A, Weyl's inequality |s_i(Ã) − s_i(A)| ≤ ‖E‖₂ turns it, for λ = 0 and P = 1, into Wedin's
bound for least squares with zero residual: ‖ẑ − z‖ ≤ (‖F‖ + ‖E‖·‖z‖) / (s_min(A) − ‖E‖).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from leakgauge.errors import BadInput, Inapplicable


@dataclass(frozen=True, eq=False)
class NoisySystem:
    """Ã X Pᵀ = B̃ − Ã z₀ by singular values: ``singular`` (k, m) are σ_ij, ``left`` (width, k) l_i, ``right`` (tokens, k) v_i,
    ``inner`` (width, m) p_j, ``outer`` (values, m) q_j.

    ``guess`` is the picture (tokens, values) to which X is relative, ``base`` its tokens z₀ (tokens, width), ``side`` the right
    side (width, width), ``embedding`` P (width, values).
    """

    left: Tensor
    right: Tensor
    inner: Tensor
    outer: Tensor
    singular: Tensor
    guess: Tensor
    base: Tensor
    side: Tensor
    embedding: Tensor

    @classmethod
    def of(
        cls,
        position: Tensor,
        products: Tensor,
        base: Tensor,
        *,
        embedding: Tensor | None = None,
        guess: Tensor | None = None,
    ) -> NoisySystem:
        """From ``position`` (tokens, width) = ∂l/∂E_pos and ``products`` (width, width) = B̃.

        Without an ``embedding`` the tokens themselves are unknown, and ``base`` is the guess.
        """
        left, s, right = torch.linalg.svd(position.T, full_matrices=False)
        side = products - position.T @ base
        if embedding is None or guess is None:
            one = torch.eye(len(side), dtype=side.dtype)
            return cls(left, right.T, one, one, s[:, None].expand(-1, len(side)), base, base, side, one)
        inner, t, outer = torch.linalg.svd(embedding, full_matrices=False)
        return cls(left, right.T, inner, outer.T, s[:, None] * t, guess, base, side, embedding)

    @cached_property
    def _rotated(self) -> Tensor:
        """l_iᵀ (B̃ − Ã z₀) p_j, computed once for all ridges."""
        return self.left.T @ self.side @ self.inner

    @cached_property
    def _unexplained(self) -> Tensor:
        """‖·‖² of the right side outside all l_i and p_j."""
        return (self.side.square().sum() - self._rotated.square().sum()).clamp_min(0)

    def solve(self, ridge: float) -> Tensor:
        """The guess plus X̂, (tokens, values); for λ → 0 the plain least-squares solution.

        Ref: Hoerl and Kennard 1970, Eq. (2.1) — ridge regression
        """
        return self.guess + self.right @ (gain(self.singular, ridge) * self._rotated) @ self.outer.T

    def tokens(self, solution: Tensor) -> Tensor:
        """The tokens z of a solution, (tokens, width)."""
        return self.base + (solution - self.guess) @ self.embedding.T

    def residual(self, ridge: float) -> float:
        """‖Ã X̂ Pᵀ − (B̃ − Ã z₀)‖_F; it grows with λ."""
        return float((self._unexplained + (penalty_share(self.singular, ridge) * self._rotated).square().sum()).sqrt())

    def noise_outside(self) -> float:
        """‖R‖_F, estimated from the part of the right side that no X can explain, which is only noise.

        R is assumed to have the same size in all width² directions, of which k·m can be explained.
        """
        every, explained = self.side.numel(), self.singular.numel()
        if explained >= every:
            raise Inapplicable(
                f"{len(self.right)} tokens explain everything in a width of {len(self.side)}, so the noise cannot be estimated; "
                "declare it"
            )
        return self.residual(0.0) * math.sqrt(every / (every - explained))


def gain(singular: Tensor, ridge: float) -> Tensor:
    """σ/(σ² + λ): the factor on noise; 0 where σ and λ are 0, as in least squares of minimum norm."""
    return torch.where(singular > 0, singular / (singular.square() + ridge), 0.0)


def penalty_share(singular: Tensor, ridge: float) -> Tensor:
    """λ/(σ² + λ): the share that the penalty removes; 1 where σ and λ are 0."""
    return torch.where(singular > 0, ridge / (singular.square() + ridge), 1.0)


def ridge_by_discrepancy(system: NoisySystem, noise: float) -> float:
    """The λ at which the residual equals the noise, ‖Ã X̂ Pᵀ − (B̃ − Ã z₀)‖_F = ‖R‖_F = ``noise``, by bisection.

    Ref: Morozov 1966, discrepancy principle — as much residual as there is noise, no more
    """
    if not noise >= 0:
        raise BadInput(f"the size of the noise must not be negative, got {noise!r}")
    largest = float(system.singular.max()) ** 2
    if largest == 0:  # zero gradient: every ridge gives the guess
        return 0.0
    low, high = math.log(1e-20 * largest), math.log(1e6 * largest)
    if noise <= system.residual(math.exp(low)):
        return 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if system.residual(math.exp(middle)) < noise else (low, middle)
    return math.exp((low + high) / 2)


def ridge_from_noise(system: NoisySystem, weights: Tensor, std: float) -> float:
    """λ = (mean square of an entry of R) / (mean square of an entry of X): the ridge that is best on average.

    For X and R with independent, centred entries this λ has the smallest expected error. R's mean square follows from ``std``
    (see :func:`noise_bound`; E's part counts width/tokens times, because X̂ can use E's own directions). X is estimated by the
    solution of the discrepancy principle, which by itself smooths too much if noise is small.

    Ref: Hoerl and Kennard 1970, section 4 — the ridge of least mean square error
    """
    tokens, width = system.base.shape
    first = system.solve(ridge_by_discrepancy(system, _typical(weights, float(system.base.norm()), std, width)))
    energy = float((first - system.guess).square().mean())
    if std == 0 or energy == 0:
        return 0.0
    stretched = math.sqrt(max(1.0, width / tokens)) * float(system.tokens(first).norm())
    return (_typical(weights, stretched, std, width) / width) ** 2 / energy


def std_from_outside(system: NoisySystem, weights: Tensor) -> float:
    """The deviation of undeclared noise, from what no solution explains; too small if noise swamps Ã."""
    size = system.noise_outside()
    tokens = float(system.tokens(system.solve(ridge_by_discrepancy(system, size))).norm())
    return size / _typical(weights, tokens, 1.0, system.base.shape[1])


def _typical(weights: Tensor, tokens: float, std: float, width: int) -> float:
    """Root mean square of ‖F − E z‖_F."""
    return std * math.sqrt(width) * math.hypot(float(weights.norm()), tokens)


def error_bound(system: NoisySystem, ridge: float, *, noise: float, distance: float) -> float:
    """‖X̂ − X‖_F ≤ max λ/(σ_ij² + λ) · ``distance`` + max σ_ij/(σ_ij² + λ) · ``noise``, from (*) above.

    ``distance`` ≥ ‖X‖_F is how far the truth is from the guess, and ``noise`` ≥ ‖F − E z‖_F. It holds for all noise of that size,
    even adversarial. Directions that width or embedding do not reach keep their whole distance.

    Ref: Golub and Van Loan 2013, section 5.3.7 — sensitivity of least squares, here exact and with a penalty
    Ref: Wedin 1973, Theorem 5.1 — perturbation of pseudo-inverses, the case λ = 0
    """
    unreached = system.guess.numel() > system.singular.numel()
    share = 1.0 if unreached else float(penalty_share(system.singular, ridge).max())
    return share * distance + float(gain(system.singular, ridge).max()) * noise


def noise_bound(weights: Tensor, tokens: float, *, std: float, width: int, deviations: float = 3.0) -> float:
    """‖F − E z‖_F ≤ std · (√width · √(‖W‖_F² + ‖z‖_F²) + t · √(‖W‖₂² + ‖z‖₂²)), except with probability e^(−t²/2).

    Every entry of ∂W (q, k, v stacked; ``weights`` is W, (3·width, width)) and of ∂l/∂E_pos has independent noise N(0, std²).
    F = Wᵀ·noise, so ‖R‖_F = ‖F − E z‖_F has mean square width · std² · (‖W‖_F² + ‖z‖_F²), and as a function of the noise its
    Lipschitz constant is std · √(‖W‖₂² + ‖z‖₂²). ``tokens`` ≥ ‖z‖_F (≥ ‖z‖₂) includes known tokens; t is ``deviations``.

    Ref: Boucheron, Lugosi, Massart 2013, Theorem 5.6 — concentration of Lipschitz functions of Gaussian variables
    """
    slope = math.hypot(float(torch.linalg.matrix_norm(weights, 2)), tokens)
    return _typical(weights, tokens, std, width) + deviations * std * slope
