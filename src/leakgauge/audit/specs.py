"""Attacks, defenses and channels as text: a name and its options, ``prune:0.9``."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from leakgauge.errors import BadInput
from leakgauge.families.nearest import nearest

T = TypeVar("T")

NUMBERS = {"int", "float", "None"}
"""Annotations, as written, of options that no word can fill."""
WHOLE_NUMBERS = {"int", "None"}
"""Annotations of options that no fraction can fill."""
SWITCHES = {"bool", "None"}
"""Annotations of options that are true or false."""


def made_from(
    spec: str, registry: Mapping[str, Callable[..., T]], *, kind: str, extra: Mapping[str, Any] | None = None
) -> T:
    """Calls the registered factory with the options of ``spec`` and ``extra``.

    >>> from leakgauge.defenses import DEFENSES
    >>> made_from("prune:0.9", DEFENSES, kind="defense")
    Prune(fraction=0.9)
    >>> made_from("gaussian_noise:relative=0.5", DEFENSES, kind="defense")
    GaussianNoise(std=None, relative=0.5, variance_to_norm=None)
    """
    name = spec.partition(":")[0]
    if name not in registry:
        raise BadInput(f"unknown {kind} {name!r}; {nearest(name, registry)}")
    factory = registry[name]
    parameters = inspect.signature(factory).parameters
    allowed = list(parameters)
    options = {**options_in(spec, factory), **(extra or {})}
    for option, value in options.items():
        if option not in allowed:
            raise BadInput(f"{kind} {name} has no option {option!r}; it takes {', '.join(allowed) or 'none'}")
        annotations = _annotations(parameters[option])
        if "bool" in annotations and annotations <= SWITCHES:
            options[option] = (
                value if value is None and "None" in annotations else _switch(value, f"{kind} {name}", option)
            )
            continue
        if isinstance(value, str) and annotations <= NUMBERS:
            raise BadInput(f"{kind} {name} takes a number as {option}, got {value!r}")
        if isinstance(value, float) and annotations <= WHOLE_NUMBERS:
            if not value.is_integer():
                raise BadInput(f"{kind} {name} takes a whole number as {option}, got {value!r}")
            options[option] = int(value)  # 1e3 steps are a thousand
    try:
        return factory(**options)
    except TypeError as error:
        raise BadInput(
            f"{kind} {spec!r}{_given(extra)} does not fit: {error}; it takes {', '.join(allowed) or 'no options'}"
        ) from error


def _annotations(parameter: inspect.Parameter) -> set[str]:
    written = parameter.annotation
    return set((written.__name__ if isinstance(written, type) else str(written)).split(" | "))


def _switch(value: object, who: str, option: str) -> bool:
    """True or False, also as ``true`` and ``false``, which would be words, and every word is true."""
    found = {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())
    if found is None:
        raise BadInput(f"{who} takes true or false as {option}, got {value!r}")
    return found


def options_in(spec: str, factory: Callable[..., object]) -> dict[str, Any]:
    """The options that ``spec`` gives to its factory."""
    parameters = inspect.signature(factory).parameters
    names = {option for option, parameter in parameters.items() if parameter.annotation in (str, "str")}
    return written_options(spec.partition(":")[2], list(parameters), spec, names=names)


def _given(extra: Mapping[str, Any] | None) -> str:
    return f" with {', '.join(f'{name}={value}' for name, value in extra.items())}" if extra else ""


def written_options(written: str, allowed: Sequence[str], spec: str, *, names: Collection[str] = ()) -> dict[str, Any]:
    """The options behind the colon of ``spec``. Those in ``names`` are text whatever they look like: a module may be called 1."""
    options: dict[str, Any] = {}
    for part in filter(None, written.split(",")):
        key, equals, value = part.partition("=")
        if not equals:  # a single bare value is the first option: prune:0.9
            if not allowed:
                raise BadInput(f"{spec!r} gives a value, but {spec.partition(':')[0]} takes no options")
            key, value = allowed[0], part
        if key.strip() in options:
            raise BadInput(f"{spec!r} gives {key.strip()} twice")
        options[key.strip()] = value.strip() if key.strip() in names else value_of(value.strip())
    return options


def value_of(text: str) -> Any:
    """A Python literal where the text is one, names joined by + as a tuple, otherwise the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return tuple(text.split("+")) if "+" in text else text


def option_of(text: str) -> tuple[str, Any]:
    """``steps=300`` as ("steps", 300)."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise BadInput(f"an option is written NAME=VALUE, e.g. steps=300, got {text!r}")
    return key.strip(), value_of(value.strip())
