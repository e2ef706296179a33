"""A plan file: an audit written down in Python, to be run again and again.

    victim()   the model and the images it takes           (needed)
    data()     private images and labels, or their path    (needed, unless --data is given)
    cases()    the set-ups to attack                       (optional)

Beside them may stand ``BUDGET``, ``ONLY`` or ``SKIP`` (questions) and ``FAIL_OVER``. A case names the functions
(``audit.py:victim``), so it stays plain data that travels to other processes and is found again by ``--resume``.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from leakgauge.audit.case import Case, accepted_options, default_data
from leakgauge.core.randomness import private_randomness
from leakgauge.data.sentences import Sentences
from leakgauge.data.tables import TableData
from leakgauge.errors import BadInput
from leakgauge.integrations.datasets import as_array, collect
from leakgauge.integrations.user_code import called, function, import_file, place

VICTIM, DATA, CASES = "victim", "data", "cases"
CONSTANTS = ("BUDGET", "ONLY", "SKIP", "FAIL_OVER")
TOO_CLOSE = 0.8
"""Names this similar to an optional one are taken for a slip of the pen: a misspelt gate must not pass in silence."""
MOST_CASES = 10_000
EMBEDDED = ("fashion", "photographs")


@dataclass(frozen=True)
class PlanFile:
    """What a plan file says. ``cases`` are as written there (None: it leaves them to the audit), the rest is None or empty where unsaid."""

    path: str
    cases: tuple[Case, ...] | None = None
    budget: str | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    fail_over: str | None = None


def is_plan(model: str | None) -> bool:
    """Whether what is given as a model is a plan file: a Python file without ``:factory``."""
    return model is not None and model.endswith(".py")


def named(model: str | None, data: str | None, *, default: str = "cnn") -> tuple[str, str]:
    """Model and data of a case. A plan file means its two functions; ``data``, where given, wins over its ``data()``."""
    if model is not None and is_plan(model):
        return f"{model}:{VICTIM}", data or f"{model}:{DATA}"
    model = model or default
    return model, data or default_data(model)


def source(model: str) -> str:
    """The plan file whose victim ``model`` is; empty where that is something else."""
    return model.removesuffix(f":{VICTIM}") if model.endswith(f".py:{VICTIM}") else ""


def read(path: str, *, seed: int = 0) -> PlanFile:
    """Imports the file and checks what can be checked before anything runs."""
    with private_randomness(seed, torch.device("cpu")), import_file(path) as module:
        names = vars(module)
        own = [n for n, v in names.items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        _no_slips(path, own, [CASES], known=(VICTIM, DATA, CASES))
        _no_slips(path, [n for n in names if n.isupper() or n.upper() in CONSTANTS], CONSTANTS, known=CONSTANTS)
        if VICTIM not in names:
            raise BadInput(
                f"{path} has no {VICTIM}(), which a plan file needs; for a model that another function makes write "
                f"{path}:{own[0] if own else 'FUNCTION'}"
            )
        function(names, VICTIM, path, returns="a model and its Pixels")
        only, skip = _words(names, "ONLY", path), _words(names, "SKIP", path)
        if only and skip:
            raise BadInput(f"{path} sets ONLY and SKIP; one of them says everything")
        return PlanFile(
            path,
            cases=_cases(function(names, CASES, path, returns="cases"), path) if CASES in names else None,
            budget=_word(names, "BUDGET", path),
            only=only,
            skip=skip,
            fail_over=_word(names, "FAIL_OVER", path),
        )


def settled(
    plan: PlanFile,
    base: Case,
    *,
    given: Collection[str] = (),
    mode: str | None = None,
    batch_size: int | None = None,
    defenses: Sequence[str] = (),
) -> list[Case]:
    """The plan's cases on its victim and data. What the command line gave wins, in every case.

    ``base`` is the case that the options describe and ``given`` the names of its fields that were really given. Options of
    the attack are merged where it takes them, unless another attack was given. ``defenses`` replace the case's own: each
    one alone, and none.
    """
    fields = {name: getattr(base, name) for name in given}
    found: dict[str, Case] = {}
    for number, written in enumerate(plan.cases or (), start=1):
        taken = {k: v for k, v in base.options.items() if "attack" in given or k in accepted_options(written)}
        options = taken if "attack" in given else {**written.options, **taken}
        changes: dict[str, Any] = {**fields, "model": base.model, "data": base.data, "options": options}
        changes |= {} if mode is None else {"mode": mode}
        changes |= {} if batch_size is None else {"batch_size": batch_size}
        unnamed = replace(written, name="").name == written.name
        guards = [(), *((spec,) for spec in defenses)] if defenses else [written.defenses]
        for guard in guards:
            name = (
                ""
                if unnamed
                else f"{written.name}{', ' if defenses and guard else ''}{'+'.join(guard) if defenses else ''}"
            )
            case = replace(written, **changes, defenses=guard, name=name)
            _check(case, f"case {number} of {CASES}() in {plan.path}")
            found.setdefault(case.key(), case)
    return list(found.values())


def steps_of(cases: Sequence[Case]) -> int | None:
    """The most steps of the cases, where every one whose attack takes steps says its own: they hold, whatever the budget."""
    found = [case.steps for case in cases if "steps" in accepted_options(case)]
    return None if None in found else max((n for n in found if n is not None), default=None)


def is_function(data: str) -> bool:
    """Whether a case's data is a function of a file: ``audit.py:data``."""
    source, colon, name = data.rpartition(":")
    return bool(colon) and source.endswith(".py") and name.isidentifier()


