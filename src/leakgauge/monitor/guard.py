"""Watching must not break the user's training: this decides what happens to the monitor's own errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class MonitorWarning(UserWarning):
    """Something could not be measured; the training continues."""


class Guard:
    """Turns each of the monitor's errors into one warning, or raises it if ``strict``."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.said: dict[str, str] = {}

    def say(self, about: str, message: str) -> None:
        """Warns once ``about`` something and keeps the message for the report."""
        if about not in self.said:
            self.said[about] = message
            warnings.warn(message, MonitorWarning, stacklevel=4)

    @contextmanager
    def around(self, about: str, *, then: Callable[[], None] | None = None) -> Iterator[None]:
        """Inside, an error causes one warning and a call of ``then``; with ``strict`` it is raised."""
        try:
            yield
        except Exception as error:  # no error in here may break the user's training
            if self.strict:
                raise
            if then is not None:
                then()
            self.say(about, f"leakgauge monitor: {about} failed: {type(error).__name__}: {error}")
