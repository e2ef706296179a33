"""Which single changes flip a verdict, read from whatever set-ups a run holds: a ladder, or a grid that contains one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from leakgauge.audit.case import Case, restored
from leakgauge.audit.explain import change_in, changes
from leakgauge.audit.records import Record
from leakgauge.audit.summaries import Flip, Update
from leakgauge.audit.verdict import SEVERITY

_NEEDED = {"defenses", "reveal"}
_KNOWN = {field.name for field in fields(Case)}


def case_of(record: Record) -> Case | None:
    """The record's case; None where the record was made by hand or by another version and holds something else."""
    names = set(record.case)
    return restored(dict(record.case)) if names <= _KNOWN and names >= _NEEDED else None


def flips(records: Sequence[Record], updates: Sequence[Update]) -> tuple[Flip, ...]:
    """Every pair of judged set-ups that one change of :mod:`leakgauge.audit.explain` parts and that ended differently.

    Cases are compared by what they do, not by their names, so that a grid shows its flips as a ladder does. Each pair counts once.
    """
    judged = [(case_of(r), u) for r, u in zip(records, updates, strict=True) if u.outcome is not None]
    known = [(case, update) for case, update in judged if case is not None]
    by_deed = {case.deed(): update for case, update in known}
    found: dict[tuple[str, str], Flip] = {}
    for case, update in known:
        if update.change:
            continue
        for changed in changes(case):
            other = by_deed.get(changed.case.deed())
            if other is not None:
                pair = (other, update) if changed.kind == "relaxation" else (update, other)
                _add(found, Flip(changed.name, *pair, makes=str(other.outcome)))
        for other_case, other in known:  # relaxations of the network itself have names that only the ladder knew
            same = replace(other_case, name="", model=case.model) == replace(case, name="")
            if other.change and same and other_case.model != case.model:
                _add(found, Flip(change_in(other.name), other, update, makes=str(other.outcome)))
    return tuple(found.values())


def _add(found: dict[tuple[str, str], Flip], flip: Flip) -> None:
    """A pair counts where the easier one for the adversary leaks more; the other way round it is chance, not a flip."""
    if SEVERITY[str(flip.leaking.outcome)] > SEVERITY[str(flip.holding.outcome)]:
        found.setdefault((flip.leaking.anchor, flip.holding.anchor), flip)
