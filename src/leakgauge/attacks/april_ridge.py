"""The linear system of closed-form APRIL when its gradients carry noise: a ridge solution, and how wrong it can be.

The adversary sees Ã = A + E and B̃ = B + F instead of A z = B, where A = (∂l/∂E_pos)ᵀ has one row per width and one column per
token. Both sides are noisy (errors in variables). With a guess z₀ made before looking, and u = z − z₀, the ridge solution is

    û = argmin ‖Ã u − (B̃ − Ã z₀)‖² + λ‖u‖² = (ÃᵀÃ + λ)⁻¹ Ãᵀ (B̃ − Ã z₀),     ẑ = z₀ + û.

Since B̃ − Ã z₀ = Ã u + R with R = F − E z, its error splits exactly, whatever the size of the noise, into what the
penalty takes away and what the noise adds:

    ẑ − z = −λ (ÃᵀÃ + λ)⁻¹ u + (ÃᵀÃ + λ)⁻¹ Ãᵀ R.                                                               (*)

With the singular values s_i of the *observed* Ã, which the adversary knows, the norms of the two matrices are max λ/(s_i² + λ)
and max s_i/(s_i² + λ). That gives :func:`error_bound`, which is rigorous and not of first order. In terms of the unknown A,
Weyl's inequality |s_i(Ã) − s_i(A)| ≤ ‖E‖₂ turns it, for λ = 0, into Wedin's bound for least squares with zero residual:
‖ẑ − z‖ ≤ (‖F‖ + ‖E‖·‖z‖) / (s_min(A) − ‖E‖). To first order s_i(Ã) = s_i(A), and averaging (*) over independent noise gives
:func:`expected_error`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput, Inapplicable


@dataclass(frozen=True, eq=False)
class NoisySystem:
    """Ã u = B̃ − Ã z₀ by the singular values of Ã: ``left`` (width, k), ``singular`` (k,), ``right`` (tokens, k).

    ``prior`` is z₀ (tokens, width), ``side`` the right side B̃ − Ã z₀ (width, width).
    """

    left: Tensor
    singular: Tensor
    right: Tensor
    prior: Tensor
    side: Tensor

    @classmethod
    def of(cls, position: Tensor, products: Tensor, prior: Tensor) -> NoisySystem:
        """From ``position`` (tokens, width) = ∂l/∂E_pos and ``products`` (width, width) = B̃."""
        left, singular, right = torch.linalg.svd(position.T, full_matrices=False)
        return cls(left, singular, right.T, prior, products - position.T @ prior)

    def solved(self, ridge: float) -> Tensor:
        """ẑ = z₀ + Σ_i s_i/(s_i² + λ) · v_i (l_iᵀ (B̃ − Ã z₀)); for λ → 0 the plain least-squares solution.

        Ref: Hoerl and Kennard 1970, Eq. (2.1) — ridge regression
        """
        return self.prior + self.right @ (_gain(self.singular, ridge)[:, None] * (self.left.T @ self.side))

    def residual(self, ridge: float) -> float:
        """‖Ã û − (B̃ − Ã z₀)‖_F; it grows with λ."""
        inside = self.left.T @ self.side
        outside = (self.side.square().sum() - inside.square().sum()).clamp_min(0)
        return float((outside + (_kept(self.singular, ridge)[:, None] * inside).square().sum()).sqrt())

    def noise_outside(self) -> float:
        """‖R‖_F, estimated from the part of the right side that no û can explain: only noise lies there.

        R is taken to have the same size in every one of ``width`` directions, of which Ã's columns explain ``tokens``.
        """
        width, explained = self.left.shape
        if explained >= width:
            raise Inapplicable(
                f"{explained} tokens explain everything in a width of {width}, so the noise cannot be estimated; declare it"
            )
        return self.residual(0.0) * math.sqrt(width / (width - explained))


def _gain(singular: Tensor, ridge: float) -> Tensor:
    """s/(s² + λ): what becomes of noise; 0 where s and λ are 0, as least squares of lowest norm has it."""
    return torch.where(singular > 0, singular / (singular.square() + ridge), 0.0)


def _kept(singular: Tensor, ridge: float) -> Tensor:
    """λ/(s² + λ): what the penalty takes away; 1 where s and λ are 0."""
    return torch.where(singular > 0, ridge / (singular.square() + ridge), 1.0)


def ridge_by_discrepancy(system: NoisySystem, noise: float) -> float:
    """The λ for which the residual is as large as the noise, ‖Ã û − (B̃ − Ã z₀)‖_F = ‖R‖_F = ``noise``, by bisection.

    Ref: Morozov 1966, discrepancy principle — as much residual as there is noise, no more
    """
    if not noise >= 0:
        raise BadInput(f"the size of the noise must not be negative, got {noise!r}")
    largest = float(system.singular[0]) ** 2
    low, high = math.log(1e-20 * largest), math.log(1e6 * largest)
    if noise <= system.residual(math.exp(low)):
        return 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if system.residual(math.exp(middle)) < noise else (low, middle)
    return math.exp((low + high) / 2)


def ridge_from_noise(system: NoisySystem, weights: Tensor, std: float) -> float:
    """λ = (mean square of an entry of R) / (mean square of an entry of u): the ridge that is best on average.

    For u and R of independent, centred entries this λ has the smallest expected error. R's mean square follows from ``std``
    (see :func:`noise_bound`; E's part is counted width/tokens times, since û can use E's own directions). u is estimated by
    the solution of the discrepancy principle, which by itself smooths too much where noise is small.

    Ref: Hoerl and Kennard 1970, section 4 — the ridge of least mean square error
    """
    tokens, width = system.prior.shape
    first = system.solved(ridge_by_discrepancy(system, _typical(weights, float(system.prior.norm()), std, width)))
    energy = float((first - system.prior).square().mean())
    if std == 0 or energy == 0:
        return 0.0
    stretched = math.sqrt(max(1.0, width / tokens)) * float(first.norm())
    return (_typical(weights, stretched, std, width) / width) ** 2 / energy


def std_from_outside(system: NoisySystem, weights: Tensor) -> float:
    """The noise's deviation where nobody declares it, from what no solution explains; too small where noise drowns Ã."""
    size = system.noise_outside()
    tokens = float(system.solved(ridge_by_discrepancy(system, size)).norm())
    return size / _typical(weights, tokens, 1.0, system.prior.shape[1])


