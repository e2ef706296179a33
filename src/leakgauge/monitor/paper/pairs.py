"""Pairs of data features and gradients from a training: the training data of the privacy-token paper's critic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core import Loss, Signal
from leakgauge.errors import BadInput

Shorten = Callable[[Signal], Tensor]
"""Turns the gradients of the watched parameters, by name, into (layers, width) numbers."""


@dataclass(frozen=True)
class GradientPairs:
    """Matching rows: ``features`` (n, batch, d), ``layers`` each (n, size), ``others`` features of other data.

    ``others`` come from the same weights and from samples that had no part in the gradient. ``group`` is the sub-epoch.
    """

    features: Tensor
    layers: tuple[Tensor, ...]
    others: Tensor
    group: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def first(self, count: int) -> GradientPairs:
        """The oldest ``count`` pairs, without a copy."""
        layers = tuple(layer[:count] for layer in self.layers)
        return GradientPairs(self.features[:count], layers, self.others[:count], self.group[:count])

    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.features, *self.layers, self.others))


class Collection:
    """Space for ``capacity`` pairs, allocated with the first; ``pairs()`` returns those collected so far, without a copy."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self._count = capacity, 0
        self._pairs: GradientPairs | None = None

    def __len__(self) -> int:
        return self._count

    def add(self, features: Tensor, layers: Sequence[Tensor], others: Tensor, group: int) -> None:
        if self._pairs is None:
            room = [t.new_empty(self._capacity, *t.shape) for t in (features, others, *layers)]
            self._pairs = GradientPairs(
                room[0], tuple(room[2:]), room[1], torch.zeros(self._capacity, dtype=torch.long)
            )
        every = (self._pairs.features, self._pairs.others, *self._pairs.layers)
        for kept, given in zip(every, (features, others, *layers), strict=True):
            kept[self._count] = given
        self._pairs.group[self._count] = group
        self._count += 1

    def pairs(self) -> GradientPairs:
        if self._pairs is None:
            raise BadInput("no pair has been collected yet; train for a step before reading")
        return self._pairs.first(self._count)


@dataclass(frozen=True)
class GradientReader:
    """Reads features and gradients from a model: ``feature_layer`` and ``gradient_layers`` are names of its modules."""

    model: nn.Module
    loss: Loss
    feature_layer: str
    gradient_layers: tuple[str, ...]
    sketch: Shorten | None = None
    kept_on: torch.device | None = None
    """Where features and vectors are stored; by default the CPU, which has more memory."""

    def __post_init__(self) -> None:
        modules = dict(self.model.named_modules())
        for name in (self.feature_layer, *self.gradient_layers):
            if name not in modules or not name:
                raise BadInput(f"the model has no module {name!r}; name one of {', '.join(n for n in modules if n)}")
        for layer in self.gradient_layers:
            if not self._of(layer):
                raise BadInput(f"the module {layer!r} has no trainable parameter, so it has no gradient to read")

    def _of(self, layer: str) -> list[str]:
        named = self.model.named_parameters()
        return [name for name, p in named if p.requires_grad and name.startswith(layer + ".")]

    def sizes(self, x: Tensor, y: Tensor) -> tuple[int, tuple[int, ...]]:
        """Number of features and length of each layer's gradient vector, from one pass over a batch."""
        with preserve_buffers(self.model):
            features, layers, _ = self.step(x, y)
        return features.shape[1], tuple(len(layer) for layer in layers)

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
        """Features (batch, d) and one gradient vector per layer, on ``kept_on``; and all gradients, by name."""
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        with torch.enable_grad():
            features, out = self.features(x)
            grads = torch.autograd.grad(self.loss(out, y), list(named.values()), allow_unused=True)
        every = {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), grads, strict=True)}
        return self.kept(features), self._vectors(every), every

    def kept(self, values: Tensor) -> Tensor:
        return values.detach().to(self.kept_on or "cpu")

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Output of the feature layer, one row per sample, and of the model."""
        caught: list[Tensor] = []

        def catch(module: nn.Module, inputs: Any, output: Any) -> None:
            caught.append(output)

        handle = self.model.get_submodule(self.feature_layer).register_forward_hook(catch)
        try:
            out = self.model(x)
        finally:
            handle.remove()
        if not caught:
            raise BadInput(f"the module {self.feature_layer!r} did not run in the forward pass; name one that does")
        return caught[-1].flatten(1), out

    def _vectors(self, every: dict[str, Tensor]) -> tuple[Tensor, ...]:
        watched = {layer: {name: every[name] for name in self._of(layer)} for layer in self.gradient_layers}
        if self.sketch is not None:
            rows = self.sketch({name: g for layer in watched.values() for name, g in layer.items()})
            return tuple(self.kept(rows).float().reshape(len(rows), -1))
        return tuple(self.kept(torch.cat([g.flatten() for g in layer.values()])) for layer in watched.values())


@contextmanager
def preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Restores running statistics after the block, although it ran the model in train mode."""
    before = {name: b.detach().clone() for name, b in model.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
