"""Lets a caller watch a running attack; the attack does not know about progress bars, logs or screens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[int, int], None]
"""``watcher(steps_done, steps_in_all)``."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Every attack that runs inside the block reports its steps to ``watcher``."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def also_watching(watcher: Watcher) -> Iterator[None]:
    """As :func:`watching`, but existing watchers also keep watching."""
    before = _watcher.get()

    def both(done: int, total: int) -> None:
        watcher(done, total)
        if before is not None:
            before(done, total)

    with watching(both):
        yield


@contextmanager
def as_part(before: int, steps: int, total: int) -> Iterator[None]:
    """The attack inside the block is a part of a longer one: of ``total`` steps, ``before`` were done earlier and it takes ``steps``."""
    outer = _watcher.get()
    if outer is None:
        yield
        return
    with watching(lambda done, own: outer(min(total, before + steps * done // max(1, own)), total)):
        yield


def report(done: int, total: int) -> None:
    watcher = _watcher.get()
    if watcher is not None:
        watcher(done, total)
