"""Batches that are passed by name with their labels, as Hugging Face trainers do: packed into one tensor, with the model's own loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LABELS = ("labels", "label", "targets", "target")
"""Names under which models that compute their own loss take labels."""
MASK = "attention_mask"
"""Name under which models take which places are attended to; the others are padding."""
IGNORED = -100
"""The label of a place that the loss leaves out."""


@dataclass(frozen=True)
class Packing:
    """Names of the tensors of a batch, in the order in which they are packed; ``single`` ones have one number per sample."""

    names: tuple[str, ...]
    single: frozenset[str]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Packing | None:
        """How a batch can be packed; None unless it has token ids (n, length), labels, and other whole numbers of the same shapes only."""
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor) and value.dim() > 0}
        shapes = {tuple(value.shape) for value in tensors.values()}
        whole = all(not value.is_floating_point() and not value.is_complex() for value in tensors.values())
        if not (whole and "input_ids" in tensors and any(name in tensors for name in LABELS)):
            return None
        long = tuple(tensors["input_ids"].shape)
        if len(long) != 2 or not shapes <= {long, long[:1]}:
            return None
        return cls(tuple(tensors), frozenset(name for name, value in tensors.items() if value.dim() == 1))

    def pack(self, given: Mapping[str, Tensor]) -> Tensor:
        """(n, tensors, length)"""
        length = given["input_ids"].shape[-1]
        rows = [
            given[name][..., None].expand(-1, length) if name in self.single else given[name] for name in self.names
        ]
        return torch.stack([row.detach().long() for row in rows], 1)

    def fits(self, length: int, others: int) -> bool:
        """Whether samples of ``length`` can be joined with ``others``: without a mask the model would read the places added."""
        return length == others or (MASK in self.names and MASK not in self.single)

    def attended(self, packed: Tensor) -> Tensor:
        """The places that are attended to, moved to the front, then zeros: the same for a sample however its batch was filled up."""
        if MASK not in self.names:
            return packed
        there = packed[:, None, self.names.index(MASK)] != 0
        order = there.int().argsort(dim=2, descending=True, stable=True)
        return (packed * there).gather(2, order.expand_as(packed))

    def widen(self, packed: Tensor, length: int) -> Tensor:
        """Filled up to ``length`` with places that nothing attends to, by the mask, and the loss leaves out."""
        wide = F.pad(packed, (0, length - packed.shape[2]))
        for number, name in enumerate(self.names):
            if name in LABELS and name not in self.single:
                wide[:, number, packed.shape[2] :] = IGNORED
        return wide


class OwnLoss(nn.Module):
    """A model that takes a packed batch and returns its own loss; its names get the prefix ``model.``."""

    def __init__(self, model: nn.Module, packing: Packing) -> None:
        super().__init__()
        self.model = model
        self.packing = packing

    def forward(self, packed: Tensor) -> Tensor:
        names, single = self.packing.names, self.packing.single
        found = self.model(
            **{name: packed[:, k, 0] if name in single else packed[:, k] for k, name in enumerate(names)}
        )
        return found["loss"] if isinstance(found, Mapping) else found[0]


def as_given(loss: Tensor, labels: Tensor) -> Tensor:
    """The loss that the model has computed itself."""
    return loss
