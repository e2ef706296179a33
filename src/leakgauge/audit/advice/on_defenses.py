"""When advice on defenses applies: one small function per rule, each with its threshold as a named number."""

from __future__ import annotations

import math
from collections.abc import Mapping

from leakgauge.audit.advice.match import DEFENSES, SPLIT, Match, number
from leakgauge.audit.advice.on_updates import own
from leakgauge.audit.defense_records import SEEN, in_words
from leakgauge.audit.findings import Findings
from leakgauge.audit.phrasing import plural
from leakgauge.audit.summaries import HELD, LEAKING, Defended, Update
from leakgauge.audit.verdict import ToldBy

MOST_POINTS = 2.0
"""Points of accuracy that a defense may cost and still be called cheap: a convention, which your own tolerance may replace."""

LEAST_DROP = 0.05
"""By how much the SSIM must fall for a defense to have done anything: as much as an attack must beat its null run by. So must the lead
of the pieces, where these alone were seen."""

LEAST_LAYOUT_DROP = 0.2
"""By how much the correlation of the layout must fall where the undefended attack saw a layout alone: as much as it must beat that
of the null run by."""

FALLS: Mapping[ToldBy, float] = {"ssim": LEAST_DROP, "layout": LEAST_LAYOUT_DROP, "pieces_lead": LEAST_DROP}
"""The least fall that counts, by what says what was seen."""


def use_defense(found: Findings) -> Match | None:
    """The undefended attack leaks, and a row makes it infeasible at a small price: on the Pareto front, then the cheapest."""
    hit = sorted(filter(_cheap, _holding(found)), key=lambda row: (not row.front, row.cost))
    if not hit or found.defenses is None:
        return None
    best, auc = hit[0], hit[0].auc
    members = (
        "Membership was not measured."
        if auc is None
        else f"Members of a batch are still told with an AUC of {auc:.2f}."
    )
    steps = found.defenses.steps
    facts = {"defense": best.defense, "cost": _points(best), "membership": members}
    facts["budget"] = "its budget" if steps is None else plural(steps, "step")
    base = found.defenses.undefended
    return Match((best.anchor, DEFENSES), facts | {"before": _seen(base, base), "after": _seen(best, base)})


def no_cheap_defense(found: Findings) -> Match | None:
    """None is cheap on the update of one client, which a sum over clients would hide."""
    return none_is_cheap(found) if found.defenses is not None and found.defenses.clients == 1 else None


def more_clients(found: Findings) -> Match | None:
    """None is cheap, and what was attacked is a sum over clients already."""
    match, clients = none_is_cheap(found), 1 if found.defenses is None else found.defenses.clients
    if match is None or clients == 1:
        return None
    return Match(match.evidence, {**match.facts, "clients": clients, "more": 4 * clients})


def none_is_cheap(found: Findings) -> Match | None:
    if found.defenses is None or found.defenses.undefended.outcome not in LEAKING or not rows(found):
        return None
    holding = _holding(found)
    if any(map(_cheap, holding)):
        return None
    known, unknown = ([row for row in holding if (row.cost is None) == missing] for missing in (False, True))
    names = ", ".join(row.defense for row in unknown)
    cheapest = min(known, key=lambda row: math.inf if row.cost is None else row.cost, default=None)
    if cheapest is not None:
        best = f"the cheapest that made the attack infeasible is {cheapest.defense}, for {_points(cheapest)}"
        best += f"; what {names} would cost was not measured" if unknown else ""
    elif unknown:
        best = f"{names} made the attack infeasible, at a cost in accuracy that was not measured"
    elif any(row.outcome == HELD for row in rows(found)):
        what = found.defenses.undefended.told_by
        best = f"none lowered the {SEEN[what]} by {FALLS[what]:g} and made the attack infeasible wherever it was tried"
    else:
        best = "none made the attack infeasible"
    return Match((DEFENSES,), {"count": plural(len(rows(found)), "defense"), "best": best})


