"""CUDA graphs on a machine without a GPU: what could not be recorded is found, and what is recorded can be played back.

For the first the device ``meta`` plays the GPU. Its tensors have no values, so nothing can be read back from them, and whatever comes
from the host stands out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

TAKES_A_NUMBER = {"add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"}
"""Operations whose kernels take a number of the host as an argument, without a copy."""
SHAPED_BY_VALUES = {"nonzero", "masked_select", "_unique2", "unique_dim", "_local_scalar_dense", "item", "equal"}


class PlayedBack:
    """Replaces ``RecordedStep`` on the CPU: after three steps the operations of the next are kept with their tensors, and run again.

    As with a CUDA graph, every operation reads and writes the tensors it had when it was recorded, and numbers that Python
    passed along stay what they were.
    """

    note = "played back"

    def __init__(self, step: Callable[[], None]) -> None:
        self.step, self.calls = step, 0
        self.operations: list[tuple[Any, Any, Any, Any]] | None = None

    def __call__(self) -> None:
        self.calls += 1
        if self.operations is not None:
            with torch.no_grad():
                for func, args, kwargs, made in self.operations:
                    for old, new in zip(_tensors(made), _tensors(func(*args, **kwargs)), strict=True):
                        if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                            old.data.copy_(new)
        elif self.calls <= 3:
            self.step()
        else:
            with _Noted() as noted:
                self.step()
            self.operations = noted.operations


class _Noted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, made))
        return made


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
