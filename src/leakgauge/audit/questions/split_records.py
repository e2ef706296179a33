"""What a scan of cuts writes down, and what follows from it.

The plan (``scan.json``) is written before the first cut, each line (``scan.jsonl``) as soon as its cut is done, the conclusion
(``scan_conclusion.json``) at the end. A process that is killed loses the cut it was at, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from leakgauge.audit.case import Case
from leakgauge.audit.files import JsonLines, finite, json_text, read_json, safe_command, write_whole
from leakgauge.audit.migrate import migrated_conclusion, migrated_run
from leakgauge.audit.phrasing import plural
from leakgauge.audit.typed import Misfit, typed
from leakgauge.data.facts import USUAL, DataFacts
from leakgauge.errors import BadInput
from leakgauge.split.envelope import envelope
from leakgauge.split.query import Constraints, Offer, choose, pareto, parse_constraints
from leakgauge.split.remedies import Remedy
from leakgauge.split.scan import CutRisk
from leakgauge.split.whitebox import LEAST_SQUARES as LEAST_SQUARES
from leakgauge.split.zone import Zone, crossing, kept

PLAN, FILE, CONCLUSION = "scan.json", "scan.jsonl", "scan_conclusion.json"
RIDGE, DECODER = "ridge", "decoder"


class PlannedCut(TypedDict):
    """``place`` is the one that the cut had by depth before others left the plan."""

    name: str
    shape: Sequence[int]
    bytes: int
    edge_flops: int
    edge_share: float
    place: NotRequired[int]


@dataclass(frozen=True)
class ScanPlan:
    """Everything that decides what the scan does; a resumed scan reads it instead of options.

    ``case`` names model, data and defenses. ``cuts`` holds one mapping per cut by depth: name, shape, bytes, edge_flops, edge_share.
    ``epochs`` is the full effort of a decoder: 0 is ridge alone, None is not decided yet and will be so that the decoders take
    ``budget`` seconds. ``labels`` are those of the images in the maps, ``truth`` is the strip of the
    ``shown`` originals. ``named`` cuts were asked for one by one, so none is left out for lack of time.
    ``audited``: the scan is part of an audit. ``recognised`` is the largest share of images that may be re-identified at a cut that
    is recommended; 1, as in records of 0.1, is no limit.
    """

    case: Case
    cuts: tuple[PlannedCut, ...]
    threshold: float
    epochs: int | None
    budget: float | None
    require: str
    numbers: str
    raw_bytes: int
    jpeg_bytes: float | None
    auxiliary: int
    tested: int
    traced: str
    labels: tuple[int, ...]
    truth: str
    shown: int
    versions: Mapping[str, str]
    command: str
    notes: tuple[str, ...] = ()
    named: bool = False
    audited: bool = False
    recognised: float = 1.0
    data: DataFacts = USUAL

    @property
    def names(self) -> list[str]:
        """Of the cuts, by depth."""
        return [str(cut["name"]) for cut in self.cuts]


@dataclass(frozen=True)
class CutRecord:
    """One attack on one cut. ``risk`` holds the numbers by name, or a ``refusal``; ``map`` places of features in [0, 1]².

    ``epochs`` are those a decoder was trained for, ``allowed`` those it might have taken: it stops once it has shown that its cut leaks.
    None is the same number, as in records of 0.1.
    """

    cut: str
    attack: str
    epochs: int
    risk: Mapping[str, Any]
    picture: str = ""
    map: tuple[tuple[float, float], ...] = ()
    allowed: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.cut, self.attack, self.epochs if self.allowed is None else self.allowed

    @property
    def fvu(self) -> float:
        """NaN where the attack refused."""
        value = self.risk.get("fvu")
        return math.nan if value is None else float(value)

    @property
    def reidentified(self) -> float:
        """NaN where the attack refused."""
        value = self.risk.get("reidentified")
        return math.nan if value is None else float(value)

    @property
    def by(self) -> str:
        """The attack's name; of a regression, which of the two."""
        return str(self.risk.get("by") or self.attack)

    @property
    def stopped_early(self) -> bool:
        """A decoder stops once it has shown that its cut leaks."""
        return self.allowed is not None and self.epochs < self.allowed

    @property
    def effort(self) -> str:
        """How hard the cut was attacked."""
        return f"{self.attack}, {plural(self.epochs, 'epoch')}" if self.attack == DECODER else self.by

    @property
    def said(self) -> str:
        """The record in a few words, for a line of progress."""
        came_to = "refused" if self.risk.get("refusal") else f"FVU {self.fvu:.3f}"
        return f"{self.effort}: {came_to} at {self.cut}"


