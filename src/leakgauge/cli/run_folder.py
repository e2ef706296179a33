"""The folder of a run. A new run replaces an old one only when it has results; a mistake brings the old one back."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from leakgauge.audit.files import sole_writer, write_whole
from leakgauge.cli.options import ASKED
from leakgauge.errors import BadInput

ASIDE = ".replaced"
"""Where an old run is kept until the new one has results."""


def make_folder(folder: Path) -> None:
    """Makes the run folder and checks that it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as trouble:
        raise BadInput(
            f"cannot make the output folder {folder} ({trouble.strerror}); choose another with --out"
        ) from trouble
    if not os.access(folder, os.W_OK):
        raise BadInput(f"cannot write to the output folder {folder}; choose another with --out")


@contextmanager
def claimed(
    folder: Path, names: Sequence[str], *, replace_old: bool, refusal: str, marks: Sequence[str] = ()
) -> Iterator[None]:
    """Inside, ``folder`` exists and is free for a new run, which writes the files and folders ``names``.

    One of ``marks`` (default: the first name) shows that an old run is there; it is refused, or replaced with ``replace_old``.
    If the block fails before the new run wrote a file, the old run is put back and empty new folders are removed.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    make_folder(folder)
    try:
        with sole_writer(folder):
            _bring_back(folder, marks or names[:1])
            with _replaced(folder, names, replace_old=replace_old, refusal=refusal, marks=marks):
                yield
    finally:
        for place in made:
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()


def _bring_back(folder: Path, marks: Sequence[str]) -> None:
    """A process that was killed before it had results left the run that it was to replace."""
    aside = folder / ASIDE
    if aside.is_dir() and not any((folder / mark).exists() for mark in marks):
        for left in aside.iterdir():
            _remove(folder / left.name)
            left.rename(folder / left.name)
        aside.rmdir()


@contextmanager
def _replaced(
    folder: Path, names: Sequence[str], *, replace_old: bool, refusal: str, marks: Sequence[str]
) -> Iterator[None]:
    aside, old = folder / ASIDE, [name for name in names if (folder / name).exists()]
    if not any(mark in old for mark in marks or names[:1]):
        old = []
    elif not replace_old:
        raise BadInput(f"{folder} already holds {refusal}")
    _remove(aside)
    for name in old:
        aside.mkdir(exist_ok=True)
        (folder / name).rename(aside / name)
    before = {name for name in names if (folder / name).exists()}
    try:
        yield
    except BaseException:
        if not any((folder / name).is_file() for name in names if name not in before):
            for name in old:
                _remove(folder / name)
                (aside / name).rename(folder / name)
        raise
    finally:
        _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remember(folder: Path, asked: Mapping[str, str]) -> None:
    """Keeps what the command line of a new run asked for, by the name of the option."""
    write_whole(folder / ASKED, json.dumps(asked, ensure_ascii=False, indent=1).encode())


def refuse_changes(folder: Path, asked: Mapping[str, str], *, kind: str) -> None:
    """Refuses options that differ from those the run was started with; repeating the same command with --resume is fine."""
    path = folder / ASKED
    if not path.is_file():
        return  # no run of the command line; reading its plan says so
    try:
        before: dict[str, str] = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(f"{path} is damaged; move it away and give --resume without other options") from error
    changed = sorted(name for name, value in asked.items() if before.get(name) != value)
    if changed:
        words = ["MODEL" if name == "model" else f"--{name.replace('_', '-')}" for name in changed]
        was = ", ".join(
            f"{word} was {before[name]}" if name in before else f"{word} was not given"
            for word, name in zip(words, changed, strict=True)
        )
        raise BadInput(
            f"--resume continues the {kind} as it was planned ({was}); leave that out, or start another {kind} with another --out"
        )


__all__ = ["claimed", "make_folder", "refuse_changes", "remember"]
