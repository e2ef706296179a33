"""What changed between two runs: the same set-ups side by side, whatever the model is called in each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from leakgauge.audit import records as store
from leakgauge.audit.case import Case
from leakgauge.audit.phrasing import plural
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import SEVERITY, ToldBy, told_by
from leakgauge.errors import BadInput

Direction = Literal["worse", "lost", "better", "new", "different", "same", "untold"]
ORDER: Mapping[Direction, str] = {
    "worse": "WORSE",
    "lost": "NOT JUDGED ANY MORE",
    "better": "better",
    "new": "judged only now",
    "different": "different",
    "same": "same",
    "untold": "cannot be told",
}
"""Every direction and its word, in the order in which changes are shown."""
FAILING: tuple[Direction, ...] = ("worse", "lost")
OTHER_RULE = (
    "one verdict rests on the layout or the pieces, which the other run did not compare: it may be the rule that changed, "
    "not the leak"
)
BUDGET = ("steps", "restarts")
"""Options of an attack that say how hard it tries, not what it tries."""
_SETUP = ("mode", "batch_size", "local_steps", "local_lr", "channel", "attack", "defenses", "reveal", "first")
_ADDED = {"channel": Case.channel}
"""What a case lacks that an older version wrote down, with what it meant there."""
_PREFERRED = ("model", "data", "name", "seed", "options", "classes", "resize", "device")


@dataclass(frozen=True)
class Difference:
    """One figure of a set-up in both runs. ``beyond`` is whether it moved more than restarts differ; None: nobody knows."""

    metric: str
    before: float | None
    after: float | None
    beyond: bool | None = None
    note: str = ""

    @property
    def value(self) -> float | None:
        if self.before is None or self.after is None or math.isinf(self.before) or math.isinf(self.after):
            return None
        return self.after - self.before


@dataclass(frozen=True)
class CasePair:
    """One set-up that both runs attacked."""

    name: str
    before: Record
    after: Record
    direction: Direction
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Change:
    """Something else that both runs say: of the training, the split or the defenses."""

    question: str
    what: str
    before: str
    after: str
    direction: Direction
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """All that changed. ``only_before`` and ``only_after`` name what one run alone holds; ``settings`` what they differ in."""

    before: str
    after: str
    cases: tuple[CasePair, ...] = ()
    changes: tuple[Change, ...] = ()
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()
    settings: tuple[tuple[str, str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    def count(self, *directions: Direction) -> int:
        return sum(one.direction in directions for one in (*self.cases, *self.changes))

    @property
    def sentence(self) -> str:
        """The whole comparison in one sentence."""
        groups = (("set-up", self.cases), ("other result", self.changes))
        said = [f"of {plural(len(group), noun)} {_tally(group)}" for noun, group in groups if group]
        if not said:
            return "The two runs have nothing in common that could be compared."
        text = "; ".join(said)
        return f"{text[0].upper()}{text[1:]}."

    @property
    def is_worse(self) -> bool:
        """Whether a gate must hold the new run back: something is worse, cannot be judged any more, or nothing was compared."""
        return self.count(*FAILING) > 0 or not (self.cases or self.changes)


def _tally(group: Sequence[CasePair | Change]) -> str:
    words: dict[Direction, str] = {"worse": "worse", "lost": "not judged any more", "better": "better"}
    counts = {word: sum(one.direction == direction for one in group) for direction, word in words.items()}
    told = [f"{count} {word}" for word, count in counts.items() if count]
    return ", ".join(told) or "none is worse or better"


def compare_cases(before: Sequence[Record], after: Sequence[Record], *, folders: tuple[Path, Path]) -> Comparison:
    """The attacked set-ups of two runs; names of the runs, other questions and settings are the caller's to add."""
    old, new = store.latest(before), store.latest(after)
    pairs = _paired(old, new)
    compared = [_compared(a, b, folders) for a, b in pairs]
    taken = {id(record) for pair in pairs for record in pair}
    compared.sort(key=lambda pair: list(ORDER).index(pair.direction))
    return Comparison(
        "",
        "",
        cases=tuple(_told_apart(compared)),
        only_before=tuple(str(r.case.get("name") or r.key) for r in old if id(r) not in taken),
        only_after=tuple(str(r.case.get("name") or r.key) for r in new if id(r) not in taken),
        warnings=tuple(_warnings(compared)),
    )


def setup_of(record: Record) -> str:
    """What makes two cases one set-up: everything but the model, its data and how hard the attack tries."""
    options = {k: v for k, v in (record.case.get("options") or {}).items() if k not in BUDGET}
    case = {**_ADDED, **record.case}
    return json.dumps([[case.get(name) for name in _SETUP], options], sort_keys=True, default=str)