@dataclass(frozen=True)
class Conclusion:
    """What the scan found. :mod:`leakgauge.audit.wording` says it in sentences.

    ``leaking`` is the deepest cut that was shown to leak. ``envelope`` and ``by_depth`` hold one FVU per cut: of the best attack
    on this or a deeper cut, and of a straight line from the first to the last, which is what counting layers would say.
    ``met`` is whether a cut meets the threshold and everything else that was required. ``epochs_spent`` are those of all decoders,
    ``epochs_of_all`` those of full decoders at every cut. ``candidate`` is the shallowest cut that no attack broke; ``undertrained``
    is whether its decoder did worse than regression or was still ``learning``, so nothing is recommended. ``remedy`` is what would
    protect if no cut before the output does by itself.
    """

    recommended: str | None
    leaking: str | None
    met: bool
    front: tuple[str, ...]
    envelope: tuple[float | None, ...]
    by_depth: tuple[float | None, ...]
    depth_choice: str | None
    class_mean: float | None
    epochs_spent: int
    epochs_of_all: int
    candidate: str | None = None
    undertrained: bool = False
    learning: bool = False
    remedy: Remedy | None = None


def save_plan(folder: Path, plan: ScanPlan) -> None:
    write_whole(folder / PLAN, _pretty(plan))


def save_conclusion(folder: Path, conclusion: Conclusion) -> None:
    write_whole(folder / CONCLUSION, _pretty(conclusion))


def _decode(fields: Any) -> CutRecord:
    record = typed(CutRecord, fields)
    typed(CutRisk, {"cut": record.cut, **measured(record.risk)}, "risk")
    return record


STORE = JsonLines(FILE, encode=lambda record: finite(asdict(record)), decode=_decode, missing="{folder} has no {file}")
append, read = STORE.append, STORE.read_if_there


def exists(folder: Path) -> bool:
    return (folder / PLAN).is_file()


def read_plan(folder: Path) -> ScanPlan:
    if not exists(folder):
        raise BadInput(
            f"{folder} holds no scan: it has no {PLAN}; give the folder that `leakgauge scan --out` wrote into"
        )
    return read_json(folder / PLAN, _decode_plan, remedy=ANOTHER)


def read_conclusion(folder: Path) -> Conclusion | None:
    """None where the scan has not come to its end."""
    path = folder / CONCLUSION
    if not path.is_file():
        return None
    plan = read_plan(folder)
    return read_json(path, lambda found: _decode_conclusion(found, plan), remedy=ANOTHER)


ANOTHER = "move it away, or scan again into another folder"


def _decode_plan(found: Any) -> ScanPlan:
    plan = typed(ScanPlan, migrated_run(typed(Mapping[str, Any], found)))
    if not plan.names or len(set(plan.names)) < len(plan.names):
        raise Misfit("cuts should name at least one cut, and none of them twice")
    return replace(plan, command=safe_command(plan.command))


def _decode_conclusion(found: Any, plan: ScanPlan) -> Conclusion:
    """The conclusion, which speaks of the cuts of the plan."""
    end = typed(Conclusion, migrated_conclusion(typed(Mapping[str, Any], found)))
    names = set(plan.names)
    for name in ("envelope", "by_depth"):
        if len(getattr(end, name)) != len(names):
            raise Misfit(f"{name} should hold a number for each of the {len(names)} cuts in {PLAN}")
    named = (end.recommended, end.leaking, end.depth_choice, end.candidate, end.remedy and end.remedy.cut, *end.front)
    for name in named:
        if name is not None and name not in names:
            raise Misfit(f"it speaks of the cut {name!r}, which {PLAN} does not have")
    return end


def _pretty(thing: ScanPlan | Conclusion) -> bytes:
    return json_text(finite(asdict(thing)))


