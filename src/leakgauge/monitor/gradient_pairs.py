"""Pairs of data features and gradients, as a training makes them: what the critic of the privacy-token paper is trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core import Loss, Signal
from leakgauge.errors import BadInput

Sketch = Callable[[Signal], Tensor]
"""Turns the gradients of the watched parameters, by name, into (layers, width) numbers."""


@dataclass(frozen=True)
class Pairs:
    """Rows that belong together: ``features`` (n, batch, d), ``layers`` each (n, size), ``others`` features of other data.

    ``others`` were made by the same weights from samples that had no part in the gradient. ``group`` is the sub-epoch.
    """

    features: Tensor
    layers: tuple[Tensor, ...]
    others: Tensor
    group: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Tensor) -> Pairs:
        layers = tuple(layer[rows] for layer in self.layers)
        return Pairs(self.features[rows], layers, self.others[rows], self.group[rows])


@dataclass
class Collection:
    """Grows by one pair per training step; ``pairs()`` stacks what is there."""

    _rows: list[tuple[Tensor, tuple[Tensor, ...], Tensor, int]] = field(default_factory=list)

    def add(self, features: Tensor, layers: Sequence[Tensor], others: Tensor, group: int) -> None:
        self._rows.append((features, tuple(layers), others, group))

    def __len__(self) -> int:
        return len(self._rows)

    def nbytes(self) -> int:
        tensors = [t for features, layers, others, _ in self._rows for t in (features, *layers, others)]
        return sum(t.nbytes for t in tensors)

    def pairs(self) -> Pairs:
        features, layers, others, groups = zip(*self._rows, strict=True)
        stacked = tuple(torch.stack(parts) for parts in zip(*layers, strict=True))
        return Pairs(torch.stack(features), stacked, torch.stack(others), torch.tensor(groups))


@dataclass(frozen=True)
class Probe:
    """Reads features and gradients off a model: ``feature_layer`` and ``gradient_layers`` are names of its modules."""

    model: nn.Module
    loss: Loss
    feature_layer: str
    gradient_layers: tuple[str, ...]
    sketch: Sketch | None = None

    def __post_init__(self) -> None:
        modules = dict(self.model.named_modules())
        for name in (self.feature_layer, *self.gradient_layers):
            if name not in modules or not name:
                raise BadInput(f"the model has no module {name!r}; name one of {', '.join(n for n in modules if n)}")
        for layer in self.gradient_layers:
            if not self._of(layer):
                raise BadInput(f"the module {layer!r} has no trainable parameter, so it has no gradient to look at")

    def _of(self, layer: str) -> list[str]:
        named = self.model.named_parameters()
        return [name for name, p in named if p.requires_grad and name.startswith(layer + ".")]

    def sizes(self, x: Tensor, y: Tensor) -> tuple[int, ...]:
        """Length of the vector of each layer, found by one pass over a sample."""
        with untouched_buffers(self.model):
            return tuple(len(layer) for layer in self.step(x, y)[1])

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, ...], dict[str, Tensor]]:
        """Features (batch, d) and one gradient vector per layer, on the CPU; and all gradients, by name."""
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        with torch.enable_grad():
            features, out = self.features(x)
            grads = torch.autograd.grad(self.loss(out, y), list(named.values()), allow_unused=True)
        every = {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), grads, strict=True)}
        return features.detach().cpu(), self._vectors(every), every

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
            return tuple(rows.detach().float().cpu().reshape(len(rows), -1))
        return tuple(torch.cat([g.flatten() for g in layer.values()]).cpu() for layer in watched.values())


@contextmanager
def untouched_buffers(model: nn.Module) -> Iterator[None]:
    """Running statistics are as before after the block, though it ran the model in train mode."""
    before = {name: b.detach().clone() for name, b in model.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
