"""The page of a comparison: what got worse first, then the figures, then what else differs between the runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from leakgauge.audit.compare import ORDER, CasePair, Comparison, Difference
from leakgauge.audit.phrasing import metric, moved
from leakgauge.audit.wording import ending, rule
from leakgauge.errors import harmless
from leakgauge.report.templating import environment, page_time

_SPREAD = {True: "beyond the spread", False: "within the spread", None: "spread not known"}


def render(found: Comparison, *, made: datetime | None = None) -> str:
    """One HTML file that needs no network, no script and no other file. ``made`` is the time to print on it (default: now)."""
    page = environment().get_template("compare.html.j2")
    text = page.render(
        found=found,
        made=page_time(made),
        cases=[_case(pair) for pair in found.cases],
        words=ORDER,
        tally=[(key, word, count) for key, word in ORDER.items() if (count := found.count(key))],
    )
    return harmless(text)


def _case(pair: CasePair) -> dict[str, Any]:
    return {
        "name": pair.name,
        "direction": pair.direction,
        "before": ending(pair.before),
        "after": ending(pair.after),
        "figures": [_figure(difference) for difference in pair.differences],
        "notes": (*pair.notes, *(f"{d.metric.upper()}: {d.note}" for d in pair.differences[:1] if d.note)),
        "rules": [
            record.reason if record.verdict is None else rule(record.verdict) for record in (pair.before, pair.after)
        ],
    }


def _figure(difference: Difference) -> dict[str, str]:
    if difference.before is None or difference.after is None:
        return {"from": "", "to": "", "by": "", "spread": ""}
    return {
        "from": metric(difference.metric, difference.before),
        "to": metric(difference.metric, difference.after),
        "by": "" if difference.value is None else moved(difference.metric, difference.value),
        "spread": _SPREAD[difference.beyond],
    }
