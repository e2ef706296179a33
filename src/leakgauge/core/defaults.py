"""What a tensor is when nobody says: our own code means the CPU and 32 bits, whatever defaults the user chose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

Defaults = tuple[torch.device, torch.dtype]
PLAIN: Defaults = (torch.device("cpu"), torch.float32)
_users: ContextVar[Defaults] = ContextVar("defaults_of_the_user", default=PLAIN)


@contextmanager
def plain_defaults() -> Iterator[None]:
    """Inside, a tensor is made on the CPU with 32 bits unless something else is said, so a seed gives the same numbers everywhere.

    Costs nothing where these are the defaults anyway.
    """
    chosen = (torch.get_default_device(), torch.get_default_dtype())
    if chosen == PLAIN:
        yield
        return
    token = _users.set(chosen)
    try:
        with _set(PLAIN):
            yield
    finally:
        _users.reset(token)


@contextmanager
def users_defaults() -> Iterator[None]:
    """Inside :func:`plain_defaults`, what the user chose, for the user's own code."""
    chosen = _users.get()
    if chosen == PLAIN:
        yield
        return
    with _set(chosen):
        yield


@contextmanager
def _set(defaults: Defaults) -> Iterator[None]:
    device, kind = defaults
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)
