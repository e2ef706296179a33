"""A token embedding that is also the output layer: the output's part of its gradient spans few directions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import Inapplicable

RANK = 100
"""Singular values below this many rounding errors of the largest count as zero."""

SHOWING = 16
"""How many rows per dimension are enough to find the span; a large vocabulary has many more."""


@dataclass(frozen=True, eq=False)
class Output:
    """``basis`` (width, rank) spans the output layer's part; ``floor`` is what rounding leaves of it in a row."""

    basis: Tensor
    floor: float

    def without(self, rows: Tensor) -> Tensor:
        """Rows (N, width), in float64, without their part in those directions."""
        wide = rows.double()
        return wide - (wide @ self.basis) @ self.basis.T


def output_part(rows: Tensor, slots: int) -> Output:
    """Finds the directions of the output layer in the gradient of a table E that embeds tokens and scores them.

        ∂l/∂E_v = Σ_{p: t_p = v} δ_p  +  Σ_s (prob_s(v) − [v is the target at s]) h_s

    h_s are the features before the output layer, at most one per place out of ``slots``. A token that was not sent has only
    the second sum, so its row is in the span of the h_s, and there are many such tokens. The rows of sent tokens, at most
    ``slots``, are larger. So the ``2 slots`` largest are left out, and the others, scaled to length one, give the span.
    Orthogonal to it only the first sum remains.
    """
    width, eps = rows.shape[1], torch.finfo(rows.dtype).eps
    sizes = rows.double().norm(dim=1)
    idle = sizes.argsort()[: max(0, len(rows) - 2 * slots)]
    idle = idle[sizes[idle] > 0]
    idle = idle[:: max(1, len(idle) // (SHOWING * width))]
    if len(idle) < width:
        raise Inapplicable(
            f"the token embedding is also the output layer, and {len(rows)} tokens are too few to separate its {width} "
            "directions"
        )
    _, values, directions = torch.linalg.svd(rows[idle].double() / sizes[idle, None], full_matrices=False)
    rank = int((values > RANK * eps * values[0]).sum())
    if rank >= width:
        raise Inapplicable(
            f"the token embedding is also the output layer, and its gradient fills all {width} directions: more places are "
            "predicted than the model is wide, or there is noise"
        )
    slip = eps * float(values[0] / values[rank - 1])  # how far rounding turns the weakest direction
    return Output(directions[:rank].T, 10 * slip * float(sizes.max()))
