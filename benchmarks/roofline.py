"""How fast the device could be: the two ceilings of this machine, and what a sequence of operations must cost at least."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


@dataclass(frozen=True)
class Ceilings:
    """Measured, not from a datasheet: multiply-adds of a large matrix product, and bytes of a large copy, per second."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Work:
    """What one call did: operations of matrix products and convolutions, bytes that its kernels read and wrote.

    ``floor`` is the least time for it, kernel by kernel: Σ max(operations / ceiling, bytes / ceiling). Fusing kernels would
    lower it; nothing else would.
    """

    flops: float
    bytes: float
    kernels: int
    floor: float


def ceilings(device: torch.device, *, side: int = 8192, megabytes: int = 2048) -> Ceilings:
    """Best of several tries, at the precision that is switched on."""
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    source = torch.randn(megabytes * 2**18, device=device)
    target = torch.empty_like(source)
    return Ceilings(
        2 * side**3 / _best(lambda: a @ b, device), 2 * 4 * source.numel() / _best(lambda: target.copy_(source), device)
    )


def _best(call: Callable[[], Any], device: torch.device, tries: int = 5) -> float:
    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    call()
    taken = []
    for _ in range(tries):
        began = now()
        call()
        taken.append(now() - began)
    return min(taken)


class _Counter(TorchDispatchMode):
    def __init__(self, ceiling: Ceilings) -> None:
        super().__init__()
        self.ceiling = ceiling
        self.flops = self.bytes = self.floor = 0.0
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.is_view or func.namespace not in ("aten",) or _makes_nothing(func, result, args):
            return result
        moved = sum(t.numel() * t.element_size() for t in _distinct((args, kwargs, result)))
        count = flop_registry.get(func._overloadpacket)
        flops = float(count(*args, **kwargs, out_val=result)) if count else 0.0
        self.flops += flops
        self.bytes += moved
        self.kernels += 1
        self.floor += max(flops / self.ceiling.flops, moved / self.ceiling.bytes)
        return result


def _distinct(tree: Any) -> list[Tensor]:
    """Each piece of memory once, however many arguments share it. A broadcast tensor counts with what it stores."""
    found: dict[tuple[int, int], Tensor] = {}
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            found[leaf.data_ptr(), leaf.numel()] = leaf
    return list(found.values())


def _makes_nothing(func: Any, result: Any, args: Any) -> bool:
    """Reshapes that are no view by name but share memory all the same; empty tensors."""
    name = func._overloadpacket.__name__
    if name in ("detach", "empty", "empty_like", "new_empty", "_unsafe_view", "empty_strided", "lift_fresh"):
        return True
    return (
        isinstance(result, Tensor)
        and bool(args)
        and isinstance(args[0], Tensor)
        and name in ("_reshape_alias", "alias")
    )


def work(call: Callable[[], Any], ceiling: Ceilings) -> Work:
    """Counts what ``call`` does, kernel by kernel, while it runs eagerly."""
    with _Counter(ceiling) as counter:
        call()
    return Work(counter.flops, counter.bytes, counter.kernels, counter.floor)
