"""The folder of a run. A new run replaces an old one only when it has results; a mistake brings the old one back."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from leakgauge.audit.case import REARRANGED, Case
from leakgauge.audit.files import json_text, make_private, read_json, sole_writer, write_whole
from leakgauge.audit.typed import typed
from leakgauge.cli.options import ASKED
from leakgauge.errors import BadInput
from leakgauge.integrations import plan_file
from leakgauge.integrations.resolve import is_code

ASIDE = ".replaced"
"""Where an old run is kept until the new one has results."""


def make_folder(folder: Path) -> None:
    """Makes the run folder and checks that it can be written to."""
    try:
        make_private(folder)
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
    with held(folder):
        _bring_back(folder, marks or names[:1])
        with _replaced(folder, names, replace_old=replace_old, refusal=refusal, marks=marks):
            yield


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Inside, ``folder`` exists and nobody else writes into it. Folders that were made for nothing are removed afterwards."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    make_folder(folder)
    try:
        with sole_writer(folder):
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
    write_whole(folder / ASKED, json_text(asked))


def refuse_changes(folder: Path, asked: Mapping[str, str], *, kind: str) -> None:
    """Refuses options that differ from those the run was started with; repeating the same command with --resume is fine."""
    if not (folder / ASKED).is_file():
        return  # no run of the command line; reading its plan says so
    before = _asked(folder)
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


def _asked(folder: Path) -> Mapping[str, str]:
    path = folder / ASKED
    if not path.is_file():
        return {}
    remedy = "move it away and give --resume without other options"
    return read_json(path, partial(typed, Mapping[str, str]), remedy=remedy)


def refuse_unnamed_code(
    folder: Path, cases: Iterable[Case], *, model: str | None, data: str | None, command: str
) -> None:
    """Refuses to run Python that only the files of the folder name: they may be somebody else's. Naming the model is consent.

    Also refuses a folder whose ``asked.json`` names another model or other data than its plan.
    """
    cases = list(cases)
    own = set() if model is None else {*plan_file.named(model, data), *plan_file.named(model, None)}
    for case in cases:
        unnamed = [case.model] if is_code(case.model) else []
        unnamed += [case.data] if plan_file.is_function(case.data) else []
        if not {spec.removeprefix(REARRANGED) for spec in unnamed} <= {spec.removeprefix(REARRANGED) for spec in own}:
            by_plan = plan_file.source(case.model)
            name = by_plan if plan_file.named(by_plan, None) == (case.model, case.data) else case.model
            again = shlex.join(["leakgauge", command, name, "--resume", "--out", str(folder)])
            raise BadInput(
                f"resuming {folder} would run the Python code {' and '.join(dict.fromkeys(unnamed))}, which the folder names and you did "
                f"not; look at that code, then say that you want it: {again}"
            )
    asked = _asked(folder)
    if "model" in asked and cases:
        expected = plan_file.named(asked["model"], asked.get("data"))
        if expected[0] not in {case.model for case in cases} or expected[1] not in {case.data for case in cases}:
            raise BadInput(
                f"{folder / ASKED} and the plan beside it name different models or data, so they are not of one run; start another one "
                "with another --out"
            )


__all__ = ["claimed", "held", "make_folder", "refuse_changes", "refuse_unnamed_code", "remember"]
