"""Seeded initialisation that leaves torch's global generator unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random draws inside the block come from ``seed``; torch's layers always initialise from the global generator.

    >>> before = torch.get_rng_state()
    >>> with seeded(3):
    ...     a = torch.rand(1)
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
