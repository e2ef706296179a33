"""Soteria: hides part of what the last layer was given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.channels.gradient import Gradient, gradient
from leakgauge.core import Channel, Defense, Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families import find_roles

PIECE = 64
"""Features whose derivatives are taken at once."""


@example("mlp", fraction=0.5)
@example("cnn", fraction=0.5)
@checked
@dataclass(frozen=True)
class Soteria:
    """The gradient, in which the head's weights keep 1 − ``fraction`` of their columns: Soteria prunes the features r that say most.

        dropped: the features i with the smallest  Σ over samples of ‖∂r_i/∂x‖ / (|r_i| + 0.1)

    r is what the head (the last linear layer) is given. All other tensors are sent as they are, so an adversary who knows the defense
    reads the mask from the zeros and leaves those columns out of the comparison.

    Ref: Sun et al. 2021, Soteria — perturbs the representation of one layer, chosen by how much of the input it shows
    Ref: Balunović et al. 2022, breaking existing defenses — the adversary knows the defense mechanism
    """

    fraction: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise BadInput(f"Soteria drops a fraction from 0 to less than 1 of the features, got {self.fraction}")

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        name = head_of(victim)
        sent = gradient(victim, x, y, parameters=victim.parameters(), buffers=victim.buffers())
        if f"{name}.weight" not in sent:
            raise Inapplicable(f"Soteria defends {name}.weight, which is frozen and not sent")
        return {**sent, f"{name}.weight": sent[f"{name}.weight"] * self._mask(victim, name, x.detach())}

    def _mask(self, victim: Victim, head: str, x: Tensor) -> Tensor:
        """0 for each feature that is dropped, else 1."""
        if not x.is_floating_point():
            raise Inapplicable("Soteria asks how features depend on pixels, and token ids have no derivative")
        free = x.clone().requires_grad_()
        with torch.enable_grad():
            given = input_of(victim, head, free).flatten(1)
            pieces = torch.eye(given.shape[1], dtype=given.dtype, device=given.device).split(PIECE)
            slopes = [
                torch.autograd.grad(
                    given, free, piece[:, None].expand(-1, *given.shape), retain_graph=True, is_grads_batched=True
                )[0]
                for piece in pieces
            ]
        steep = torch.cat([slope.flatten(2).norm(dim=2) for slope in slopes])  # (features, samples)
        score = (steep / (given.detach().T.abs() + 0.1)).sum(1)
        mask = torch.ones_like(score)
        mask[score.argsort()[: round(self.fraction * len(score))]] = 0
        return mask

    def unprotected(self) -> Gradient:
        """The whole gradient."""
        return Gradient()

    def known(self, victim: Victim, sent: Signal, /) -> tuple[Channel, tuple[Defense, ...]]:
        """The gradient; columns of zeros in the head's weight say nothing."""
        return Gradient(), (HiddenColumns(f"{head_of(victim)}.weight", self.fraction),)


def head_of(victim: Victim) -> str:
    """The name of the last linear layer."""
    name = find_roles(victim.model).head
    if name is None:
        raise Inapplicable("this defense protects the last linear layer, and the model has none")
    return name


def input_of(victim: Victim, layer: str, x: Tensor) -> Tensor:
    """What the named layer is given for ``x``."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        kept.append(inputs[0])

    handle = victim.model.get_submodule(layer).register_forward_pre_hook(keep)
    try:
        victim(x)
    finally:
        handle.remove()
    if len(kept) != 1 or kept[0].dim() != 2:
        raise Inapplicable(f"the layer {layer} is not given one vector for each sample")
    return kept[0]


@dataclass(frozen=True)
class HiddenColumns:
    """What the adversary knows of :class:`Soteria`: columns of the tensor ``name`` were dropped, and which is seen in what was sent."""

    name: str
    fraction: float

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """Any columns: which ones the client drops depends on its data."""
        columns = torch.randperm(signal[self.name].shape[1], generator=rng)
        return self._without(signal, columns)

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain`` (rows of messages) without the first columns, which lose as much as any others."""
        return self._without(plain, torch.arange(plain[self.name].shape[-1]))

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent, and ``plain`` in the columns of zeros."""
        if self.name not in sent:
            return sent
        shown = sent[self.name].any(-2, keepdim=True)
        return {**sent, self.name: torch.where(shown, sent[self.name], plain[self.name])}

    def shown(self, sent: Signal, /) -> dict[str, Tensor]:
        """All entries but those of columns of zeros."""
        return {
            name: t.any(-2, keepdim=True).expand_as(t) if name == self.name else torch.ones_like(t, dtype=torch.bool)
            for name, t in sent.items()
        }

    def _without(self, signal: Signal, columns: Tensor) -> Signal:
        kept = signal[self.name].clone()
        kept[..., columns[: round(self.fraction * len(columns))].to(kept.device)] = 0
        return {**signal, self.name: kept}
