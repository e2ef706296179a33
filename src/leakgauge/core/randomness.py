"""Sources of random numbers: torch's global generators for one block, and separate streams derived from one seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def own_stream(seed: int, owner: str) -> int:
    """The seed of a stream that only ``owner`` uses: drawing from ``seed`` itself never gives the same numbers.

    >>> own_stream(0, "client") == own_stream(0, "client")
    True
    >>> len({0, 1, own_stream(0, "client"), own_stream(1, "client"), own_stream(0, "public images")})
    5
    """
    return int.from_bytes(hashlib.sha256(f"{owner} {seed}".encode()).digest()[:7])


def draw_indices(count: int, most: int, *, seed: int = 0) -> torch.Tensor:
    """At most ``most`` of the indices below ``count``, drawn uniformly and sorted. The first few would be biased: data often
    come sorted by class.

    >>> draw_indices(3, 5).tolist(), len(draw_indices(1000, 5)), bool((draw_indices(1000, 5).diff() > 0).all())
    ([0, 1, 2], 5, True)
    """
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:most].sort().values


@contextmanager
def private_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds torch's global generators for the block (dropout uses no other) and restores them afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        _seed(seed, device)
        yield


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of ``device``, and no others.

    ``torch.manual_seed`` also seeds devices that nobody restores afterwards. Without CUDA, or before CUDA is initialised, it
    formats a stack trace for a queued call every time.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
