"""Imports of a user's code that leave the interpreter as they found it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from leakgauge.errors import BadInput


def one_line(error: Exception) -> str:
    """Type and message of an error, fit to stand in a sentence."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


@contextmanager
def import_file(source: str) -> Iterator[ModuleType]:
    """A Python file as a module under a private name.

    For the length of the block the file's neighbours can be imported, as when the file is run as a script. Afterwards
    the search path is the old one and the neighbours are forgotten, so that their names (``utils``, ``model``) do
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
    with _searching(path.parent), _forgetting(path.parent):
        sys.modules[name] = module  # dataclasses and pickle look a class's module up by name
        try:
            found.loader.exec_module(module)
        except Exception as error:  # the user's own code may raise anything; it is told, with its cause
            del sys.modules[name]
            raise BadInput(f"{source} raised {one_line(error)} when it was imported") from error
        yield module


@contextmanager
def import_package(source: str) -> Iterator[ModuleType]:
    """An importable module by its dotted name; the working directory is searched too, as ``python -m`` does."""
    with _searching(Path.cwd()):
        try:
            module = importlib.import_module(source)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{source}.".startswith(f"{error.name}."):
                raise BadInput(f"{source} raised {one_line(error)} when it was imported") from error
            raise BadInput(f"there is no module {error.name}; install it, or name a file (file.py:factory)") from error
        except Exception as error:  # the user's own code may raise anything; it is told, with its cause
            raise BadInput(f"{source} raised {one_line(error)} when it was imported") from error
        yield module


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
