"""Imports and calls of a user's code: the interpreter is left as it was found, and what goes wrong is reported with its line."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from importlib.abc import Loader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from leakgauge.errors import BadInput, LeakgaugeError, one_line
from leakgauge.families.nearest import nearest
from leakgauge.integrations.torchvision_guest import invite_torchvision, needs_invitation


def raised(error: BaseException, source: str, *, when: str = "") -> str:
    """``raised KeyError: 'x' (line 12)``, with the last line of ``source`` that took part; our own errors say it themselves."""
    path = Path(source).resolve()
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    where = f" (line {lines[-1]})" if lines else ""
    if isinstance(error, LeakgaugeError):
        return f"went wrong{when}: {' '.join(str(error).split())}{where}"
    return f"raised {one_line(error)}{when}{where}"


def function(names: Mapping[str, Any], name: str, source: str, *, returns: str) -> Callable[..., Any]:
    """What ``source`` has under ``name``, if it can be called; ``returns`` says what it is asked for."""
    if name not in names:
        own = [n for n, value in names.items() if callable(value) and not n.startswith("_")]
        raise BadInput(f"{source} has no {name!r}; {nearest(name, own)}")
    if not callable(names[name]):
        kind = type(names[name]).__name__
        raise BadInput(f"{name!r} in {source} is a {kind}; a function that returns {returns} is needed")
    return names[name]


def called(user_function: Callable[..., Any], name: str, source: str) -> Any:
    """What the user's function returns; whatever it raises becomes one sentence, with its cause."""
    try:
        return user_function()
    except (Exception, SystemExit, GeneratorExit) as error:  # the user's own code may raise anything
        raise BadInput(f"{name}() in {source} {raised(error, source)}") from error


def place(user_function: Callable[..., Any], name: str, source: str) -> str:
    """``victim() in audit.py (line 12)``: where a function that returned something wrong begins."""
    code = getattr(user_function, "__code__", None)
    return f"{name}() in {source}" + (f" (line {code.co_firstlineno})" if code is not None else "")


@contextmanager
def import_file(source: str) -> Iterator[ModuleType]:
    """A Python file as a module under a private name.

    For the length of the block the file's neighbours can be imported, as when the file is run as a script. Afterwards
    the search path is the old one and the neighbours are forgotten, so their names (``utils``, ``model``) do
    not shadow anybody else's.
    """
    path = Path(source).resolve()
    if not path.is_file():
        raise BadInput(f"there is no file {source}")
    name = f"_leakgauge_model_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise BadInput(f"Python cannot import {source}")
    module = importlib.util.module_from_spec(found)
    with _searching(path.parent), _forgetting(path.parent), _same_surroundings():
        sys.modules[name] = module  # dataclasses and pickle look a class's module up by name
        try:
            _executed(found.loader, module)
        except (
            Exception,
            SystemExit,
            GeneratorExit,
        ) as error:  # the user's own code may raise anything; it is reported, with its cause
            del sys.modules[name]
            raise BadInput(f"{source} {raised(error, source, when=' when it was imported')}") from error
        yield module


def _executed(loader: Loader, module: ModuleType) -> None:
    try:
        loader.exec_module(module)
    except (RuntimeError, ImportError) as error:
        if not needs_invitation(error):
            raise
        invite_torchvision()  # timm and Lightning import it; beside another build of torch it needs help
        loader.exec_module(module)


@contextmanager
def import_package(source: str) -> Iterator[ModuleType]:
    """An importable module by its dotted name; the working directory is searched too, as ``python -m`` does."""
    with _searching(Path.cwd()), _same_surroundings():
        try:
            module = importlib.import_module(source)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{source}.".startswith(f"{error.name}."):
                raise BadInput(f"{source} raised {one_line(error)} when it was imported") from error
            raise BadInput(f"there is no module {error.name}; install it, or name a file (file.py:factory)") from error
        except Exception as error:  # the user's own code may raise anything; it is reported, with its cause
            raise BadInput(f"{source} raised {one_line(error)} when it was imported") from error
        yield module


@contextmanager
def _same_surroundings() -> Iterator[None]:
    """Afterwards the working directory and torch's default device and type are the old ones, whatever the block sets."""
    device, kind = torch.get_default_device(), torch.get_default_dtype()
    try:
        with chdir(Path.cwd()):
            yield
    finally:
        if torch.get_default_device() != device:
            torch.set_default_device(device if device.type != "cpu" else None)
        torch.set_default_dtype(kind)


@contextmanager
def _searching(folder: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def _forgetting(folder: Path) -> Iterator[None]:
    """Drops the modules that the block imports from ``folder`` itself, not those of an environment lying in it."""
    before = set(sys.modules)
    try:
        yield
    finally:
        new = {name: module for name, module in sys.modules.items() if name not in before}
        tops = {name for name, module in new.items() if "." not in name and _lies_in(folder, name, module)}
        for name in new:
            if name.partition(".")[0] in tops:
                del sys.modules[name]


def _lies_in(folder: Path, name: str, module: ModuleType) -> bool:
    spec = getattr(module, "__spec__", None)
    if spec is None or name.startswith("_leakgauge_model_"):
        return False
    places = spec.submodule_search_locations or [spec.origin]
    return any(Path(place).parent == folder for place in places if place)
