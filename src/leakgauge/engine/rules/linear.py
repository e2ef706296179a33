"""Linear layers with any leading dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from leakgauge.engine.rules.products import compare_product, gram_is_cheaper, plain_types, product, two_numbers
from leakgauge.engine.rules.use import Recorder, Use


@dataclass(frozen=True, eq=False)
class LinearUse(Use):
    """z = a Wᵀ + b; the restarts are the outermost part of ``a`` (rows·…, inputs)."""

    a: Tensor
    outputs: int

    def _a(self) -> Tensor:
        return self.a.reshape(self.rows, -1, self.a.shape[-1])

    def _d(self, delta: Tensor) -> Tensor:
        return delta.reshape(self.rows, -1, delta.shape[-1])

    def weight_gradient(self, delta: Tensor) -> Tensor:
        return product(self._d(delta), self._a())

    def bias_gradient(self, delta: Tensor) -> Tensor:
        return self._d(delta).sum(1)

    def prefers_gram(self) -> bool:
        inputs = self.a.shape[-1]
        return gram_is_cheaper(self.a.numel() // inputs // self.rows, inputs, self.outputs)

    def numbers(self, delta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return two_numbers(self._a(), self._d(delta), target)

    def compare(self, delta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if not plain_types(delta, self.a, target):
            return super().compare(delta, target)
        square, difference = compare_product(self._d(delta), self._a(), target)
        return square, difference.flatten(1)


def linear(tape: Recorder, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not tape.is_data(input) or tape.name_of(weight) is None:
        return NotImplemented
    direct = bias is None or tape.name_of(bias) is not None
    output = tape.tap(
        F.linear(input, weight, bias if direct else None),
        lambda edge: LinearUse(
            tape.rows, tape.name_of(weight), tape.name_of(bias) if direct else None, edge, input, len(weight)
        ),
    )
    return output if direct else tape.add_bias(output, bias, dim=-1)
