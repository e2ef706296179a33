"""What could be reconstructed from updates, and why: the single changes of a set-up, and which of them flip its verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

from leakgauge.attacks import ATTACKS
from leakgauge.audit.case import Case, Change, accepted_options, uses_of, with_steps
from leakgauge.audit.records import Record
from leakgauge.audit.specs import made_from
from leakgauge.audit.verdict import Outcome
from leakgauge.core import PerSample, SharesBuffers, Tokens, Use, Victim
from leakgauge.errors import BadInput
from leakgauge.inversion import Guided, Matching
from leakgauge.inversion.statistics import tracking_layers
from leakgauge.servers import SERVERS

Alter = Callable[[Case], Case | None]
"""Gives the changed case, or None where the set-up already is so."""


def _with(**changes: Any) -> Alter:
    def change(case: Case) -> Case | None:
        changed = replace(case, name="", **changes)
        return None if replace(changed, name=case.name) == case else changed

    return change


GUIDED = "feasibility"
"""The attack that takes over where the case's own cannot use what is revealed."""


def _revealed(spec: str, *, use: Use | None = None) -> Alter:
    """Reveals one more thing; an attack without that ``use`` of it gives way to :data:`GUIDED`, with the same options."""

    def change(case: Case) -> Case | None:
        if spec.partition(":")[0] in {known.partition(":")[0] for known in case.reveal}:
            return None
        changed = replace(case, name="", reveal=(*case.reveal, spec))
        if use is not None and use not in uses_of(case.attack):
            changed = replace(changed, name="", attack=GUIDED, options={})
            changed = replace(changed, name="", options=_carried(case, accepted_options(changed)))
        return changed

    return change


def _carried(case: Case, taken: Mapping[str, object]) -> dict[str, Any]:
    """The case's options for an attack with the defaults ``taken``.

    Where that attack adds to the case's own, such as ``feasibility`` to inverting gradients, the case's defaults stay too: another weight
    of total variation would be a second change and could flip a verdict by itself.
    """
    given, own = dict(case.options), case.build_attack()
    every = {name: value for name, value in {**accepted_options(case), **given}.items() if name in taken}
    guided = made_from(GUIDED, ATTACKS, kind="attack", extra=every)
    adds = (
        isinstance(own, Matching)
        and isinstance(guided, Guided)
        and replace(guided.matching, name=own.name, start=own.start) == own
    )
    return {name: v for name, v in every.items() if name in given or (adds and v != taken[name])}


def _statistics_shared(case: Case) -> Case | None:
    shared = case.mode == "train" and isinstance(case.build_channel(), SharesBuffers)
    return _revealed("buffers", use="statistics")(case) if shared else None


RELAXATIONS: Mapping[str, Alter] = {
    "eval mode": _with(mode="eval"),
    "batch of 1": _with(batch_size=1),
    "one local step": _with(local_steps=1, local_epochs=1),
    "no defense": _with(defenses=()),
    "the plain update of one client": _with(channel=""),
    "true labels given": _revealed("labels"),
    "running statistics shared": _statistics_shared,
    "half of the pixels given": _revealed("noisy_copy:0.5", use="noisy_copy"),
}
"""What would make the adversary's work easier, one thing at a time."""


def _larger_batch(case: Case) -> Case:
    return replace(case, name="", batch_size=4 * case.batch_size)


def _four_local_epochs(case: Case) -> Case | None:
    """More steps on the same images: more images are another change. As many or more already would make it an easier one."""
    return _with(local_epochs=4)(case) if case.local_epochs < 4 else None


def _noised(case: Case) -> Case | None:
    """Noise after whatever else defends: in its place it would be two changes, and less noise than some."""
    noise = "gaussian_noise:relative=10.0"
    return None if noise in case.defenses else _with(defenses=(*case.defenses, noise))(case)


RESTRICTIONS: Mapping[str, Alter] = {
    "train mode": _with(mode="train"),
    "batch four times as large": _larger_batch,
    "four local epochs": _four_local_epochs,
    "Gaussian noise with 10× the gradient's norm": _noised,
}
"""What would make it harder: tried where the verdict is feasible already."""


DISHONEST = Change("a server that does not keep to the protocol", "relaxation")
"""Not one of the relaxations, which are about an honest server: another threat model, with a line of its own."""


def dishonest(case: Case, server: str = "imprint") -> Case | None:
    """The set-up with a malicious server, which reads the update with its own attack; None where no model is sent or the server is one.

    The gate does not judge it, as no single change. A case that names its server is judged.
    """
    if case.server or isinstance(case.build_channel(), PerSample):
        return None
    made = made_from(server, SERVERS, kind="server")
    return replace(case, name="", server=server, attack=made.reads, options={}, change=DISHONEST)


def changes(case: Case, *, models: Mapping[str, str] | None = None) -> list[Case]:
    """Every single change that makes another case of this one; each case carries its :class:`~leakgauge.audit.case.Change`.

    ``models`` are relaxations of the network itself, as names of other models: a smaller stem, a lower resolution.
    """
    tried = [(Change(name, "relaxation"), alter(case)) for name, alter in RELAXATIONS.items()]
    tried += [(Change(n, "relaxation"), replace(case, name="", model=model)) for n, model in (models or {}).items()]
    tried += [(Change(name, "restriction"), alter(case)) for name, alter in RESTRICTIONS.items()]
    return [
        replace(changed, name="", change=change) for change, changed in tried if changed is not None and changed.fits()
    ]


