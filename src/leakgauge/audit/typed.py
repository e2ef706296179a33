"""JSON from a file as the dataclass that it was written from, checked field by field against the annotations of that dataclass.

A run folder may be edited by hand, damaged or somebody else's. What does not fit is refused here, with the name of the field, so
nothing after this has to ask whether a number is a number. New fields need no second list: their annotations say what they hold.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, is_typeddict

from leakgauge.errors import BadInput

T = TypeVar("T")

LARGEST = 1e150
"""Of a number that is not infinite: sums, squares and percentages of such numbers are numbers still."""
LARGEST_WHOLE = 2**63 - 1
"""Of a whole number: what a tensor can hold."""
DEEPEST = 32
"""Lists and mappings inside each other."""
_SHOWN = 40


class Misfit(ValueError):
    """A value is not what its place in the file takes. The message names the field."""


def parsed(text: bytes) -> Any:
    """The JSON in ``text``: numbers of a usable size, and nesting of a usable depth.

    >>> parsed(b'{"a": [1, 1e999]}')
    Traceback (most recent call last):
    leakgauge.audit.typed.Misfit: a[1] is inf, which is too large
    """
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise Misfit("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise Misfit("it is not text in UTF-8") from error
    except ValueError as error:
        raise error if isinstance(error, Misfit) else Misfit("it is not JSON") from error
    _bounded(found, "", 0)
    return found


def _refuse_constant(name: str) -> Any:
    raise Misfit(f"it holds {name}, which is not a number")


def _bounded(value: Any, at: str, depth: int) -> None:
    if depth > DEEPEST:
        raise Misfit("it is nested too deeply")
    if isinstance(value, list):
        for place, one in enumerate(value):
            _bounded(one, f"{at}[{place}]", depth + 1)
    elif isinstance(value, dict):
        for name, one in value.items():
            _bounded(one, _inside(at, name), depth + 1)
    elif isinstance(value, int | float) and not abs(value) <= (LARGEST_WHOLE if isinstance(value, int) else LARGEST):
        raise Misfit(f"{at or 'it'} is {_short(value)}, which is too large")


def typed(kind: type[T], value: Any, at: str = "") -> T:
    """``value``, which came from JSON, as a ``kind``: a dataclass, a typed dictionary, or what the field ``at`` is annotated with.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point:
    ...     x: float
    ...     name: str = ""
    >>> typed(Point, {"x": 1.5})
    Point(x=1.5, name='')
    >>> typed(Point, {"x": "wide"})
    Traceback (most recent call last):
    leakgauge.audit.typed.Misfit: x is 'wide', but it should be a number
    """
    return _typed(kind, value, at)


def _typed(kind: Any, value: Any, at: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or kind is object:
        return value
    if origin in (Annotated, typing.Required, typing.NotRequired):
        return _typed(inner[0], value, at)
    if origin in (Union, types.UnionType):
        return _one_of(inner, value, at)
    if origin is Literal:
        if not isinstance(value, str | int) or value not in inner or isinstance(value, bool):
            raise _misfit(value, at, f"one of {', '.join(map(str, inner))}")
        return value
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, at)
    if is_typeddict(kind):
        return _dictionary(kind, value, at)
    if origin is not None and issubclass(origin, Mapping):
        names, values = inner or (str, Any)
        return {
            _typed(names, name, _inside(at, name)): _typed(values, one, _inside(at, name))
            for name, one in _mapping(value, at).items()
        }
    if origin is tuple and (len(inner) != 2 or inner[1] is not ...):
        if not isinstance(value, list | tuple) or len(value) != len(inner):
            raise _misfit(value, at, f"a list of {len(inner)}")
        return tuple(_typed(one, v, f"{at}[{i}]") for i, (one, v) in enumerate(zip(inner, value, strict=True)))
    if origin is not None and issubclass(origin, Sequence):
        if not isinstance(value, list | tuple):
            raise _misfit(value, at, "a list")
        found = [_typed(inner[0], one, f"{at}[{place}]") for place, one in enumerate(value)]
        return tuple(found) if origin is tuple else found
    return _plain(kind, value, at)


_NAMES: Mapping[Any, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _plain(kind: Any, value: Any, at: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        known = {one.value: one for one in kind}
        if not isinstance(value, str) or value not in known:
            raise _misfit(value, at, f"one of {', '.join(map(str, known))}")
        return known[value]
    if kind in (None, type(None)):
        if value is not None:
            raise _misfit(value, at, "null")
        return None
    taken = (int, float) if kind is float else kind
    if not isinstance(value, taken) or (isinstance(value, bool) and kind is not bool):
        raise _misfit(value, at, _NAMES.get(kind, kind.__name__))
    return value


def _one_of(kinds: Sequence[Any], value: Any, at: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    tried = [kind for kind in kinds if kind is not type(None)]
    for kind in tried[:-1]:
        try:
            return _typed(kind, value, at)
        except Misfit:
            continue
    return _typed(tried[-1], value, at)


def _dataclass(kind: Any, value: Any, at: str) -> Any:
    fields, hints = {one.name: one for one in dataclasses.fields(kind)}, _hints(kind)
    given = _mapping(value, at)
    for name in given:
        if name not in fields:
            raise Misfit(f"{_inside(at, name)} is not known to this version")
    for name, one in fields.items():
        if name not in given and one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            raise Misfit(f"{_inside(at, name)} is missing")
    made = {name: _typed(hints[name], one, _inside(at, name)) for name, one in given.items()}
    try:
        return kind(**made)
    except BadInput as error:  # what the class itself refuses, such as a batch of no image
        raise Misfit(f"{at}: {error}" if at else str(error)) from error


def _dictionary(kind: Any, value: Any, at: str) -> Any:
    """What a typed dictionary does not name is kept as it is."""
    given, hints = _mapping(value, at), _hints(kind)
    for name, hint in hints.items():
        optional = not kind.__total__ and get_origin(hint) is not typing.Required
        if name not in given and not optional and get_origin(hint) is not typing.NotRequired:
            raise Misfit(f"{_inside(at, name)} is missing")
    return {name: _typed(hints.get(name, Any), one, _inside(at, name)) for name, one in given.items()}


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _mapping(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _misfit(value, at, "a mapping")
    return value


def _inside(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)


def _misfit(value: Any, at: str, expected: str) -> Misfit:
    return Misfit(f"{at or 'it'} is {_short(value)}, but it should be {expected}")


def _short(value: Any) -> str:
    if isinstance(value, list | tuple | Mapping):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        return "a number of many digits"
    written = "null" if value is None else repr(value)
    return written if len(written) <= _SHOWN else f"{written[:_SHOWN]}…"


__all__ = ["LARGEST", "Misfit", "parsed", "typed"]
