"""A loss with a given gradient at the model's output."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Along:
    """loss(z, d) = 1/B Σ_k ⟨z_k, d_k⟩ for outputs z (B, C) and the first C columns d of the targets: its gradient with respect to z is
    d/B, whatever z is. A mean, as channels that weigh parts of a batch by their size expect. Further columns are what enters the module
    ``layer``, for terms that read it.

    With d the gradient of another loss at the truth's output, both losses have the same gradient with respect to the weights there.
    """

    layer: str = ""

    def __call__(self, output: Tensor, towards: Tensor, /) -> Tensor:
        return (output * towards[..., : output.shape[-1]]).sum(-1).mean()