def pointless(victim: Victim) -> frozenset[str]:
    """The changes that change nothing for a model: of a mode that it does not know, of running statistics that it does not keep."""
    names = set[str]() if victim.depends_on_mode() else {"eval mode", "train mode"}
    if isinstance(victim.space, Tokens):
        names |= {"half of the pixels given", "true labels given"}
    return frozenset(names if tracking_layers(victim) else {*names, "running statistics shared"})


def ladder(
    case: Case, *, images: int, models: Mapping[str, str] | None = None, without: Collection[str] = ()
) -> list[Case]:
    """The case itself, then all its single changes but those ``without`` that do with the ``images`` that the data holds."""
    kept = [c for c in changes(case, models=models) if c.change is not None and c.change.name not in without]
    every = [case, *kept]
    return [one for one in every if one is case or one.first + one.images <= images]


def same_work(case: Case) -> str:
    """The same for cases that differ in nothing but the steps, which a budget may have planned."""
    return with_steps(case, 1).content_key()


@dataclass(frozen=True)
class Step:
    """One single change, the record of the case that it leads to, and whether that flips the verdict."""

    change: Change
    record: Record
    flips: bool


@dataclass(frozen=True)
class Explanation:
    """The record of the set-up itself and what each single change makes of it."""

    base: Record
    steps: tuple[Step, ...]

    def summary(self) -> dict[str, Any]:
        """Plain fields, ready for JSON."""
        steps = [
            {**asdict(step.change), "key": step.record.key, "outcome": step.record.outcome, "flips": step.flips}
            for step in self.steps
        ]
        return {"case": asdict(self.base.case), "key": self.base.key, "outcome": self.base.outcome, "steps": steps}


def explain(
    records: Sequence[Record], *, main: Case | None = None, models: Mapping[str, str] | None = None
) -> Explanation:
    """What each single change of ``main`` (by default of the first record's case) led to, of those that the run holds.

    Cases count by what they do, whatever their names, so a grid explains itself as far as it is a ladder.
    """
    by_content = _by_content(records)
    base = main if main is not None else records[0].case if records else None
    found = None if base is None else by_content.get(base.content_key())
    if base is None or found is None:
        raise BadInput("there is no record to explain; run the audit with --explain first")
    steps = [
        _step(changed.change, other, found)
        for changed in changes(base, models=models)
        if changed.change is not None and (other := _found(changed, by_content)) is not None
    ]
    return Explanation(found, tuple(steps))


def _step(change: Change, record: Record, base: Record) -> Step:
    pair = (record, base) if change.kind == "relaxation" else (base, record)
    return Step(change, record, _leaks_more(*pair))


def _by_content(records: Sequence[Record]) -> dict[str, Record]:
    """Records by what their cases do, and by the same without the steps; of several that differ in steps alone, the one with most."""
    ordered = sorted(records, key=lambda record: record.case.steps or 0)
    exact = {record.case.content_key(): record for record in ordered}
    return {same_work(record.case): record for record in ordered} | exact


def _found(case: Case, by_content: Mapping[str, Record]) -> Record | None:
    """The record of the case, or else of the same with other steps, since a budget may give a set-up more steps than another."""
    return by_content.get(case.content_key()) or by_content.get(same_work(case))


def _leaks_more(leaking: Record, holding: Record) -> bool:
    """Whether the first was shown to leak more than the second, which no smaller number of steps explains."""
    more, less = leaking.outcome, holding.outcome
    if more is None or less is None or not (more.conclusive and less.conclusive):
        return False
    spent, had = leaking.case.steps, holding.case.steps
    fair = spent is None or had is None or had >= spent
    return fair and more.severity > less.severity


T = TypeVar("T")


@dataclass(frozen=True)
class Flip(Generic[T]):
    """Two set-ups that differ in one thing: ``leaking`` leaks more than ``holding``, which may still leak in part.

    ``change`` leads from one to the other; the outcome there is ``makes``.
    """

    change: str
    leaking: T
    holding: T
    makes: Outcome


def flips(records: Sequence[Record]) -> tuple[Flip[Record], ...]:
    """Every pair of judged set-ups that one change sets apart and that ended differently, in a ladder or a grid that contains one.

    Cases are compared by what they do, not by their names. Each pair counts once.
    """
    judged = [record for record in records if record.status == "done" and record.outcome is not None]
    by_content = _by_content(judged)
    found: dict[tuple[str, str], Flip[Record]] = {}
    for record in judged:
        if record.change is not None or not _has_attack_of(record.case):
            continue
        for changed in changes(record.case):
            other = _found(changed, by_content)
            if other is not None and changed.change is not None:
                pair = (other, record) if changed.change.kind == "relaxation" else (record, other)
                _add(found, changed.change.name, *pair, makes=other)
        for other in judged:  # relaxations of the network itself have names that only the ladder knew
            if other.change is not None and _same_but_model(record.case, other.case):
                _add(found, other.change.name, other, record, makes=other)
    return tuple(found.values())


def _has_attack_of(case: Case) -> bool:
    """Whether this version has the attack with these options; a record of another version may name others."""
    return case.attack in ATTACKS and set(case.options) <= set(accepted_options(case))


def _same_but_model(case: Case, other: Case) -> bool:
    return same_work(replace(other, name="", model=case.model)) == same_work(case) and other.model != case.model


def _add(
    found: dict[tuple[str, str], Flip[Record]], change: str, leaking: Record, holding: Record, *, makes: Record
) -> None:
    """A pair counts where the easier one for the adversary leaks more; the other way round it is chance, not a flip."""
    if makes.outcome is not None and _leaks_more(leaking, holding):
        found.setdefault((leaking.key, holding.key), Flip(change, leaking, holding, makes.outcome))
