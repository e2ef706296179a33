"""Refuses arguments of the wrong type in one sentence, as the annotations of a public function or dataclass say.

    @checked
    def dlg(*, steps: int = 300, lr: float = 1.0) -> Matching: ...

    dlg(steps="many")     # BadInput: dlg needs steps as a whole number, got 'many'

The annotations are read at the first call. A call then costs some microseconds, so it belongs to what is called once per run.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, overload

from leakgauge.errors import BadInput

T = TypeVar("T", bound=Callable[..., Any])

SHORT = 60
"""Characters of a value that a sentence quotes."""


@dataclass(frozen=True)
class Kind:
    """What an annotation asks for: a test, and the words for it."""

    fits: Callable[[Any], bool]
    words: str
    each: Kind | None = None
    """What the elements of a sequence or the values of a mapping must be."""

    def wrong(self, value: Any) -> str:
        """What is wrong with a value that does not fit, as a sentence names it."""
        if self.each is not None and isinstance(value, str) and self.each.fits(value):
            return f"{value!r}; write [{value!r}]"
        if self.each is not None and isinstance(value, Mapping | list | tuple):
            for at, one in value.items() if isinstance(value, Mapping) else enumerate(value):
                if not self.each.fits(one):
                    return f"a {type(value).__name__} with {self.each.wrong(one)} at {at!r}"
        return quoted(value)


@overload
def checked(part: T, /) -> T: ...
@overload
def checked(*, nan: bool = False) -> Callable[[T], T]: ...
def checked(part: T | None = None, /, *, nan: bool = False) -> T | Callable[[T], T]:
    """The function, or the dataclass, with its arguments checked. NaN is no number unless ``nan``."""
    return functools.partial(_checked, nan=nan) if part is None else _checked(part, nan=nan)


def _checked(part: Any, *, nan: bool) -> Any:
    if not isinstance(part, type):
        return _wrapped(part, part, part.__name__, nan=nan)
    kind: Any = part
    kind.__init__ = _wrapped(kind.__init__, part, part.__name__, nan=nan)
    return part


def _wrapped(function: Callable[..., Any], annotated: Any, name: str, *, nan: bool) -> Callable[..., Any]:
    signature = inspect.signature(function)
    options = next((one.name for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD), "")
    kinds: dict[str, Kind] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kinds:
            hints = typing.get_type_hints(annotated)
            for one in signature.parameters:
                inner = typing.get_args(hints.get(one))[:1] if one == options else ()  # of Unpack[…]: its options
                for option, hint in (typing.get_type_hints(inner[0]) if inner else {one: hints.get(one, Any)}).items():
                    kinds[option] = _short(kind_of(hint, nan=nan)) if option in SEEDS else kind_of(hint, nan=nan)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # Python's own words about a missing or unknown argument
            return function(*args, **kwargs)
        for one, value in {**given, **given.pop(options, {})}.items():
            kind = kinds.get(one, ANYTHING)
            if not kind.fits(value):
                raise BadInput(f"{name} needs {one} as {kind.words}, got {kind.wrong(value)}")
        return function(*args, **kwargs)

    return call


SEEDS = {"seed", "secret"}
"""Parameters that seed a generator, which takes 64 bits."""


def _short(kind: Kind) -> Kind:
    return Kind(lambda v: kind.fits(v) and (v is None or abs(v) < 2**63), f"{kind.words} below 2**63")


ANYTHING = Kind(lambda value: True, "anything")


def kind_of(annotation: Any, *, nan: bool = False) -> Kind:
    """What ``annotation`` asks for; anything where it cannot be tested.

    >>> kind_of(tuple[float, ...]).words, kind_of(Literal["a", "b"] | None).words
    ('a sequence of numbers', "'a' or 'b' or None")
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is float:
        return Kind(lambda v: _is_number(v) and (nan or not math.isnan(v)), "a number")
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if origin is Literal:
        return Kind(lambda v: isinstance(v, str | int | None) and v in inner, " or ".join(map(repr, inner)))
    if origin in (Union, types.UnionType):
        kinds = [kind_of(one, nan=nan) for one in inner]
        return Kind(lambda v: any(kind.fits(v) for kind in kinds), _either([kind.words for kind in kinds]))
    if origin is typing.Annotated:
        return kind_of(inner[0], nan=nan)
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        parts = [kind_of(one, nan=nan) for one in inner]
        words = f"({', '.join(part.words for part in parts)})"
        return Kind(
            lambda v: _is_list(v) and len(v) == len(parts) and all(p.fits(e) for p, e in zip(parts, v, strict=True)),
            words,
        )
    if origin in (tuple, list, collections.abc.Sequence):
        each = kind_of(inner[0], nan=nan)
        return Kind(lambda v: _is_list(v) and all(map(each.fits, v)), f"a sequence of {_plural(each.words)}", each)
    if origin in (dict, collections.abc.Mapping):
        key, value = (kind_of(one, nan=nan) for one in inner)
        words = f"a mapping from {key.words} to {value.words}"
        return Kind(
            lambda v: isinstance(v, Mapping) and all(key.fits(k) and value.fits(e) for k, e in v.items()), words, value
        )
    if origin is collections.abc.Callable:
        count = len(inner[0]) if inner and isinstance(inner[0], list) else None
        words = "something that can be called" + (
            "" if count is None else f" with {count} argument{'s' * (count != 1)}"
        )
        return Kind(lambda v: callable(v) and (count is None or _takes(v, count)), words)
    return _of_class(annotation if origin is None else origin)


