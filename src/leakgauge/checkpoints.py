"""Activation checkpointing, switched off while a model runs on given weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch.utils.checkpoint


class _Direct:
    """Stands for ``CheckpointFunction``: runs the function and keeps what it needs for the backward pass."""

    @staticmethod
    def apply(function: Any, preserve_rng_state: bool, *inputs: Any) -> Any:
        return function(*inputs)


def _nothing_around(*_: Any, **__: Any) -> Iterator[None]:
    """Stands for the generator that ``checkpoint`` runs around the function where it is not reentrant."""
    yield


_INSTEAD = {"CheckpointFunction": _Direct, "_checkpoint_without_reentrant_generator": _nothing_around}
_USUAL = {name: vars(torch.utils.checkpoint)[name] for name in _INSTEAD}
_lock, _inside = Lock(), 0


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Inside, ``torch.utils.checkpoint`` calls the function as it is, under whatever name a library imported it.

    A checkpoint runs part of the model again during the backward pass. By then a model that was run on given weights has
    its own again, so the gradient of every local step but the first would quietly be taken at the wrong weights; and a
    choice of kernels made around the forward pass is over. What checkpoints save, memory, is not worth that here.
    """
    global _inside
    with _lock:
        _inside += 1
        _put(_INSTEAD)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:  # another thread may still be inside
                _put(_USUAL)


def _put(functions: dict[str, Any]) -> None:
    for name, function in functions.items():
        setattr(torch.utils.checkpoint, name, function)