def cost_is_unknown(found: Findings) -> bool:
    """Defenses hold, and not one of them has a known price, so that none can be called dear either."""
    holding = _holding(found)
    return bool(holding) and all(row.cost is None for row in holding)


def nothing_to_defend(found: Findings) -> Match | None:
    if found.defenses is None or found.defenses.undefended.outcome != HELD:
        return None
    base = found.defenses.undefended
    return Match((base.anchor,), {"before": _seen(base, base), "count": plural(len(found.defenses.rows), "defense")})


def noise_is_not_dp(found: Findings) -> Match | None:
    """Noise was tried without an accountant: as a defense of updates or features, or as a row that holds."""
    used = [(u.anchor, spec) for u in own(found) for spec in u.defenses]
    used += [(row.anchor, row.defense) for row in _holding(found)]
    used += [(SPLIT, spec) for spec in (found.split.defenses if found.split else ())]
    noisy = [(anchor, spec) for anchor, spec in used if _adds_noise(spec)]
    if not noisy:
        return None
    specs = list(dict.fromkeys(spec for _, spec in noisy))
    return Match(tuple(dict.fromkeys(anchor for anchor, _ in noisy)), {"defense": " or ".join(specs[:3])})


def _adds_noise(spec: str) -> bool:
    """Whether one of the defenses is noise by itself; DP-SGD has noise as an option, and clips each sample first."""
    return any("noise" in part.partition(":")[0].lower() for part in spec.split(" + "))


def rows(found: Findings) -> tuple[Defended, ...]:
    return () if found.defenses is None else found.defenses.rows


def _holding(found: Findings) -> list[Defended]:
    """Rows that made a leaking attack infeasible, and not by a hair; where the attack fails by itself no row earned anything.

    A defense under which a set-up of the same report leaks did not hold, whatever a shorter attack on it came to.
    """
    if found.defenses is None or found.defenses.undefended.outcome not in LEAKING:
        return []
    base, broken = found.defenses.undefended, [row for row, _ in broken_elsewhere(found)]
    earned = [row for row in found.defenses.rows if row.outcome == HELD and _earned(base, row)]
    return [row for row in earned if row not in broken]


def broken_elsewhere(found: Findings) -> list[tuple[Defended, Update]]:
    """Rows that held, each with a set-up of the same model that leaks under the same defense: after more steps, or on other images."""
    if found.defenses is None:
        return []
    model = found.defenses.model
    leaks = {_protection(" + ".join(u.defenses)): u for u in own(found) if u.defenses and u.leaks and u.model == model}
    held = [row for row in found.defenses.rows if row.outcome == HELD]
    return [(row, leaks[key]) for row in held if (key := _protection(row.defense)) in leaks]


def _protection(spec: str) -> tuple[tuple[str, str], ...]:
    """Defenses as what they do, however their numbers are written.

    >>> _protection("prune:0.90 + clip:1") == _protection("prune:fraction=0.9 + clip:1.0")
    True
    """
    return tuple(in_words(part) for part in spec.split(" + "))


def _earned(base: Defended, row: Defended) -> bool:
    """Whether less is seen by what the undefended attack leaked; where that was not scored the verdict alone counts."""
    before, after = getattr(base, base.told_by), getattr(row, base.told_by)
    return before is None or after is None or before - after >= FALLS[base.told_by]


def _cheap(row: Defended) -> bool:
    return row.cost is not None and row.cost <= MOST_POINTS


def _points(row: Defended) -> str:
    if row.cost is None:
        return "an accuracy that was not measured"
    spread = (
        "" if row.cost_low is None or row.cost_high is None else f" (95 % {row.cost_low:.1f} to {row.cost_high:.1f})"
    )
    return f"{number(row.cost, 1)} points of accuracy{spread}"


def _seen(row: Defended, base: Defended) -> str:
    """What the attack saw of a row, in the number that says what it saw without a defense."""
    return f"{SEEN[base.told_by]} {number(getattr(row, base.told_by), 2)}"