def _paired(old: Sequence[Record], new: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Same set-up, one to one. Where several of a run have the same, those that agree in more of the rest come first."""
    possible = [
        (-sum(a.case.get(name) == b.case.get(name) for name in _PREFERRED), i, j)
        for i, a in enumerate(old)
        for j, b in enumerate(new)
        if setup_of(a) == setup_of(b)
    ]
    left, right, chosen = set(), set(), []
    for _, i, j in sorted(possible):
        if i not in left and j not in right:
            left.add(i)
            right.add(j)
            chosen.append((i, j))
    return [(old[i], new[j]) for i, j in sorted(chosen)]


def _compared(a: Record, b: Record, folders: tuple[Path, Path]) -> CasePair:
    notes = []
    spent = {name: (_option(a, name), _option(b, name)) for name in BUDGET}
    notes += [f"{name} differ: {x} and {y}" for name, (x, y) in spent.items() if x != y]
    if _differ(a, b, folders):
        notes.append("the private images differ")
    if a.seed != b.seed:
        notes.append(f"seeds differ: {a.seed} and {b.seed}")
    direction = verdict_direction(a.verdict, b.verdict)
    differences = tuple(_difference(metric, a, b) for metric in ("ssim", "psnr"))
    before, after = told_by(a.rule), told_by(b.rule)
    seen = before if after == "ssim" else after
    if seen != "ssim":
        notes.append(_seen(seen, a, b))
    elif direction in ("worse", "better") and all(d.beyond is False for d in differences):
        notes.append("the verdict changed, but its figures lie within the spread over restarts: it may be chance")
    return CasePair(
        name=str(b.case.get("name") or b.key).removeprefix(f"{b.case.get('model')}, "),
        before=a,
        after=b,
        direction=direction,
        differences=differences,
        notes=tuple(notes),
    )


def _seen(what: ToldBy, a: Record, b: Record) -> str:
    """What decided a verdict that rests on the layout or the pieces, which SSIM and PSNR do not show."""
    compared = "layout_rank" if what == "layout" else what
    if any(r.metrics.get(compared) is None for r in (a, b)):
        return OTHER_RULE
    before, after = (r.metrics[what]["mean"] for r in (a, b))
    if what == "layout":
        return f"seen by the layout, whose correlation is {before:.2f} before and {after:.2f} after"
    return f"seen by the pieces, which fit the original better than other images by {before:.2f} before and {after:.2f} after"


def verdict_direction(before: str | None, after: str | None) -> Direction:
    """
    >>> verdict_direction("partial", "feasible"), verdict_direction("partial", None)
    ('worse', 'lost')
    """
    if before is None or after is None:
        return "untold" if before is after else "lost" if after is None else "new"
    moved = SEVERITY[after] - SEVERITY[before]
    return "worse" if moved > 0 else "better" if moved < 0 else "same"


def _difference(metric: str, a: Record, b: Record) -> Difference:
    """The figures of the chosen restarts; the spread of all restarts says whether they really differ."""
    before, after = ((r.metrics.get(metric) or {}).get("mean") for r in (a, b))
    found = Difference(metric, before, after)
    if before is None or after is None:
        return found
    spans = [[v for v in r.restarts.get(metric) or () if v is not None and math.isfinite(v)] for r in (a, b)]
    if min(map(len, spans)) < 2:
        return found
    (low, high), (new_low, new_high) = ((min(span), max(span)) for span in spans)
    beyond = new_low > high or new_high < low
    said = f"restarts span {low:.3g} to {high:.3g} before and {new_low:.3g} to {new_high:.3g} after"
    return replace(found, beyond=beyond, note=f"{'beyond' if beyond else 'within'} the spread over restarts ({said})")


def _option(record: Record, name: str) -> Any:
    return (record.case.get("options") or {}).get(name, "default")


def _differ(a: Record, b: Record, folders: tuple[Path, Path]) -> bool:
    """Whether the originals are other pictures; where one is missing nothing is claimed."""
    files = [folder / str(r.pictures.get("truth") or "") for folder, r in zip(folders, (a, b), strict=True)]
    return all(file.is_file() for file in files) and files[0].read_bytes() != files[1].read_bytes()


def _told_apart(pairs: Sequence[CasePair]) -> list[CasePair]:
    """Names that stand twice get their model."""
    names = [pair.name for pair in pairs]
    return [
        pair if names.count(pair.name) == 1 else replace(pair, name=f"{pair.after.case.get('model')}, {pair.name}")
        for pair in pairs
    ]


def _warnings(pairs: Sequence[CasePair]) -> list[str]:
    said = []
    budget = [p for p in pairs if any(_option(p.before, n) != _option(p.after, n) for n in BUDGET)]
    if budget:
        said.append(
            f"The attacks had different budgets (steps or restarts) in {len(budget)} of {len(pairs)} set-ups, so their figures "
            "and verdicts are not comparable; run both with the same --option steps=…"
        )
    chance = [p for p in pairs if p.direction in ("worse", "better") and any(d.beyond is None for d in p.differences)]
    if chance:
        said.append(
            f"{len(chance)} changed verdict{'s rest' if len(chance) > 1 else ' rests'} on a single restart, so how much chance "
            "matters is not known; --option restarts=3 would tell."
        )
    ruled = [p for p in pairs if p.direction in ("worse", "better") and OTHER_RULE in p.notes]
    if ruled:
        said.append(
            f"In {len(ruled)} of {len(pairs)} set-ups the verdict of one run rests on the layout or the pieces, which the other run did "
            "not compare (an older version, or fewer than twenty images), so the change of the verdict may be one of the rule."
        )
    images = [p for p in pairs if "the private images differ" in p.notes]
    if images:
        said.append(
            f"In {len(images)} of {len(pairs)} set-ups the private images differ, so a change may come from the images."
        )
    return said


def versions_of(found: Sequence[Record]) -> dict[str, str]:
    """Every version a run was made with; more than one after an upgrade in its middle."""
    seen: dict[str, dict[str, None]] = {}
    for record in found:
        for name, version in record.versions.items():
            seen.setdefault(name, {})[str(version)] = None
    return {name: ", ".join(versions) for name, versions in seen.items()}


def read_cases(folder: Path) -> list[Record]:
    """The records of a run, none where it attacked no updates."""
    if not folder.is_dir():
        raise BadInput(f"there is no run folder {folder}; give a folder that `leakgauge audit --out` wrote")
    return store.read(folder) if store.exists(folder) else []
