"""The errors that leakgauge raises on purpose."""


class LeakgaugeError(Exception):
    """Base of every error with a message for the user: one sentence, no traceback needed."""


class BadInput(LeakgaugeError, ValueError):
    """An input from the user is wrong. The message says what was wrong, what was expected and what to do."""


class MissingExtra(BadInput):
    """An optional package is not installed. The message names the extra to install."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'leakgauge[{extra}]'")
        self.package, self.extra = package, extra

    def __reduce__(self) -> tuple[type["MissingExtra"], tuple[str, str]]:
        return type(self), (self.package, self.extra)


class Inapplicable(LeakgaugeError):
    """An attack, rule or measure cannot work with its input, e.g. ``not shared: pos_embed``.

    Audits record it as a refusal. It is never turned into a score.
    """