def conclude(plan: ScanPlan, records: Sequence[CutRecord], zone: Zone | None) -> Conclusion:
    """From all records of a scan, and the zone that the search found (None: the records alone decide), to one recommendation."""
    names = plan.names
    best = [least_fvu(records, name) for name in names]
    curve = envelope(best)
    if zone is None:
        first = crossing(names, [least_kept(plan, records, name) for name in names], threshold=plan.threshold)
    else:
        first = _place(names, zone.recommended)
    learning = first < len(names) and still_learning(records, names[first], plan.threshold)
    undertrained = learning or (first < len(names) and too_little(records, names[first]))
    leaking = None if first == 0 else names[first - 1] if zone is None else zone.bracket[0]
    offered = [
        Offer(name, value, int(cut["bytes"]), int(cut["edge_flops"]), float(cut["edge_share"]))
        for name, own, value, cut in zip(names, best, curve, plan.cuts, strict=True)
        if math.isfinite(own)  # a cut that no attack could be run at is not offered for what deeper ones keep
    ]
    want = replace(parse_constraints(plan.require) if plan.require else Constraints(), fvu=plan.threshold)
    behind = set(names[first:])  # a deeper cut leaks no more: what held here holds there
    chosen = None if undertrained else choose([offer for offer in offered if offer.cut in behind], want)
    by_depth = straight(best)
    spent = sum(record.epochs for record in records if record.attack == DECODER)
    class_mean = next((r.risk["fvu_of_class_mean"] for r in records if r.risk.get("fvu_of_class_mean")), None)
    return Conclusion(
        recommended=chosen.cut if chosen else None,
        leaking=leaking,
        met=chosen is not None,
        front=tuple(offer.cut for offer in pareto(offered)),
        envelope=tuple(value if math.isfinite(value) else None for value in curve),
        by_depth=by_depth,
        depth_choice=next(
            (n for n, v in zip(names, by_depth, strict=True) if v is not None and v >= plan.threshold), None
        ),
        class_mean=class_mean,
        epochs_spent=spent,
        epochs_of_all=len(names) * (plan.epochs or 0),
        candidate=names[first] if first < len(names) else None,
        undertrained=undertrained,
        learning=learning,
    )


WORSE = 0.05
"""How much worse than regression, as a share, a decoder may be before it counts as trained too little."""


def too_little(records: Sequence[CutRecord], cut: str) -> bool:
    """Whether the longest decoder at the cut did worse than regression, which needs no training."""
    regression = [r.fvu for r in records if (r.cut, r.attack) == (cut, RIDGE) and not math.isnan(r.fvu)]
    decoders = [r for r in records if (r.cut, r.attack) == (cut, DECODER) and not math.isnan(r.fvu)]
    if not regression or not decoders:
        return False
    longest = max(decoders, key=lambda record: record.epochs)
    return longest.fvu > (1 + WORSE) * regression[0]


def still_learning(records: Sequence[CutRecord], cut: str, threshold: float) -> bool:
    """Whether twice the epochs gained the longest decoder at the cut so much that as much again would bring it below the threshold.

    The rate of training falls to zero whatever the number of epochs, so the end of one curve does not show whether it has converged.
    """
    by_epochs = {r.key[2]: r.fvu for r in records if (r.cut, r.attack) == (cut, DECODER) and not math.isnan(r.fvu)}
    longest = max(by_epochs, default=0)
    half = by_epochs.get(longest // 2)
    if half is None:
        return False
    return min(half, 2 * by_epochs[longest] - half) < threshold


def least_kept(plan: ScanPlan, records: Sequence[CutRecord], name: str) -> float:
    """The lowest FVU at the cut after re-identification is counted (:func:`leakgauge.split.zone.kept`); NaN if no attack ran."""
    found = (
        kept(record.fvu, record.reidentified, threshold=plan.threshold, recognised=plan.recognised)
        for record in records
        if record.cut == name and not math.isnan(record.fvu)
    )
    return min(found, default=math.nan)


def strongest(records: Sequence[CutRecord], name: str | None, attack: str | None = None) -> CutRecord | None:
    """The record of the lowest FVU at the cut, of all attacks or of one; None if none ran."""
    ran = (r for r in records if r.cut == name and attack in (None, r.attack) and not math.isnan(r.fvu))
    return min(ran, key=lambda record: record.fvu, default=None)


def least_fvu(records: Sequence[CutRecord], name: str) -> float:
    """The lowest FVU that any attack reached at the cut; NaN if none ran."""
    found = strongest(records, name)
    return math.nan if found is None else found.fvu


def straight(best: Sequence[float]) -> tuple[float | None, ...]:
    """A line from the first to the last cut's FVU: what counting layers would predict without looking at the ones between.

    >>> straight([0.0, 0.1, 1.0])
    (0.0, 0.5, 1.0)
    """
    if len(best) < 2 or math.isnan(best[0]) or math.isnan(best[-1]):
        return tuple(None for _ in best)
    step = (best[-1] - best[0]) / (len(best) - 1)
    return tuple(best[0] + i * step for i in range(len(best)))


def _place(names: Sequence[str], name: str | None) -> int:
    return len(names) if name is None else names.index(name)


def risk_of(record: CutRecord) -> CutRisk:
    """The row that a record was made from; what is None in it had no value."""
    return CutRisk(**measured(record.risk))


def measured(risk: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in risk.items() if value is not None}