def _of_class(kind: Any) -> Kind:
    if not isinstance(kind, type):
        return ANYTHING  # a type variable
    home, _, rest = kind.__module__.partition(".")
    name = f"torch.{'nn.' if rest.startswith('nn.') else ''}{kind.__name__}" if home == "torch" else kind.__name__
    words = f"{'an' if name[0] in 'AEIO' else 'a'} {name}"
    if not getattr(kind, "_is_protocol", False):
        return Kind(lambda v: isinstance(v, kind), words)
    methods = [name for name in dir(kind) if not name.startswith("_") or (name in _OPERATORS and name in vars(kind))]
    called = list(inspect.signature(kind.__call__).parameters.values())[1:] if "__call__" in methods else []
    positional = sum(one.kind is not one.KEYWORD_ONLY for one in called)
    named = [one.name for one in called if one.kind is one.KEYWORD_ONLY]

    def fits(value: Any) -> bool:
        if isinstance(value, type):  # Gradient where Gradient() is meant
            return False
        return all(hasattr(value, name) for name in methods) and (not called or _takes(value, positional, named))

    return Kind(fits, words)


_OPERATORS = {"__call__", "__len__", "__getitem__", "__iter__"}


def _takes(value: Any, positional: int, named: Sequence[str] = ()) -> bool:
    """Whether ``value`` can be called so; a module is called by its forward pass."""
    try:
        inspect.signature(getattr(value, "forward", value)).bind(*[None] * positional, **dict.fromkeys(named))
    except TypeError:
        return False
    except ValueError:  # some built-in functions do not say what they take; no class is meant to be called here
        return not isinstance(value, type)
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


_PLAIN: dict[Any, Kind] = {
    Any: ANYTHING,
    object: ANYTHING,
    None: Kind(lambda v: v is None, "None"),
    types.NoneType: Kind(lambda v: v is None, "None"),
    bool: Kind(lambda v: isinstance(v, bool), "True or False"),
    int: Kind(lambda v: isinstance(v, numbers.Integral) and not isinstance(v, bool), "a whole number"),
    str: Kind(lambda v: isinstance(v, str), "text"),
    Path: Kind(lambda v: isinstance(v, str | Path), "a path"),
}


def _either(words: Sequence[str]) -> str:
    several = list(dict.fromkeys(words))
    return several[0] if len(several) == 1 else f"{', '.join(several[:-1])} or {several[-1]}"


def _plural(words: str) -> str:
    article, _, noun = words.partition(" ")
    return f"{noun}s" if article in ("a", "an") and " " not in noun.replace("whole ", "") else words


def quoted(value: Any) -> str:
    """A value as a sentence names it: short texts and numbers themselves, of everything else the type. No data is quoted.

    >>> quoted("many"), quoted([0.1, 0.2]), quoted(int)
    ("'many'", 'a list of 2', 'the class int')
    """
    if value is None or isinstance(value, str | bool | int | float):
        written = repr(value)
        return written if len(written) <= SHORT else f"{written[:SHORT]}…"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"a {type(value).__name__} of shape {tuple(shape)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, list | tuple | dict) else "")
