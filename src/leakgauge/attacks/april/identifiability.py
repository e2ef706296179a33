"""What the linear systems of closed-form APRIL can and cannot recover, predicted before they are solved."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.april.ridge import NoisySystem, gain, penalty_share
from leakgauge.attacks.certificate import SMALL_ERROR, wrong_pixels

LARGE_ERROR = 0.1
"""From this share of the range on, a deficient rank is visible: 20 dB. Below it, the small singular values are still good enough."""

_FAR = 1e30
"""A squared error beyond any range that can still be multiplied by zero."""


@dataclass(frozen=True)
class Identifiability:
    """What the linear systems can and cannot recover, known before they are solved.

    Theorem 3.1 has ``tokens`` unknown rows of ``width`` numbers; it needs width ≥ tokens and ∂l/∂z of full rank. The patch
    embedding turns ``patch_values`` numbers into ``width``; it needs width ≥ patch_values and full ``patch_rank`` (None if
    tokens are looked up). A relative rounding error ``rounding`` grows by at most ``condition``. ``pixel_error`` is
    :func:`expected_pixel_error`, ``unseen`` the number of image values in no patch, ``samples`` the number of samples in the update.
    """

    tokens: int
    width: int
    patch_values: int | None
    rank: int
    condition: float
    rounding: float
    patch_rank: int | None = None
    pixel_error: float | None = None
    unseen: int = 0
    samples: int = 1

    def lost(self) -> tuple[str, ...]:
        """Predicted losses, in words; empty if everything is recovered."""
        found: list[str] = []
        if self.samples > 1:
            found.append(f"{self.samples} samples share one system: only their mixture is recovered")
        if self.width < self.tokens:
            found.append(f"{self.tokens} tokens are not determined by a width of {self.width}: tokens are mixed")
        if self.rank < min(self.tokens, self.width) and (self.pixel_error is None or self.pixel_error > LARGE_ERROR):
            found.append(f"the gradient of the tokens has rank {self.rank} of {self.tokens}: tokens are mixed")
        if self.patch_values is not None and self.width < self.patch_values:
            found.append(
                f"{self.patch_values} values of a patch are not determined by a width of {self.width}: detail is lost"
            )
        elif self.patch_values is not None and self.patch_rank is not None and self.patch_rank < self.patch_values:
            found.append(f"the patch embedding has rank {self.patch_rank} of {self.patch_values}: detail is lost")
        if self.unseen:
            found.append(f"{self.unseen} values of the image are in no patch: they stay unknown")
        if self.pixel_error is None and self.condition * self.rounding > 0.1:
            found.append(f"condition number {self.condition:.1e} lets rounding of {self.rounding:.0e} swamp the tokens")
        if self.pixel_error is not None and self.pixel_error > SMALL_ERROR and not found:
            found.append(wrong_pixels(self.pixel_error))
        return tuple(found)

    def rows(self) -> tuple[tuple[str, str], ...]:
        """The same as a table of questions and answers."""
        enough = {True: "enough", False: "too few"}
        patches: tuple[tuple[str, str], ...] = ()
        if self.patch_values is not None:
            fits = enough[self.width >= self.patch_values]
            patches = (("values of a patch against width", f"{self.patch_values} against {self.width}: {fits}"),)
        if self.patch_values is not None and self.patch_rank is not None:
            most = min(self.patch_values, self.width)
            patches = (*patches, ("rank of the patch embedding", f"{self.patch_rank} of {most}"))
        off = (
            () if self.pixel_error is None else (("expected error of a pixel", f"{self.pixel_error:.1e} of its range"),)
        )
        return (
            (
                "unknown tokens against width",
                f"{self.tokens} against {self.width}: {enough[self.width >= self.tokens]}",
            ),
            *patches,
            ("rank of the tokens' gradient", f"{self.rank} of {min(self.tokens, self.width)}"),
            ("condition number", f"{self.condition:.1e} (numbers are rounded to {self.rounding:.0e})"),
            *off,
            ("predicted", "; ".join(self.lost()) or "everything is recovered"),
        )

    def __str__(self) -> str:
        patches = "" if self.patch_values is None else f"{self.patch_values} values a patch, "
        off = "" if self.pixel_error is None else f", pixels off by about {self.pixel_error:.1e} of their range"
        return (
            f"identifiability: {self.tokens} unknown tokens, width {self.width}, {patches}"
            f"rank {self.rank}, condition {self.condition:.1e}{off}; predicted: {', '.join(self.lost()) or 'everything is recovered'}"
        )


def identifiability(gradient: Tensor, values: int | None, dtype: torch.dtype) -> Identifiability:
    """What the system of Theorem 3.1 can recover from ``gradient`` (tokens, width), ∂l/∂z as shared in ``dtype``."""
    singular = torch.linalg.svdvals(gradient)
    rounding = torch.finfo(dtype).eps
    # rounding is random over the entries, so it changes singular values by its size times the root of the dimension
    rank = int((singular > singular[0] * rounding * math.sqrt(max(gradient.shape))).sum())
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else math.inf
    tokens, width = gradient.shape
    return Identifiability(tokens, width, values, rank, condition, rounding)


def expected_pixel_error(
    system: NoisySystem, weights: Tensor, *, rounding: float, span: float, ridge: float = 0.0
) -> float:
    """Root mean square error of the solution's pixels after clipping to their range, as a share of it (``span``).

        τ²_pq = Σ_ij v²_pi q²_qj · ((ν g_ij)² + (1 − k_ij)² (d_i · e_ij)² + k²_ij span²/12) + (1 − Σ_ij v²_pi q²_qj) · (span/2)²
        error² = mean over pixels of min(τ_pq, span/2)²

    g_ij = σ_ij/(σ²_ij + λ) and k_ij = λ/(σ²_ij + λ) for a ``ridge`` λ (:mod:`leakgauge.attacks.april.ridge`), which removes the share
    k_ij of the image's difference from grey, span/√12 if all values are equally likely. The plain solution has g_ij = 1/σ_ij, k_ij = 0.

    ν is the root mean square of the right side's entries outside all l_i and p_j, where the truth has no part: rounding, noise
    added by a defense, lost digits in a weight update. It is assumed to be as large inside, where g_ij enlarges it. If the
    directions cover everything, ν is ``rounding`` times the right side. Pixels that no direction reaches are off by half of the
    range. One swamped direction spoils all pixels that it touches, so the range bounds the error of a pixel, not of a
    direction.

    l_i leans towards the noise E of ∂l/∂z by d_i = min(1, width · std²/s_i²) and loses that share of the tokens:
    e_ij = |v_iᵀ z₀ p_j|/t_j, at least span/2 because the picture is unknown. std is that of equal noise on all entries,
    ν = std · √((‖W‖² + ‖z₀‖²)/width); ``weights`` is W, (3·width, width).

    Ref: Golub and Van Loan 2013, section 5.3.7 — sensitivity of least squares, with the residual as the size of the noise
    """
    every, reached, width = system.side.numel(), system.singular.numel(), len(system.side)
    explained = system.left @ (system.left.T @ system.side @ system.inner) @ system.inner.T
    if reached < every:
        noise = float((system.side - explained).norm()) / math.sqrt(every - reached)
    else:
        noise = rounding * float(system.side.norm()) / math.sqrt(every)
    stretch = (system.embedding @ system.outer).norm(dim=0)  # t_j
    lean = noise**2 * width**2 / (float(weights.norm()) ** 2 + float(system.base.norm()) ** 2)  # width · std²
    drowned = (lean * (stretch / system.singular).square()).clamp_max(1)
    missed = (system.right.T @ system.base @ system.inner / stretch).abs().clamp_min(span / 2)
    pulled = penalty_share(system.singular, ridge)
    squared = (noise * gain(system.singular, ridge)).square() + ((1 - pulled) * drowned * missed).square()
    squared = squared + pulled.square() * span**2 / 12
    if not ridge:  # a direction that nothing reaches is swamped by rounding, unless a ridge holds it
        squared = torch.where(system.singular > 0, squared, math.inf)
    squared = squared.clamp_max(_FAR * span**2)
    token, pixel = system.right.square(), system.outer.square()
    unreached = (1 - token.sum(1)[:, None] * pixel.sum(1)).clamp_min(0)
    spread = token @ squared @ pixel.T + unreached * (span / 2) ** 2
    return math.sqrt(float(spread.clamp_max((span / 2) ** 2).mean())) / span
