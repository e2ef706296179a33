"""The user's training must not die from being watched: one place decides what happens to the monitor's own errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class MonitorWarning(UserWarning):
    """Something could not be measured; training goes on."""


class Guard:
    """Turns the monitor's errors into one warning each, or lets them through where ``strict``."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.said: dict[str, str] = {}

    def say(self, about: str, message: str) -> None:
        """Warns once ``about`` something; the message stays in the report."""
        if about not in self.said:
            self.said[about] = message
            warnings.warn(message, MonitorWarning, stacklevel=4)

    @contextmanager
    def around(self, about: str, *, then: Callable[[], None] | None = None) -> Iterator[None]:
        """Inside, an error is warned about once and ``then`` is called; with ``strict`` it is raised."""
        try:
            yield
        except Exception as error:  # whatever breaks in here must not break the training around it
            if self.strict:
                raise
            if then is not None:
                then()
            self.say(about, f"leakgauge monitor: {about} failed: {type(error).__name__}: {error}")
