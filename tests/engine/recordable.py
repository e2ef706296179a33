"""Finds what a CUDA graph could not record, on a machine without a GPU: the device ``meta`` plays the GPU.

A tensor on ``meta`` has no values, so nothing can be read back from it, and whatever comes from the host stands out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

TAKES_A_NUMBER = {"add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"}
"""Operations whose kernels take a number of the host as an argument, without a copy."""
SHAPED_BY_VALUES = {"nonzero", "masked_select", "_unique2", "unique_dim", "_local_scalar_dense", "item", "equal"}


class NotRecordable(RuntimeError):
    pass


@contextmanager
def only_on_the_device() -> Iterator[None]:
    """Inside, the first operation that waits for the device or brings something to it from the host raises."""
    with _Operations(), _NumbersCopied():
        yield


class _NumbersCopied(TorchFunctionMode):
    """``torch.tensor`` fills its tensor on the host, below what the other mode sees."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor) and result.device.type != "cpu":
            raise NotRecordable(f"{func.__name__} brings something from the host to the device")
        return result


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        given = list(_tensors((args, kwargs or {})))
        if name in SHAPED_BY_VALUES:
            raise NotRecordable(f"{func} waits for the device")
        if name in ("index", "index_put", "index_put_") and any(t.dtype == torch.bool for t in _tensors(args[1])):
            raise NotRecordable(f"{func} with a mask has a shape that depends on values")
        result = func(*args, **(kwargs or {}))
        made = list(_tensors(result))
        devices = {t.device.type for t in given} | {t.device.type for t in made}
        if len(devices) > 1 and not (
            name.rstrip("_") in TAKES_A_NUMBER and all(t.dim() == 0 for t in given if t.device.type == "cpu")
        ):
            raise NotRecordable(f"{func} brings something from the host to the device")
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
