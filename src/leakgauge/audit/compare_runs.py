"""Two run folders side by side: the attacked set-ups, and what the other three questions say in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from leakgauge.audit.advice.on_training import unclean
from leakgauge.audit.compare import (
    ORDER,
    OTHER_RULE,
    Change,
    Comparison,
    Direction,
    compare_cases,
    read_cases,
    verdict_direction,
    versions_of,
)
from leakgauge.audit.findings import read_findings
from leakgauge.audit.questions import QUESTIONS
from leakgauge.audit.records import Record
from leakgauge.audit.summaries import Defended, Defenses, Measured, Split, Training
from leakgauge.errors import BadInput


def compare(before: Path, after: Path) -> Comparison:
    """Everything that both runs measured, and what only one of them did."""
    if before.resolve() == after.resolve():
        raise BadInput(f"{before} and {after} are the same run; give two")
    old, new = read_cases(before), read_cases(after)
    found = compare_cases(old, new, folders=(before, after))
    a, b = read_findings(before), read_findings(after)
    if not any(getattr(side, question) for side in (a, b) for question in QUESTIONS) and not (old or new):
        raise BadInput(f"neither {before} nor {after} holds a result; give folders that `leakgauge audit --out` wrote")
    changes: list[Change] = []
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
        before=_named(before),
        after=_named(after),
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
                "verdict": [pair.before.verdict, pair.after.verdict],
                "key": [pair.before.key, pair.after.key],
                **{d.metric: _plain_difference(asdict(d)) for d in pair.differences},
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


def _plain_difference(fields: dict[str, Any]) -> dict[str, Any]:
    """An exact copy has an infinite PSNR, for which JSON has no number."""
    return {k: "inf" if isinstance(v, float) and v == float("inf") else v for k, v in fields.items() if k != "metric"}


def _named(folder: Path) -> str:
    return folder.as_posix()


def _training(a: Training, b: Training) -> Iterator[Change]:
    failed = [name for side in (a, b) for name, _ in unclean(side)]
    note = f"controls failed ({', '.join(dict.fromkeys(failed))}), so the alarm does not count" if failed else ""
    said = ["silent" if side.alarm_at is None else f"fired at step {side.alarm_at}" for side in (a, b)]
    fired = [side.alarm_at is not None for side in (a, b)]
    direction: Direction = "same" if fired[0] == fired[1] else "worse" if fired[1] else "better"
    yield Change("training", "Alarm", said[0], said[1], "untold" if failed else direction, note)
    if a.auc is not None and b.auc is not None:
        yield _auc(a.auc, b.auc)


def _auc(a: Measured, b: Measured) -> Change:
    direction = _apart((a.low, a.high), (b.low, b.high))
    notes: dict[Direction, str] = {
        "untold": "no intervals on record",
        "same": "the intervals overlap, so no difference is shown",
    }
    note = notes.get(direction, "the intervals are apart")
    return Change("training", "White-box AUC at the last look", _interval(a), _interval(b), direction, note)


def _apart(a: tuple[float | None, float | None], b: tuple[float | None, float | None]) -> Direction:
    """Where two intervals (low, high) of something that should be low lie: higher is worse, overlapping is the same."""
    (low, high), (new_low, new_high) = a, b
    if low is None or high is None or new_low is None or new_high is None:
        return "untold"
    return "worse" if new_low > high else "better" if new_high < low else "same"


def _interval(found: Measured) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.3f}"
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _split(a: Split, b: Split) -> Iterator[Change]:
    direction: Direction
    if not (a.finished and b.finished):
        direction = "untold"
    elif a.recommended is None or b.recommended is None:
        direction = "same" if a.recommended is b.recommended else "worse" if b.recommended is None else "better"
    else:
        direction = "same" if a.recommended == b.recommended else "different"
    note = "" if a.finished and b.finished else "a scan without its end has no recommendation"
    yield Change("split", "Recommended cut", _cut(a), _cut(b), direction, note)


def _cut(split: Split) -> str:
    if not split.finished:
        return "not finished"
    if split.recommended is None:
        return "none"
    fvu = "" if split.fvu is None else f"FVU {split.fvu:.3f}, "
    return f"{split.recommended} ({fvu}{split.bytes} bytes)"


def _defenses(a: Defenses, b: Defenses, one_sided: tuple[list[str], list[str]]) -> Iterator[Change]:
    old, new = ({row.defense: row for row in (side.undefended, *side.rows)} for side in (a, b))
    for name in (*old, *(name for name in new if name not in old)):
        if name in old and name in new:
            x, y = old[name], new[name]
            what = f"Defense {name}" if name != "none" else "No defense"
            note = "; ".join(filter(None, (_rules(x, y), _costs(x, y))))
            yield Change("defenses", what, _row(x), _row(y), verdict_direction(x.outcome, y.outcome), note)
        else:
            one_sided[name in new].append(f"defense {name}")


def _row(row: Defended) -> str:
    said = (row.outcome or row.status).replace("_", " ")
    figures = [f"{what} {value:.{places}f}{unit}" for what, value, places, unit in (
        ("SSIM", row.ssim, 3, ""), ("AUC", row.auc, 2, ""), ("cost", row.cost, 1, " points"),
    ) if value is not None]  # fmt: skip
    return said + (f" ({', '.join(figures)})" if figures else "")


def _rules(a: Defended, b: Defended) -> str:
    """Whether one verdict rests on what the other run did not measure."""
    by_another = any(getattr(other, one.told_by) is None for one, other in ((a, b), (b, a)) if one.told_by != "ssim")
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
    a, b = versions_of(old), versions_of(new)
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
    parts = [(r.case.get(of) or {}) if of else r.case for r in found]
    seen = sorted({str(part.get(field, "default")) for part in parts}, key=lambda text: (len(text), text))
    return ", ".join(seen) if len(seen) <= 4 else f"{seen[0]} to {seen[-1]}"
