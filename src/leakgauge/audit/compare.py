"""What changed between two runs: the same set-ups side by side, whatever the model is called, and what else both measured."""

from __future__ import annotations

import filecmp
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from leakgauge.audit import records as store
from leakgauge.audit.case import TRAINING, Case
from leakgauge.audit.files import infinity_as_text, picture_in
from leakgauge.audit.findings import Defended, Defenses, Measured, Split, Training, read_findings
from leakgauge.audit.phrasing import number, plural
from leakgauge.audit.questions import QUESTIONS
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import Evidence, Outcome
from leakgauge.audit.wording import interval, why
from leakgauge.errors import BadInput

Direction = Literal["worse", "lost", "better", "new", "different", "same", "unclear"]
ORDER: Mapping[Direction, str] = {
    "worse": "WORSE",
    "lost": "NOT JUDGED ANY MORE",
    "better": "better",
    "new": "judged only now",
    "different": "different",
    "same": "same",
    "unclear": "unclear",
}
"""Every direction and its word, in the order in which changes are shown."""
FAILING: tuple[Direction, ...] = ("worse", "lost")
OTHER_RULE = "one verdict rests on the layout or the patches, which the other run did not compare: the rule may have changed, not the leak"
BUDGET = ("steps", "restarts")
"""Options of an attack that say how hard it tries, not what it tries."""
_SETUP = ("mode", "batch_size", *TRAINING, "channel", "attack", "defenses", "reveal", "first")
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
class OtherChange:
    """Something else that both runs measured: of the training, the split or the defenses."""

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
    changes: tuple[OtherChange, ...] = ()
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


def _tally(group: Sequence[CasePair | OtherChange]) -> str:
    words: dict[Direction, str] = {"worse": "worse", "lost": "not judged any more", "better": "better"}
    counts = {word: sum(one.direction == direction for one in group) for direction, word in words.items()}
    said = [f"{count} {word}" for word, count in counts.items() if count]
    return ", ".join(said) or "none is worse or better"


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
        cases=tuple(_with_models(compared)),
        only_before=tuple(r.case.name for r in old if id(r) not in taken),
        only_after=tuple(r.case.name for r in new if id(r) not in taken),
        warnings=tuple(_warnings(compared)),
    )


def setup_of(record: Record) -> str:
    """What makes two cases one set-up: everything but the model, its data and how hard the attack tries."""
    options = {k: v for k, v in record.case.options.items() if k not in BUDGET}
    return json.dumps([[getattr(record.case, name) for name in _SETUP], options], sort_keys=True, default=str)