def returned_data(spec: str, *, seed: int = 0) -> str | Sentences | TableData | tuple[np.ndarray, np.ndarray, str]:
    """What the function ``spec`` returns: the path or name of data, sentences, or images (token ids), labels and where they come from.

    A relative path starts from the plan file's own folder, so the plan works from anywhere.
    """
    source, _, name = spec.rpartition(":")
    with private_randomness(seed, torch.device("cpu")), import_file(source) as module:
        make = function(vars(module), name, source, returns="images and labels")
        found = called(lambda: _collected(make()), name, source)
        where = place(make, name, source)
    match found:
        case str() if found in EMBEDDED:
            return found
        case str() | Path():
            return str(Path(source).parent / found)
        case list() if found and all(isinstance(one, str) for one in found):
            return Sentences(tuple(found))
        case TableData():
            return found
        case (x, y) if _like_an_array(x) and _like_an_array(y):
            return as_array(x, where), as_array(y, where), where
        case tuple() | list():
            got = f"{len(found)} things ({', '.join(type(part).__name__ for part in found[:4])})"
        case _:
            got = type(found).__name__
    raise BadInput(
        f"{where} must return (images, labels) as tensors or arrays, a Dataset or DataLoader, a list of sentences, what "
        f"read_table makes of a table, or the path of data; got {got}"
    )


def _collected(made: object) -> object:
    """The arrays of a dataset or loader, whose code is the user's own as well; anything else as it is."""
    return collect(made) if isinstance(made, Dataset | DataLoader) else made


def _like_an_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray | list)


def _cases(make: Callable[..., Any], path: str) -> tuple[Case, ...]:
    found, where = called(lambda: _listed(make()), CASES, path), place(make, CASES, path)
    if not isinstance(found, list):
        raise BadInput(f"{where} must return a list of Case, got {type(found).__name__}")
    if len(found) > MOST_CASES:
        raise BadInput(f"{where} returns more than {MOST_CASES:,} cases; an audit of so many would never end")
    for number, case in enumerate(found, start=1):
        if not isinstance(case, Case):
            raise BadInput(f"{where} must return a list of Case, its number {number} is a {type(case).__name__}")
        if (case.model, case.data) != (Case.model, Case.data):
            raise BadInput(
                f"case {number} of {where} names a model or data; leave them out, they are {VICTIM}() and {DATA}()"
            )
    if not found:
        raise BadInput(f"{where} returned no case; return at least one, or leave {CASES}() out for the usual ones")
    return tuple(replace(case, defenses=tuple(case.defenses), reveal=tuple(case.reveal)) for case in found)


def _listed(made: object) -> object:
    """A list of what can be gone through, which is itself the user's code (a generator), and may have no end; anything else as it is."""
    if isinstance(made, Case):
        return [made]
    return (
        list(islice(made, MOST_CASES + 1))
        if isinstance(made, Iterable) and not isinstance(made, str | Mapping)
        else made
    )


def _check(case: Case, where: str) -> None:
    """Refuses, before anything runs, a case whose parts cannot be built."""
    try:
        for build in (case.build_attack, case.build_channel, case.build_defenses, case.build_reveal):
            build()
    except BadInput as mistake:
        raise BadInput(f"{where}: {mistake}") from mistake


def _word(names: Mapping[str, Any], name: str, path: str) -> str | None:
    value = names.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadInput(f"{name} in {path} must be text such as {'5m' if name == 'BUDGET' else 'partial'!r}, got {value!r}")


def _words(names: Mapping[str, Any], name: str, path: str) -> tuple[str, ...]:
    value = names.get(name, ())
    value = (value,) if isinstance(value, str) else value
    if isinstance(value, tuple | list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise BadInput(f"{name} in {path} must be names of questions such as ('updates', 'split'), got {value!r}")


def _no_slips(path: str, names: Iterable[str], optional: Sequence[str], *, known: Collection[str]) -> None:
    meant = {one.lower(): one for one in optional}
    for name in names:
        close = difflib.get_close_matches(name.lower(), meant, n=1, cutoff=TOO_CLOSE) if name not in known else []
        if close and meant[close[0]] not in names:
            raise BadInput(f"{path} has {name}, which means nothing here; did you mean {meant[close[0]]}?")
