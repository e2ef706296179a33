"""Runs a module on given weights and leaves it as it was."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.checkpoints import without_checkpoints


def output_at(model: nn.Module, state: Mapping[str, Tensor], *args: Any) -> Any:
    """``model(*args)`` with the tensors of ``state`` in place of its parameters and buffers of those names.

    A tied tensor is replaced wherever it stands, each place once. ``functional_call`` by itself replaces a layer that is
    registered under two names twice, and then puts back as its own what it had put in the first time.
    """
    with without_checkpoints():
        return functional_call(model, _at_every_place(model, state), args, tie_weights=False)


def _at_every_place(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    own_names = {name: id(own) for name, own in named}
    given = {own_names[name]: value for name, value in state.items() if name in own_names}
    placed = {
        f"{path}.{name}" if path else name: given[id(own)]
        for path, module in model.named_modules()  # a module that has two names comes once
        for name, own in (*module._parameters.items(), *module._buffers.items())
        if id(own) in given
    }
    unknown = {name: value for name, value in state.items() if name not in own_names}
    return {**placed, **unknown}  # which functional_call refuses