def _paired(old: Sequence[Record], new: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Same set-up, one to one. Where several of a run have the same, those that agree in more of the rest come first."""
    possible = [
        (-sum(getattr(a.case, name) == getattr(b.case, name) for name in _PREFERRED), i, j)
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
    reasons = [why(r.verdict) if r.verdict is not None else "" for r in (a, b)]
    if reasons[0] != reasons[1] and all(reasons):
        notes.append(f"why nothing was found: {reasons[0]} before, {reasons[1]} after")
    if a.case.seed != b.case.seed:
        notes.append(f"seeds differ: {a.case.seed} and {b.case.seed}")
    direction = verdict_direction(a.outcome, b.outcome)
    differences = tuple(_difference(metric, a, b) for metric in ("ssim", "psnr"))
    before, after = _evidence(a), _evidence(b)
    seen = before if after == "ssim" else after
    if seen != "ssim":
        notes.append(_seen(seen, a, b))
    elif direction in ("worse", "better") and all(d.beyond is False for d in differences):
        notes.append("the verdict changed, but its figures are within the spread over restarts: it may be chance")
    return CasePair(
        name=b.case.short_name(), before=a, after=b, direction=direction, differences=differences, notes=tuple(notes)
    )


def _evidence(record: Record) -> Evidence:
    return "ssim" if record.verdict is None else record.verdict.evidence


def _seen(what: Evidence, a: Record, b: Record) -> str:
    """What decided a verdict that rests on the layout or the pieces, which SSIM and PSNR do not show."""
    compared = "layout_rank" if what == "layout" else what
    if any(r.scores is None or r.scores.mean(compared) is None for r in (a, b)):
        return OTHER_RULE
    before, after = ((0.0 if r.scores is None else r.scores.mean(what)) or 0.0 for r in (a, b))
    if what == "layout":
        return f"seen by the layout: correlation {number(before, 2)} before and {number(after, 2)} after"
    return f"seen by the patches: they fit the original better than other images by {number(before, 2)} before and {number(after, 2)} after"


def verdict_direction(before: Outcome | None, after: Outcome | None) -> Direction:
    """
    >>> verdict_direction(Outcome.PARTIAL, Outcome.FEASIBLE), verdict_direction(Outcome.PARTIAL, None)
    ('worse', 'lost')
    """
    before, after = (
        None if one is Outcome.INCONCLUSIVE else one for one in (before, after)
    )  # which vouches for nothing
    if before is None or after is None:
        return "unclear" if before is after else "lost" if after is None else "new"
    moved = after.severity - before.severity
    return "worse" if moved > 0 else "better" if moved < 0 else "same"


def _difference(metric: str, a: Record, b: Record) -> Difference:
    """The figures of the chosen restarts; the spread of all restarts says whether they really differ."""
    before, after = (None if r.scores is None else r.scores.mean(metric) for r in (a, b))
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
    return record.case.options.get(name, "default")


def _differ(a: Record, b: Record, folders: tuple[Path, Path]) -> bool:
    """Whether the originals are other pictures; where one is missing nothing is claimed."""
    first, second = (picture_in(folder, r.pictures.get("truth", "")) for folder, r in zip(folders, (a, b), strict=True))
    return first is not None and second is not None and not filecmp.cmp(first, second, shallow=False)


def _with_models(pairs: Sequence[CasePair]) -> list[CasePair]:
    """Names that stand twice get their model."""
    names = [pair.name for pair in pairs]
    return [
        pair if names.count(pair.name) == 1 else replace(pair, name=f"{pair.after.case.model}, {pair.name}")
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
            f"In {len(ruled)} of {len(pairs)} set-ups the verdict of one run rests on the layout or the patches, which the other run did "
            "not compare (an older version, or fewer than twenty images), so the rule may have changed, not the leak."
        )
    single = {
        side: list(
            dict.fromkeys(
                r.case.attack
                for r in records
                if r.outcome is not None and not r.raced and r.case.attack != Case.attack and not r.case.server
            )
        )
        for side, records in (("before", [p.before for p in pairs]), ("after", [p.after for p in pairs]))
    }
    alone = [f"{side} ({names[0]})" for side, names in single.items() if len(names) == 1]
    if alone:
        said.append(
            f"Only one attack was run {' and '.join(alone)}, so a model that is safer from it may not be safer from others; leave "
            "--attack out to try all that apply."
        )
    images = [p for p in pairs if "the private images differ" in p.notes]
    if images:
        said.append(
            f"In {len(images)} of {len(pairs)} set-ups the private images differ, so a change may come from the images."
        )
    return said


def versions_of(each: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Every version a run was made with; more than one after an upgrade in its middle."""
    seen: dict[str, dict[str, None]] = {}
    for versions in each:
        for name, version in versions.items():
            seen.setdefault(str(name), {})[str(version)] = None
    return {name: ", ".join(versions) for name, versions in seen.items()}


def read_cases(folder: Path) -> list[Record]:
    """The records of a run, none where it attacked no updates."""
    if not folder.is_dir():
        raise BadInput(f"there is no run folder {folder}; give a folder that `leakgauge audit --out` wrote")
    return store.read(folder) if store.exists(folder) else []


def compare(before: Path, after: Path) -> Comparison:
    """Everything that both runs measured, and what only one of them did."""
    if before.resolve() == after.resolve():
        raise BadInput(f"{before} and {after} are the same run; give two")
    old, new = read_cases(before), read_cases(after)
    found = compare_cases(old, new, folders=(before, after))
    a, b = read_findings(before), read_findings(after)
    if not any(getattr(side, question) for side in (a, b) for question in QUESTIONS) and not (old or new):
        raise BadInput(f"neither {before} nor {after} holds a result; give folders that `leakgauge audit --out` wrote")
    changes: list[OtherChange] = []
    warnings: list[str] = []
    if a.training and b.training:
        changes += _training(a.training, b.training)
        warnings += _unequal("training", "steps of training", a.training.steps, b.training.steps)
    if a.split and b.split:
        changes += _split(a.split, b.split)
        for what, x, y in (
            ("epochs of decoders", a.split.decoder_epochs, b.split.decoder_epochs),
            ("threshold", a.split.threshold, b.split.threshold),
            ("numbers", a.split.numbers, b.split.numbers),
            ("requirement", a.split.require, b.split.require),
        ):
            warnings += _unequal("split", what, x, y)
    one_sided: tuple[list[str], list[str]] = ([], [])
    if a.defenses and b.defenses:
        changes += _defenses(a.defenses, b.defenses, one_sided)
        warnings += _unequal("defenses", "steps of attack", a.defenses.steps, b.defenses.steps)
        warnings += _unequal("defenses", "steps of training", a.defenses.train_steps, b.defenses.train_steps)
    for question in ("training", "split", "defenses"):
        asked = [getattr(side, question) is not None for side in (a, b)]
        if asked[0] != asked[1]:
            one_sided[asked[1]].append(QUESTIONS[question])
    changes.sort(key=lambda change: list(ORDER).index(change.direction))
    return replace(
        found,
        before=before.as_posix(),
        after=after.as_posix(),
        changes=tuple(changes),
        only_before=(*found.only_before, *one_sided[0]),
        only_after=(*found.only_after, *one_sided[1]),
        settings=tuple(_settings(old, new)),
        warnings=(*found.warnings, *warnings),
    )


def summary(found: Comparison) -> dict[str, Any]:
    """The comparison in plain fields, ready for JSON."""
    return {
        "before": found.before,
        "after": found.after,
        "sentence": found.sentence,
        "worse": found.is_worse,
        "cases": [
            {
                "name": pair.name,
                "direction": pair.direction,
                "verdict": [pair.before.outcome, pair.after.outcome],
                "key": [pair.before.key, pair.after.key],
                **{
                    d.metric: infinity_as_text({k: v for k, v in asdict(d).items() if k != "metric"})
                    for d in pair.differences
                },
                "notes": list(pair.notes),
            }
            for pair in found.cases
        ],
        "changes": [asdict(change) for change in found.changes],
        "only_before": list(found.only_before),
        "only_after": list(found.only_after),
        "settings": [{"name": name, "before": a, "after": b} for name, a, b in found.settings],
        "warnings": list(found.warnings),
    }


def _training(a: Training, b: Training) -> Iterator[OtherChange]:
    failed = [name for side in (a, b) for name, _ in side.failed_controls]
    note = f"controls failed ({', '.join(dict.fromkeys(failed))}), so the alarm does not count" if failed else ""
    said = ["silent" if side.alarm_at is None else f"fired at step {side.alarm_at}" for side in (a, b)]
    fired = [side.alarm_at is not None for side in (a, b)]
    direction: Direction = "same" if fired[0] == fired[1] else "worse" if fired[1] else "better"
    yield OtherChange("training", "Alarm", said[0], said[1], "unclear" if failed else direction, note)
    if a.auc is not None and b.auc is not None:
        yield _auc(a.auc, b.auc)


def _auc(a: Measured, b: Measured) -> OtherChange:
    direction = _apart((a.low, a.high), (b.low, b.high))
    notes: dict[Direction, str] = {
        "unclear": "no intervals on record",
        "same": "the intervals overlap, so no difference is shown",
    }
    note = notes.get(direction, "the intervals are apart")
    return OtherChange("training", "White-box AUC at the last look", interval(a), interval(b), direction, note)


def _apart(a: tuple[float | None, float | None], b: tuple[float | None, float | None]) -> Direction:
    """Where two intervals (low, high) of something that should be low lie: higher is worse, overlapping is the same."""
    (low, high), (new_low, new_high) = a, b
    if low is None or high is None or new_low is None or new_high is None:
        return "unclear"
    return "worse" if new_low > high else "better" if new_high < low else "same"


def _split(a: Split, b: Split) -> Iterator[OtherChange]:
    direction: Direction
    if not (a.finished and b.finished):
        direction = "unclear"
    elif a.recommended is None or b.recommended is None:
        direction = "same" if a.recommended is b.recommended else "worse" if b.recommended is None else "better"
    else:
        direction = "same" if a.recommended == b.recommended else "different"
    note = "" if a.finished and b.finished else "a scan without its end has no recommendation"
    yield OtherChange("split", "Recommended cut", _cut(a), _cut(b), direction, note)


def _cut(split: Split) -> str:
    if not split.finished:
        return "not finished"
    if split.recommended is None:
        return "none"
    fvu = "" if split.fvu is None else f"FVU {number(split.fvu, 2)}, "
    return f"{split.recommended} ({fvu}{split.bytes} bytes)"


def _defenses(a: Defenses, b: Defenses, one_sided: tuple[list[str], list[str]]) -> Iterator[OtherChange]:
    old, new = ({row.name: row for row in (side.undefended, *side.rows)} for side in (a, b))
    for name in (*old, *(name for name in new if name not in old)):
        if name in old and name in new:
            x, y = old[name], new[name]
            what = f"Defense {name}" if name != "none" else "No defense"
            note = "; ".join(filter(None, (_rules(x, y), _costs(x, y))))
            yield OtherChange("defenses", what, _row(x), _row(y), verdict_direction(x.outcome, y.outcome), note)
        else:
            one_sided[name in new].append(f"defense {name}")


def _row(row: Defended) -> str:
    said = row.status if row.outcome is None else row.outcome.label
    figures = [f"{what} {number(value, places)}{unit}" for what, value, places, unit in (
        ("SSIM", row.ssim, 3, ""), ("AUC", row.auc, 2, ""), ("cost", row.cost, 1, " points"),
    ) if value is not None]  # fmt: skip
    return said + (f" ({', '.join(figures)})" if figures else "")


def _rules(a: Defended, b: Defended) -> str:
    """Whether one verdict rests on what the other run did not measure."""
    by_another = any(getattr(other, one.evidence) is None for one, other in ((a, b), (b, a)) if one.evidence != "ssim")
    return OTHER_RULE if by_another else ""


def _costs(a: Defended, b: Defended) -> str:
    moved = _apart((a.cost_low, a.cost_high), (b.cost_low, b.cost_high))
    return {
        "worse": "accuracy cost higher, the intervals are apart",
        "better": "accuracy cost lower, the intervals are apart",
        "same": "accuracy cost: the intervals overlap",
    }.get(moved, "")


def _unequal(question: str, what: str, a: object, b: object) -> list[str]:
    if a == b:
        return []
    return [f"{question}: {what} differ ({a or 'none'} and {b or 'none'}), so what is said of it is not comparable."]


def _settings(old: Sequence[Record], new: Sequence[Record]) -> Iterator[tuple[str, str, str]]:
    a, b = (versions_of(record.versions for record in found) for found in (old, new))
    for name in dict.fromkeys((*a, *b)):
        if old and new and a.get(name) != b.get(name):
            yield f"version of {name}", a.get(name, "unknown"), b.get(name, "unknown")
    for field in ("model", "data", "seed", "device", "classes", "resize"):
        x, y = (_values(side, field) for side in (old, new))
        if old and new and x != y:
            yield field, x, y
    for option in ("steps", "restarts"):
        x, y = (_values(side, option, of="options") for side in (old, new))
        if old and new and x != y:
            yield option, x, y


def _values(found: Sequence[Record], field: str, *, of: str = "") -> str:
    """All values of a field in a run; a number that every case has of its own is shown as a span."""
    parts = [r.case.options.get(field, "default") if of else getattr(r.case, field) for r in found]
    seen = sorted({str(part) for part in parts}, key=lambda text: (len(text), text))
    return ", ".join(seen) if len(seen) <= 4 else f"{seen[0]} to {seen[-1]}"
