"""Watching must not break the user's training: this decides what happens to the monitor's own errors."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from leakgauge.core.defaults import plain_defaults
from leakgauge.errors import one_line


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
            try:
                warnings.warn(message, MonitorWarning, stacklevel=4)
            except MonitorWarning:  # warnings are errors here (python -W error, pytest)
                if self.strict:
                    raise
                logging.getLogger(__name__).warning(message)

    @contextmanager
    def around(self, about: str, *, then: Callable[[], None] | None = None) -> Iterator[None]:
        """Inside, an error causes one warning and a call of ``then``; with ``strict`` it is raised."""
        try:
            with plain_defaults():
                yield
        except Exception as error:  # no error in here may break the user's training
            if self.strict:
                raise
            if then is not None:
                then()
            self.say(about, f"leakgauge monitor: {about} failed: {one_line(error)}")
