"""Why a verdict is what it is: the single changes of the set-up that flip it, found by trying each."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from leakgauge.audit.case import Case, accepted_options, restored
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import SEVERITY
from leakgauge.core import SharesBuffers, Victim
from leakgauge.errors import BadInput
from leakgauge.inversion.statistics import tracking_layers

Change = Callable[[Case], Case | None]
"""The changed case, or None where the set-up already is so."""


def _with(**changes: Any) -> Change:
    def change(case: Case) -> Case | None:
        changed = replace(case, name="", **changes)
        return None if replace(changed, name=case.name) == case else changed

    return change


def _revealed(spec: str, *, guided: bool = False) -> Change:
    """Reveals one more thing; ``guided`` switches to the attack that can use it, which goes on as the attack before did."""

    def change(case: Case) -> Case | None:
        if spec.partition(":")[0] in {known.partition(":")[0] for known in case.reveal}:
            return None
        changed = replace(case, name="", reveal=(*case.reveal, spec))
        if guided and case.attack.partition(":")[0] not in ("feasibility", "huang"):
            changed = replace(changed, name="", attack="feasibility", options={})
            changed = replace(changed, name="", options=_carried(case, accepted_options(changed)))
        return changed

    return change


def _carried(case: Case, taken: Mapping[str, object]) -> dict[str, Any]:
    """The case's options that an attack takes whose own values are ``taken``.

    ``feasibility`` is inverting gradients and a prior more, with another weight of total variation by default. That of the
    case stays, or the weight would be a second change and could flip a verdict by itself.
    """
    given = dict(case.options)
    kept = {**accepted_options(case), **given} if case.attack == "inverting_gradients" else given
    return {option: v for option, v in kept.items() if option in taken and (option in given or v != taken[option])}


def _statistics_shared(case: Case) -> Case | None:
    shared = case.mode == "train" and isinstance(case.build_channel(), SharesBuffers)
    return _revealed("buffers", guided=True)(case) if shared else None


RELAXATIONS: Mapping[str, Change] = {
    "eval mode": _with(mode="eval"),
    "batch of 1": _with(batch_size=1),
    "one local step": _with(local_steps=1),
    "no defense": _with(defenses=()),
    "the plain update of one client": _with(channel=""),
    "true labels given": _revealed("labels"),
    "running statistics shared": _statistics_shared,
    "half of the pixels given": _revealed("noisy_copy:0.5", guided=True),
}
"""What would make the adversary's work easier, one thing at a time."""


def _larger_batch(case: Case) -> Case:
    return replace(case, name="", batch_size=4 * case.batch_size)


def _four_local_steps(case: Case) -> Case | None:
    """As many or more already would make it an easier one."""
    return _with(local_steps=4)(case) if case.local_steps < 4 else None


def _noised(case: Case) -> Case | None:
    """Noise after whatever else defends: in its place it would be two changes, and less noise than some."""
    noise = "gaussian_noise:relative=10.0"
    return None if noise in case.defenses else _with(defenses=(*case.defenses, noise))(case)


RESTRICTIONS: Mapping[str, Change] = {
    "train mode": _with(mode="train"),
    "batch four times as large": _larger_batch,
    "four local steps": _four_local_steps,
    "noise ten times as long as the gradient": _noised,
}
"""What would make it harder: tried where the verdict is feasible already."""


@dataclass(frozen=True)
class Changed:
    """A single change, whether it makes the adversary's work easier (relaxation) or harder (restriction), and the new case."""

    name: str
    kind: str
    case: Case


def changes(case: Case, *, models: Mapping[str, str] | None = None) -> list[Changed]:
    """Every single change that makes another case of this one; the case's name says which.

    ``models`` are relaxations of the network itself, as names of other models: a smaller stem, a lower resolution.
    """
    tried = [(name, "relaxation", change(case)) for name, change in RELAXATIONS.items()]
    tried += [(n, "relaxation", replace(case, name="", model=model)) for n, model in (models or {}).items()]
    tried += [(name, "restriction", change(case)) for name, change in RESTRICTIONS.items()]
    return [
        Changed(name, kind, replace(changed, name=_named(changed, kind, name)))
        for name, kind, changed in tried
        if changed is not None and changed.fits()
    ]


def _named(changed: Case, kind: str, name: str) -> str:
    return f"{changed.name} ({kind}: {name})"


