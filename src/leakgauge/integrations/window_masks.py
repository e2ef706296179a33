"""Masks of shifted windows that are made once and stay on the device.

SwinV2 in transformers before 5.20 or so makes them on the host in every pass and copies them over. A step that is recorded
as a CUDA graph must not do that, and would run eagerly, many times slower.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn


class KeptMask:
    """Stands where a layer has its method ``get_attn_mask``; off the CPU it computes each mask once."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.kept: dict[Any, Tensor | None] = {}

    def __call__(self, height: int, width: int, dtype: torch.dtype) -> Tensor | None:
        layer: Any = self.layer
        device = next(layer.parameters()).device
        if device.type == "cpu" or torch.compiler.is_compiling():
            return type(layer).get_attn_mask(layer, height, width, dtype)
        key = (height, width, dtype, device, layer.window_size, layer.shift_size)
        if key not in self.kept:
            with torch.inference_mode(False):  # what is made inside could not be differentiated through later
                mask = type(layer).get_attn_mask(layer, height, width, dtype)
                self.kept[key] = None if mask is None else mask.to(device)
        return self.kept[key]


def keep_window_masks(model: nn.Module) -> None:
    """Changes, in place, the layers of ``model`` that make their masks on the host: those that are not told a device."""
    for layer in model.modules():
        make = getattr(type(layer), "get_attn_mask", None)
        if make is not None and list(inspect.signature(make).parameters) == ["self", "height", "width", "dtype"]:
            vars(layer)["get_attn_mask"] = KeptMask(layer)
