"""What is no picture, side by side with what was found of it: sentences token by token, rows cell by cell, series as lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakgauge.audit.phrasing import metric, number
from leakgauge.audit.records import Record
from leakgauge.audit.text_record import MARKS, Mark
from leakgauge.audit.wording import TEXT_METRICS
from leakgauge.report.charts import Line, between, line_chart

_UNCOMPARED: Mapping[Mark, str] = {"placed": "certified", "present": "not certified"}
"""What the marks mean where the truth is not known."""
_AT_MOST = 3
"""Channels of one series that are drawn."""


def text(record: Record) -> dict[str, Any] | None:
    """Sentences side by side, token by token, and their scores."""
    facts = record.text
    if facts is None:
        return None
    certified = record.certified or (False,) * len(facts.sentences)
    rows = [
        {
            "truth": list(zip(one.truth, one.truth_marks, strict=True)),
            "found": list(zip(one.found, one.found_marks, strict=True)),
            "exact": bool(facts.scores["exact"][k]) if facts.scores else False,
            "certified": certified[k],
            "rouge": number(facts.scores["rouge_l"][k], 2) if facts.scores else "",
            "null": number(facts.null["rouge_l"][k], 2) if facts.null else "",
        }
        for k, one in enumerate(facts.sentences)
    ]
    metrics = [
        (said, *(number(one, 2) for one in facts.means(name) if one is not None))
        for name, said in TEXT_METRICS.items()
        if facts.scores
    ]
    marks = MARKS if facts.scores else _UNCOMPARED
    return {"rows": rows, "metrics": metrics, "marks": marks, "guesses": ", ".join(facts.guesses)}


def _percent(share: float) -> str:
    return f"{number(100 * share, 0)} %"


def table(record: Record) -> dict[str, Any] | None:
    """Rows side by side, cell by cell, and what guesses without the update reach."""
    facts = record.table
    if facts is None:
        return None
    certified = record.certified or (False,) * len(facts.rows)
    rows = [
        {
            "truth": [
                (cell, "placed" if right else "missing") for cell, right in zip(one.truth, one.right, strict=True)
            ],
            "found": [
                (cell, "placed" if right else "missing", "" if not one.sure else f"confidence {_percent(one.sure[c])}")
                for c, (cell, right) in enumerate(zip(one.found, one.right, strict=True))
            ],
            "certified": certified[k],
        }
        for k, one in enumerate(facts.rows)
    ]
    others = [(f"guess: {name}", _percent(value)) for name, value in facts.guesses.items()]
    others += [] if facts.nearest is None else [("nearest public row, chosen by the truth", _percent(facts.nearest))]
    surest = [] if facts.surest is None else [("the quarter of the cells it is most sure of", _percent(facts.surest))]
    return {
        "columns": [(name, _percent(facts.by_column[name])) for name in facts.columns],
        "rows": rows,
        "left": len(facts.cells) - len(rows),
        "scores": [("attack", _percent(sum(facts.cells) / len(facts.cells))), *surest, *others],
    }


def series(place: int, record: Record) -> list[dict[str, Any]]:
    """A chart for each channel of each series that the record holds: the original, the reconstruction and the null run."""
    facts = record.series
    if facts is None or record.scores is None or record.scores.correlation is None:
        return []
    charts = []
    for k, truth in enumerate(facts.truth):
        for channel in range(min(len(truth), _AT_MOST)):
            many = len(truth) > 1
            name = f"Series {k + 1}" + (f", channel {channel + 1} of {len(truth)}" if many else "")
            sides = (facts.truth[k][channel], facts.found[k][channel], facts.null[k][channel])
            places = [float(facts.stride * t) for t in range(len(sides[0]))]
            low, high = min(map(min, sides)), max(map(max, sides))
            alike = metric("correlation", record.scores.correlation[k])
            chart = line_chart(
                places,
                [
                    Line("reconstruction", "line-decoy", sides[1]),
                    Line("original", "line-main", sides[0]),
                    Line("null run", "line-null", sides[2]),
                ],
                uid=f"series-{place}-{k}-{channel}",
                title=name,
                desc=f"{name}: original, reconstruction and null run over {len(places)} times, between {low:.3g} and {high:.3g}. "
                f"Correlation of the reconstruction with the original: {alike}.",
                across="time",
                up="value",
                x=between(0, max(places[-1], 1.0), about=4),
            )
            charts.append({"name": name, "chart": chart, "alike": alike})
    return charts
