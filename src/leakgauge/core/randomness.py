"""Where random numbers come from: torch's global generators for a while, and streams of their own out of one seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def own_stream(seed: int, whose: str) -> int:
    """The seed of a stream that belongs to ``whose`` alone: nobody who draws from ``seed`` itself meets its numbers.

    >>> own_stream(0, "client") == own_stream(0, "client")
    True
    >>> len({0, 1, own_stream(0, "client"), own_stream(1, "client"), own_stream(0, "public images")})
    5
    """
    return int.from_bytes(hashlib.sha256(f"{whose} {seed}".encode()).digest()[:7])


def drawn(count: int, most: int, *, seed: int = 0) -> torch.Tensor:
    """At most ``most`` of ``count`` places, in order, drawn evenly: data come sorted by class, or class after class in turn.

    >>> drawn(3, 5).tolist(), len(drawn(1000, 5)), bool((drawn(1000, 5).diff() > 0).all())
    ([0, 1, 2], 5, True)
    """
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values


@contextmanager
def private_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds torch's global generators for the block (dropout knows no other) and restores them afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        _seed(seed, device)
        yield


def _seed(seed: int, device: torch.device) -> None:
    """Seeds the generators of the CPU and of ``device``, and no others.

    ``torch.manual_seed`` also seeds devices that are not restored afterwards, and where CUDA is there but not in use yet, or
    not there at all, it formats a stack for a call that it queues, every time.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