def _typical(weights: Tensor, tokens: float, std: float, width: int) -> float:
    """Root mean square of ‖F − E z‖_F."""
    return std * math.sqrt(width) * math.hypot(float(weights.norm()), tokens)


def error_bound(system: NoisySystem, ridge: float, *, noise: float, distance: float) -> float:
    """‖ẑ − z‖_F ≤ max_i λ/(s_i² + λ) · ``distance`` + max_i s_i/(s_i² + λ) · ``noise``, from (*) above.

    ``distance`` ≥ ‖z − z₀‖_F and ``noise`` ≥ ‖F − E z‖_F. It holds for every noise of that size, also for noise made on purpose.
    Tokens that the width does not reach (s = 0) keep their whole distance.

    Ref: Golub and Van Loan 2013, section 5.3.7 — sensitivity of least squares, here exact and with a penalty
    Ref: Wedin 1973, Theorem 5.1 — perturbation of pseudo-inverses, the case λ = 0
    """
    unreached = system.right.shape[0] > len(system.singular)
    kept = 1.0 if unreached else float(_kept(system.singular, ridge).max())
    return kept * distance + float(_gain(system.singular, ridge).max()) * noise


def noise_bound(weights: Tensor, tokens: float, *, std: float, width: int, deviations: float = 3.0) -> float:
    """‖F − E z‖_F ≤ std · (√width · √(‖W‖_F² + ‖z‖_F²) + t · √(‖W‖₂² + ‖z‖₂²)), but for a probability of e^(−t²/2).

    Independent N(0, std²) lies on every entry of ∂W (q, k, v stacked; ``weights`` is W, (3·width, width)) and of ∂l/∂E_pos.
    F = Wᵀ·noise, so ‖R‖_F = ‖F − E z‖_F has the mean square width · std² · (‖W‖_F² + ‖z‖_F²), and as a function of the noise
    the Lipschitz constant std · √(‖W‖₂² + ‖z‖₂²). ``tokens`` ≥ ‖z‖_F (≥ ‖z‖₂) counts known tokens too; t is ``deviations``.

    Ref: Boucheron, Lugosi, Massart 2013, Theorem 5.6 — concentration of Lipschitz functions of Gaussian variables
    """
    slope = math.hypot(float(torch.linalg.matrix_norm(weights, 2)), tokens)
    return _typical(weights, tokens, std, width) + deviations * std * slope


def expected_error(system: NoisySystem, ridge: float, weights: Tensor, *, std: float, tokens: float) -> float:
    """First-order root mean square of the noise's part of ‖ẑ − z‖_F, for N(0, std²) on every entry of both sides.

        E ‖(ÃᵀÃ + λ)⁻¹ Ãᵀ R‖_F² ≈ Σ_i (s_i/(s_i² + λ))² · std² · (width · ‖W l_i‖² + ‖z‖_F²)

    With l_i the left singular vectors: l_iᵀF has variance ‖W l_i‖² in each of ``width`` columns, and l_iᵀE z has mean square
    ‖z‖_F² = ``tokens``². What the penalty takes away is not counted.

    Ref: Golub and Van Loan 2013, section 5.3.7 — first-order sensitivity of least squares
    """
    width = system.left.shape[0]
    variance = width * (weights @ system.left).square().sum(0) + tokens**2
    return std * float((_gain(system.singular, ridge).square() * variance).sum().sqrt())
