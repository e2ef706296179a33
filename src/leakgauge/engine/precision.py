"""How exactly the replay computes. Anything but ``Exact`` shows in the attack's repr and notes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch


class Precision(Protocol):
    """A context in which candidates are replayed."""

    def inside(self, device: torch.device, /) -> AbstractContextManager[None]: ...


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@dataclass(frozen=True)
class Exact:
    """Full float32 everywhere; by default PyTorch lets convolutions on a GPU use TF32."""

    @contextmanager
    def inside(self, device: torch.device, /) -> Iterator[None]:
        with _tf32(False), torch.autocast(device.type, enabled=False):
            yield


@dataclass(frozen=True)
class TF32:
    """Matrix products and convolutions on a GPU round their factors to 10 bits of mantissa; sums stay float32."""

    @contextmanager
    def inside(self, device: torch.device, /) -> Iterator[None]:
        with _tf32(True):
            yield


@dataclass(frozen=True)
class BFloat16:
    """Matrix products and convolutions in bfloat16 (8 bits of mantissa), the rest in TF32 and float32."""

    @contextmanager
    def inside(self, device: torch.device, /) -> Iterator[None]:
        with _tf32(True), torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            yield
