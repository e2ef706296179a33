"""When advice on a split applies: one small function per rule."""

from __future__ import annotations

from leakgauge.audit.advice.match import SPLIT, Match
from leakgauge.audit.findings import Findings
from leakgauge.audit.phrasing import plural
from leakgauge.audit.summaries import Split


def cut_here(found: Findings) -> Match | None:
    split = found.split
    if split is None or split.recommended is None or split.fvu is None or split.bytes is None or whole_on_edge(split):
        return None
    raw = split.raw_bytes
    more = f"more than the raw image of {raw}" if raw and split.bytes > raw else f"the raw image has {raw or 'unknown'}"
    facts = {"cut": split.recommended, "fvu": f"{split.fvu:.2f}", "threshold": f"{split.threshold:g}"}
    return Match(
        (SPLIT,), facts | {"bytes": split.bytes, "numbers": split.numbers, "more": more, "budget": split.budget}
    )


def whole_on_edge(split: Split) -> bool:
    """The recommended cut is the model's output: the device does all the work, and nothing is split."""
    return split.edge_share == 1


def keep_it_whole(found: Findings) -> Match | None:
    split = found.split
    if split is None or split.recommended is None or split.fvu is None or not whole_on_edge(split):
        return None
    facts = {
        "cut": split.recommended,
        "fvu": f"{split.fvu:.2f}",
        "threshold": f"{split.threshold:g}",
        "cuts": split.cuts,
    }
    return Match((SPLIT,), facts | {"bytes": split.bytes, "budget": split.budget})


def no_safe_cut(found: Findings) -> Match | None:
    split = found.split
    if split is None or not split.finished or split.recommended is not None:
        return None
    wanted = f"an FVU of {split.threshold:g}" + (f" and {split.require}" if split.require else "")
    best = (
        "no cut could be attacked" if split.safest_fvu is None else f"{split.safest} keeps most, {split.safest_fvu:.2f}"
    )
    none = "The one cut that was scanned does not keep" if split.cuts == 1 else f"None of {split.cuts} cuts keeps"
    return Match((SPLIT,), {"none": none, "wanted": wanted, "best": best})


def decoders_too(found: Findings) -> Match | None:
    split = found.split
    if split is None or split.recommended is None or split.decoder_epochs or whole_on_edge(split):
        return None
    return Match((SPLIT,), {"cut": split.recommended, "cuts": plural(split.cuts, "cut")})
