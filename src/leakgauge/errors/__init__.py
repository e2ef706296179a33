"""The errors that leakgauge raises on purpose, and how errors and texts of others are shown."""

from __future__ import annotations

import re
import traceback


class LeakgaugeError(Exception):
    """Base of every error with a message for the user: one sentence, no traceback needed."""


class BadInput(LeakgaugeError, ValueError):
    """An input from the user is wrong. The message says what was wrong, what was expected and what to do."""


def install(extra: str) -> str:
    """The command that installs an extra. It names a clone: in a package registry the name leakgauge may belong to somebody else.

    >>> install("timm")
    "pip install '.[timm]' in your clone of leakgauge"
    """
    return f"pip install '.[{extra}]' in your clone of leakgauge"


class MissingExtra(BadInput):
    """An optional package is not installed. The message names the extra to install."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: {install(extra)}")
        self.package, self.extra = package, extra

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return type(self), (self.package, self.extra)


class CannotWrite(OSError):
    """A file of ours could not be written: a full disk, a missing permission. What was finished is kept.

    Other errors of this kind come from the user's own code.
    """


class Inapplicable(LeakgaugeError):
    """An attack, rule or measure cannot work with its input, e.g. ``not shared: pos_embed``.

    Audits record it as a refusal. It is never turned into a score.
    """


VALUES = re.compile(
    r"\b(?:tensor|array)\(.*?\)"  # what torch and NumPy print
    r"|\[[^\[\]]*\d\.\d*[^\[\]]*\]"  # a list with a fraction
    r"|\[(?:\s*-?\d+,){6}[^\[\]]*\]",  # a list of more whole numbers than a shape has
    re.DOTALL,
)
"""What private pixels and labels look like in a message."""
LONGEST = 300
"""Characters of a quoted message."""


def one_line(error: BaseException) -> str:
    """Type and message of an error, fit to stand in a sentence. Tensors and lists of numbers that it prints are left out.

    >>> one_line(ValueError("bad pixels tensor([[0.25, 0.5],\\n [0.1, 0.2]]), sorry"))
    'ValueError: bad pixels …, sorry'
    >>> one_line(RuntimeError("shapes [2, 3] and\\n[4, 5]"))
    'RuntimeError: shapes [2, 3] and [4, 5]'
    """
    message = " ".join(VALUES.sub("…", _message(error)).split())
    message = message if len(message) <= LONGEST else f"{message[:LONGEST]}…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def first_line(error: BaseException) -> str:
    """Of the error's message; its type where it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as trouble:  # noqa: BLE001 - the error of a user's own class
        return f"(its message cannot be shown: {type(trouble).__name__})"


def trace_without_values(error: BaseException) -> str:
    """Where an error was raised and what it says, first its causes: source lines and :func:`one_line`, but no value of any variable."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = "" if cause is None else f"{trace_without_values(cause)}\n\nThen:\n\n"
    lines = "".join(traceback.format_tb(error.__traceback__))
    return f"{before}Traceback (most recent call last):\n{lines}{one_line(error)}"


_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tabs and ends of lines
    "\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"
    "\ud800-\udfff]"  # what stands for bytes of a file name that are no text
)


def harmless(text: str) -> str:
    """Text of others, ready to be shown: control characters and invisible ones as they are written in Python. Lines and tabs stay.

    No name can clear a terminal, turn a line around, or fail to be written as UTF-8.

    >>> harmless("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _CONTROLS.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", errors="surrogatepass").decode("ascii", errors="replace")
