"""When advice on shared updates applies: one small function per rule, each with its threshold as a named number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from leakgauge.audit.advice.match import Match, anchors, quality
from leakgauge.audit.findings import Findings
from leakgauge.audit.phrasing import plural
from leakgauge.audit.summaries import HELD, Flip, Update
from leakgauge.audit.verdict import SEVERITY

LABELS_TOLD = 0.9
"""Share of labels that were found; below it a server is often wrong about a single one."""
LUCK = 0.01
"""Chance that guessing finds so many labels; above it a handful of right ones proves nothing."""
FEWEST_IMAGES = 20
"""Below it a clean result still allows that more than one image in seven is reconstructed: 1 - 0.05^(1/20) = 14 %."""

PRIOR = "generative_prior"
WITHOUT_PRIOR = frozenset(
    {"inverting_gradients", "dlg", "idlg", "tag", "tag_read_labels", "gradinversion", "feasibility", "huang", "april"}
)
"""Attacks by matching gradients of images that know no more of them than that they are smooth."""


def plain_updates_leak(found: Findings) -> Match | None:
    return _leaking_most(found, "feasible")


def plain_updates_leak_partly(found: Findings) -> Match | None:
    return None if plain_updates_leak(found) else _leaking_most(found, "partial")


def _leaking_most(found: Findings, outcome: str) -> Match | None:
    hit = sorted((u for u in realistic(found) if u.outcome == outcome), key=lambda u: -(u.ssim or 0.0))
    if not hit:
        return None
    sizes = sorted({u.batch for u in hit})
    return Match(anchors(hit), {"batches": _batches(sizes), "name": hit[0].name, "quality": quality(hit[0])})


def defense_did_not_hold(found: Findings) -> Match | None:
    """Defended set-ups that leak, those that leak most first."""
    leaking = [u for u in own(found) if u.defenses and u.leaks]
    hit = sorted(leaking, key=lambda u: -SEVERITY[str(u.outcome)])
    if not hit:
        return None
    worst = hit[0]
    seen = (
        "Private images were reconstructed"
        if worst.outcome == "feasible"
        else "Some images or some of their content were seen"
    )
    facts = {"defense": " with ".join(worst.defenses), "seen": seen, "name": worst.name, "quality": quality(worst)}
    return Match(anchors(hit), facts)


def malicious_server_leaks(found: Findings) -> Match | None:
    """Set-ups with a malicious server that leak, the clearest first."""
    hit = sorted((u for u in own(found) if u.malicious and u.leaks), key=lambda u: -(u.ssim or 0.0))
    return Match(anchors(hit), {"name": hit[0].name, "quality": quality(hit[0])}) if hit else None


def keep_buffers(found: Findings) -> Match | None:
    return _flipped(found, lambda flip: flip.change == "running statistics shared")


def keep_train_mode(found: Findings) -> Match | None:
    return _flipped(found, lambda flip: (flip.leaking.mode, flip.holding.mode) == ("eval", "train"))


def more_local_steps(found: Findings) -> Match | None:
    return _flipped(found, lambda flip: flip.leaking.local_steps < flip.holding.local_steps)


def larger_batches(found: Findings) -> Match | None:
    """The smaller batch leaks more; and nothing was reconstructed from one of the size that is advised, or a larger one."""

    def fits(flip: Flip) -> bool:
        enough = flip.holding.batch
        return flip.leaking.batch < enough and not any(
            u.outcome == "feasible" and u.batch >= enough for u in realistic(found)
        )

    return _flipped(found, fits)


def _flipped(found: Findings, fits: Callable[[Flip], bool]) -> Match | None:
    """The flip that fits and helps most, between undefended set-ups of which at least the better one asks for no diagnostic help."""
    every = () if found.updates is None else found.updates.flips
    for flip in sorted(every, key=lambda flip: SEVERITY[str(flip.holding.outcome)]):
        pair = (flip.leaking, flip.holding)
        if fits(flip) and not flip.holding.diagnostic and all(u.plain for u in pair):
            return Match(
                anchors(pair),
                {
                    "batch": flip.holding.batch,
                    "steps": flip.holding.local_steps,
                    "leaking": _outcome(flip.leaking),
                    "leaking_quality": quality(flip.leaking),
                    "smaller": flip.leaking.batch,
                    "holding": _outcome(flip.holding),
                    "holding_quality": quality(flip.holding),
                },
            )
    return None


def only_upper_bound(found: Findings) -> Match | None:
    """Something leaks with diagnostic help, and nothing without; what eval mode does is said by its own rule."""
    updates, ordinary = found.updates, realistic(found)
    if updates is None or not ordinary or any(u.leaks for u in ordinary):
        return None
    said = keep_train_mode(found)
    hit = [u for u in updates.judged if u.leaks and u.diagnostic and not (said and u.anchor in said.evidence)]
    helps = list(dict.fromkeys(what for u in hit for what in u.diagnostic))
    return Match(anchors(hit), {"help": "; ".join(helps), "name": hit[0].name, "quality": quality(hit[0])}) if hit else None  # fmt: skip


def only_diagnostic_run(found: Findings) -> Match | None:
    plain = [u for u in own(found) if u.plain]
    if not plain or realistic(found):
        return None
    helps = list(dict.fromkeys(what for u in plain for what in u.diagnostic))
    return Match(anchors(plain), {"count": plural(len(plain), "undefended set-up"), "help": "; ".join(helps)})


def labels_told(found: Findings) -> Match | None:
    """The largest batch size whose labels were read, more of them than guessing explains."""
    for batch in sorted({u.batch for u in realistic(found)}, reverse=True):
        told = {u.first: u for u in realistic(found) if u.batch == batch and u.labels is not None}.values()
        count = batch * len(told)
        right = round(sum((u.labels or 0.0) * batch for u in told))
        classes = min((u.classes for u in told if u.classes is not None), default=2)
        if count and right >= LABELS_TOLD * count and _luck(right, count, 1 / classes) <= LUCK:
            return Match(anchors(told), {"batch": batch, "right": right, "count": count, "classes": classes})
    return None


def _luck(right: int, count: int, chance: float) -> float:
    """P(X ≥ right) for X binomial with ``count`` draws.

    >>> _luck(4, 4, 0.1), _luck(0, 4, 0.1)
    (0.0001, 1.0)
    """
    tail = sum(math.comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in range(right, count + 1))
    return round(tail, 12)


def more_steps(found: Findings) -> Match | None:
    short = [
        u
        for u in own(found)
        if u.outcome != "feasible" and u.steps is not None and u.usual_steps is not None and u.steps < u.usual_steps
    ]
    if not short:
        return None
    least = min(short, key=lambda u: (u.steps or 0) / (u.usual_steps or 1))
    spent = sorted({u.steps for u in short if u.steps is not None})
    steps = plural(spent[-1], "step") if len(spent) == 1 else f"{spent[0]} to {spent[-1]} steps"
    facts = {"count": plural(len(short), "set-up"), "steps": steps, "usual": least.usual_steps}
    return Match(anchors(short), facts | {"attack": least.attack})


def prior_too(found: Findings) -> Match | None:
    """Images that attacks without a learned prior did not find, in an audit without an attack that has one."""
    held = [u for u in realistic(found) if u.outcome == HELD and u.attack in WITHOUT_PRIOR]
    if not held or any(u.attack == PRIOR for u in own(found)):
        return None
    return Match(anchors(held), {"count": plural(len(held), "undefended set-up"), "attack": held[0].attack})


def more_images(found: Findings) -> Match | None:
    judged = [u for u in own(found) if u.plain]
    images = {index for u in judged for index in range(u.first, u.first + u.batch)}
    if not judged or len(images) >= FEWEST_IMAGES or any(u.outcome != HELD for u in judged):
        return None
    allowed = 1 - 0.05 ** (1 / len(images))
    return Match(anchors(judged), {"images": plural(len(images), "image"), "allowed": f"{100 * allowed:.0f} %"})


def own(found: Findings) -> tuple[Update, ...]:
    return () if found.updates is None else found.updates.own


def realistic(found: Findings) -> list[Update]:
    """Set-ups that were asked about, undefended, with nothing that an ordinary server lacks."""
    return [u for u in own(found) if u.plain and not u.diagnostic]


def _outcome(update: Update) -> str:
    return str(update.outcome).replace("_", " ")


def _batches(sizes: Sequence[int]) -> str:
    said = [str(size) for size in sizes]
    return f"a batch of {said[0]}" if len(said) == 1 else f"batches of {', '.join(said[:-1])} and {said[-1]}"
