"""What a scan says in the end: the recommended cut in one sentence, with attack budget and threat model, and what to mind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from leakgauge.audit.phrasing import plural
from leakgauge.audit.scan_records import DECODER, RIDGE, Conclusion, CutRecord, ScanPlan
from leakgauge.split.envelope import envelope, kinks
from leakgauge.split.query import Offer, Wanted, choose, pareto, wanted
from leakgauge.split.zone import Zone, crossing


def conclude(plan: ScanPlan, records: Sequence[CutRecord], zone: Zone | None) -> Conclusion:
    """From all records of a scan, and the zone that decoders found (None where there was ridge alone), to one recommendation."""
    names = [str(cut["name"]) for cut in plan.cuts]
    best = [strongest(records, name) for name in names]
    curve = envelope(best)
    first = crossing(names, best, threshold=plan.threshold) if zone is None else _place(names, zone.recommended)
    leaking = None if first == 0 else names[first - 1] if zone is None else zone.bracket[0]
    offered = [
        Offer(name, value, int(cut["bytes"]), int(cut["edge_flops"]), float(cut["edge_share"]))
        for name, own, value, cut in zip(names, best, curve, plan.cuts, strict=True)
        if math.isfinite(own)  # a cut that no attack could be run at is not offered for what deeper ones keep
    ]
    want = replace(wanted(plan.require) if plan.require else Wanted(), fvu=plan.threshold)
    behind = set(names[first:])  # a deeper cut leaks no more: what held here holds there
    chosen = choose([offer for offer in offered if offer.cut in behind], want)
    by_depth = straight(best)
    spent = sum(record.epochs for record in records if record.attack == DECODER)
    class_mean = next((r.risk["fvu_of_class_mean"] for r in records if r.risk.get("fvu_of_class_mean")), None)
    budget = _budget(plan, records, chosen.cut if chosen else None)
    threat = (
        f"a curious but honest cloud that knows the weights, sees what is sent and owns {plan.auxiliary} images like the "
        f"{plan.tested} attacked ones"
    )
    return Conclusion(
        recommended=chosen.cut if chosen else None,
        leaking=leaking,
        met=chosen is not None,
        sentence=_sentence(plan, chosen, threat, budget),
        threat=threat,
        budget=budget,
        front=tuple(offer.cut for offer in pareto(offered)),
        envelope=tuple(value if math.isfinite(value) else None for value in curve),
        by_depth=by_depth,
        depth_choice=next(
            (n for n, v in zip(names, by_depth, strict=True) if v is not None and v >= plan.threshold), None
        ),
        class_mean=class_mean,
        epochs_spent=spent,
        epochs_of_all=len(names) * (plan.epochs or 0),
        notes=(*plan.notes, *_notes(plan, names, best, records, chosen)),
    )


def strongest(records: Sequence[CutRecord], name: str) -> float:
    """The lowest FVU that any attack reached at the cut; NaN if none ran."""
    found = [record.fvu for record in records if record.cut == name and not math.isnan(record.fvu)]
    return min(found, default=math.nan)


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


def _budget(plan: ScanPlan, records: Sequence[CutRecord], cut: str | None) -> str:
    ridge = sum(record.attack == RIDGE for record in records)
    trained = [record for record in records if record.attack == DECODER]
    said = f"ridge regression at {plural(ridge, 'cut')}"
    if trained:
        here = max((record.epochs for record in trained if record.cut == cut), default=0)
        own = f", at this cut {here}" if here else ", at this cut none: it lies behind one that held" if cut else ""
        said += f" and {plural(sum(r.epochs for r in trained), 'epoch')} of decoders at {len({r.cut for r in trained})} of them{own}"
    elif plan.epochs:
        said += "; no decoder was needed"
    else:
        said += " and no decoder, so that a stronger attack may well recover more"
    return said


def _sentence(plan: ScanPlan, chosen: Offer | None, threat: str, budget: str) -> str:
    against = f"against {threat}, after {budget}"
    if chosen is None:
        more = f" and meets {plan.require!r}" if plan.require else ""
        return f"No recommended cut: none keeps an FVU of {plan.threshold:g}{more} {against}."
    return f"Recommended cut: {chosen.cut}, which keeps an FVU of {chosen.fvu:.2f} (threshold {plan.threshold:g}) {against}."


def _notes(
    plan: ScanPlan, names: Sequence[str], best: Sequence[float], records: Sequence[CutRecord], chosen: Offer | None
) -> list[str]:
    notes = []
    sizes = {"the raw image": plan.raw_bytes, "its JPEG": plan.jpeg_bytes}
    known = {word: size for word, size in sizes.items() if size is not None}
    if chosen is not None:
        more = [f"{word} ({size:.0f})" for word, size in known.items() if chosen.bytes > size]
        compared = f"more than {' and '.join(more)}" if more else f"no more than {' or '.join(known)}"
        notes.append(f"{chosen.cut} sends {chosen.bytes} bytes as {plan.numbers}: {compared}")
    for word, size in known.items():
        large = [str(cut["name"]) for cut in plan.cuts if cut["bytes"] > size]
        verb = "sends" if len(large) == 1 else "send"
        said = f"{len(large)} of {plural(len(names), 'cut')} {verb} more than {word} of {size:.0f} bytes: {few(large)}"
        if large and not any(note.endswith(few(large)) for note in notes):  # often the same cuts exceed both
            notes.append(said)
    if chosen is not None and chosen.cut == names[-1] and chosen.share == 1:
        notes.append("the recommended cut is the model's output: the edge does all the work")
    usable = [(n, b) for n, b in zip(names, best, strict=True) if not math.isnan(b)]
    weak = kinks([n for n, _ in usable], [b for _, b in usable])
    if weak:
        notes.append(f"the attack was too weak at {few(weak)}: one on a deeper cut did better, and counts here too")
    stopped = [r.cut for r in records if r.allowed is not None and r.epochs < r.allowed and r.fvu < plan.threshold]
    if stopped:
        notes.append(
            f"decoders at {few([*dict.fromkeys(stopped)])} stopped once they had shown the leak; with more epochs more leaks"
        )
    refused = (f"{r.attack} at {r.cut}: {r.risk['refusal']}" for r in records if r.risk.get("refusal"))
    return [*notes, *dict.fromkeys(refused)]  # an attack of several efforts refuses with the same words


def few(names: Sequence[str]) -> str:
    """The names, or the first six and how many more there are."""
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
