"""Look-up tables indexed by the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.engine.rules.use import Recorder, Use


@dataclass(frozen=True, eq=False)
class EmbeddingUse(Use):
    """z = W[index]; the restarts are the outermost part of ``index`` (rows·…)."""

    index: Tensor
    entries: int
    skipped: int | None
    """``padding_idx``: this entry gets no gradient."""

    def _parts(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        index, d = self.index.reshape(self.rows, -1), delta.reshape(self.rows, -1, delta.shape[-1])
        return index, d if self.skipped is None else d * (index != self.skipped)[..., None]

    def weight_gradient(self, delta: Tensor) -> Tensor:
        index, d = self._parts(delta)
        empty = torch.zeros(self.rows, self.entries, d.shape[-1], dtype=d.dtype, device=d.device)
        return empty.scatter_add(1, index[..., None].expand_as(d), d)

    def bias_gradient(self, delta: Tensor) -> Tensor:
        raise AssertionError("an embedding has no bias")

    def prefers_gram(self) -> bool:
        return self.index.numel() // self.rows < self.entries

    def dot(self, delta: Tensor, target: Tensor) -> Tensor:
        index, d = self._parts(delta)
        own = target.dim() == 3
        looked_up = target.gather(1, index[..., None].expand_as(d)) if own else target[index]
        return (looked_up * d).flatten(1).sum(1)

    def square(self, delta: Tensor) -> Tensor:
        index, d = self._parts(delta)
        same = index[:, :, None] == index[:, None, :]
        return ((d @ d.transpose(1, 2)) * same).flatten(1).sum(1)


def embedding(
    tape: Recorder,
    func: Any,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if not tape.is_data(input) or tape.name_of(weight) is None or max_norm is not None or scale_grad_by_freq:
        return NotImplemented
    skipped = padding_idx if padding_idx is None or padding_idx >= 0 else len(weight) + padding_idx
    return tape.tap(
        F.embedding(input, weight),
        lambda edge: EmbeddingUse(tape.rows, tape.name_of(weight), None, edge, input, len(weight), skipped),
    )