def change_in(name: str) -> str:
    """The single change that the name of a case of a ladder tells, or nothing where it is a set-up of its own.

    >>> change_in("cnn, eval mode, batch 4 (relaxation: eval mode)"), change_in("cnn, eval mode, batch 4")
    ('eval mode', '')
    """
    found = re.search(r" \((?:relaxation|restriction): (.+)\)$", name)
    return found[1] if found else ""


def pointless(victim: Victim) -> frozenset[str]:
    """The changes that change nothing for a model: of a mode that it does not know, of running statistics that it does not keep."""
    names = set[str]() if victim.depends_on_mode() else {"eval mode", "train mode"}
    return frozenset(names if tracking_layers(victim) else {*names, "running statistics shared"})


def ladder(
    case: Case, *, images: int, models: Mapping[str, str] | None = None, without: Collection[str] = ()
) -> list[Case]:
    """The case itself, then all its single changes but those ``without`` that do with the ``images`` that the data holds."""
    every = [case, *(c.case for c in changes(case, models=models) if c.name not in without)]
    return [one for one in every if one is case or one.first + one.batch_size <= images]


@dataclass(frozen=True)
class Step:
    """One single change, what it led to (None where the case was refused or failed), and whether that flips the verdict."""

    change: str
    kind: str
    outcome: str | None
    reason: str
    flips: bool


@dataclass(frozen=True)
class Explanation:
    """The verdict of the set-up itself and what each single change makes of it."""

    case: Mapping[str, Any]
    outcome: str | None
    described: str
    steps: tuple[Step, ...]

    def summary(self) -> dict[str, Any]:
        return asdict(self)


def explain(
    records: Sequence[Record], *, main: Case | None = None, models: Mapping[str, str] | None = None
) -> Explanation:
    """What each single change of ``main`` (by default of the first record's case) led to, of those that the run holds.

    Cases count by what they do, whatever their names, so that a grid explains itself as far as it is a ladder.
    """
    by_deed = {restored(dict(record.case)).deed(): record for record in records}
    base = main if main is not None else restored(dict(records[0].case)) if records else None
    found = None if base is None else by_deed.get(base.deed())
    if base is None or found is None:
        raise BadInput("there is no record to explain; run the audit with --explain first")
    steps = [
        _step(changed, by_deed[changed.case.deed()], found.verdict)
        for changed in changes(base, models=models)
        if changed.case.deed() in by_deed
    ]
    return Explanation(found.case, found.verdict, described(found), tuple(steps))


def _step(changed: Changed, record: Record, base: str | None) -> Step:
    flips = False
    if record.verdict is not None and base is not None:
        difference = SEVERITY[record.verdict] - SEVERITY[base]
        flips = difference > 0 if changed.kind == "relaxation" else difference < 0
    return Step(changed.name, changed.kind, record.verdict, record.rule or f"{record.status}: {record.reason}", flips)


def described(record: Record) -> str:
    """One sentence: under which conditions, for which budget, with which outcome."""
    case = record.case
    revealed = ", ".join(case["reveal"]) or "nothing"
    kinds = {a["kind"] for a in record.assumptions}
    kind = next((kind for kind in ("diagnostic", "malicious") if kind in kinds), "deployable")
    spent = _spent(restored(dict(case)))
    through = f"through {case['channel']}, " if case.get("channel") else ""
    through += f"behind {', '.join(case['defenses'])}, " if case["defenses"] else ""
    outcome = (record.verdict or f"{record.status}: {record.reason}").replace("_", " ")
    return (
        f"{outcome}: {case['model']} in {case['mode']} mode, batch of {case['batch_size']}, "
        f"{case['local_steps']} local step(s), {through}known to the adversary: {revealed}; {kind}; "
        f"{spent}{record.seconds:.0f} s"
    )


def _spent(case: Case) -> str:
    """The steps and restarts of an attack that takes any, its own where the case names none."""
    options = {**accepted_options(case), **case.options}
    counted = {"steps": "steps", "restarts": "restart(s)"}
    return "".join(f"{options[name]} {word}, " for name, word in counted.items() if name in options)


def as_text(found: Explanation) -> str:
    """The explanation as lines: the set-up, then each change that was tried, those that flip the verdict marked."""
    lines = [found.described]
    for step in found.steps:
        mark = "flips" if step.flips else "     "
        outcome = (step.outcome or "not judged").replace("_", " ")
        lines.append(f"  {mark}  {step.kind} {step.change}: {outcome} ({step.reason})")
    flipping = [step.change for step in found.steps if step.flips]
    nothing = "none of those tried" if found.steps else "none was tried"
    lines.append(f"changes that flip the verdict: {', '.join(flipping) or nothing}")
    return "\n".join(lines)
