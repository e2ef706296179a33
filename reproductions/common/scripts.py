"""Runs the scripts of a study by name, one after another, in the order in which the study lists them.

    python -m reproductions.april.run table1 width --quick --out FOLDER
    python -m reproductions.april.run --list

Without a name all of them run. Options are passed on as they are, so an option of one script needs that script named alone. A study may
list a script twice, the second time under another name and with options of its own.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile


def parts(*named: str) -> dict[str, list[str]]:
    """Names of parts with their script and its options.

    >>> parts("noise", "noise_unscaled = noise --unscaled")
    {'noise': ['noise'], 'noise_unscaled': ['noise', '--unscaled']}
    """
    pairs = (one.partition(" = ") for one in named)
    return {name: (command or name).split() for name, _, command in pairs}


def run_scripts(package: str, scripts: Mapping[str, Sequence[str]], given: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if given is None else given)
    named = list(takewhile(lambda word: not word.startswith("-"), arguments))
    options = arguments[len(named) :]
    if unknown := [name for name in named if name not in scripts]:
        print(f"no part {', '.join(unknown)}; there are {', '.join(scripts)}", file=sys.stderr)
        raise SystemExit(2)
    wanted = [name for name in scripts if not named or name in named]
    if "--list" in options:
        print_parts({name: importlib.import_module(f"{package}.{scripts[name][0]}").__doc__ for name in wanted})
        return
    before = sys.argv
    try:
        for name in wanted:
            script, *own = scripts[name]
            sys.argv = [script, *own, *options]
            runpy.run_module(f"{package}.{script}", run_name="__main__")
    finally:
        sys.argv = before


def print_parts(about: Mapping[str, str | None]) -> None:
    """Each part with the first line of its description."""
    for name, text in about.items():
        print(f"{name:24} {(text or '').strip().splitlines()[0]}")
