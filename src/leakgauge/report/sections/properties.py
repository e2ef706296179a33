"""The section on properties: one row per probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakgauge.audit.phrasing import number
from leakgauge.audit.questions.properties import PropertyRecord
from leakgauge.audit.wording import Statement
from leakgauge.audit.wording.properties import NOT_BOUNDED, WHAT, rate
from leakgauge.report.sections import LOOKS
from leakgauge.report.sources import anchor, of_properties


def section(records: Sequence[PropertyRecord], statement: Statement) -> dict[str, Any]:
    """All that the template shows of these probes."""
    return {
        "statement": statement,
        "looks": LOOKS[statement.tone],
        "not_bounded": NOT_BOUNDED,
        "rows": [_row(place, record) for place, record in enumerate(records, start=1)],
        "setting": records[0].setting,
        "made_from": f"probes of {len(records)} properties",
        "sources": of_properties(records),
        "versions": [record.versions for record in records],
    }


def _row(place: int, record: PropertyRecord) -> dict[str, Any]:
    return {
        "name": WHAT[record.name],
        "source": anchor("property", place),
        "shares": f"{record.low:.0%} or {record.high:.0%} of {record.batch}",
        "auc": rate(record.auc),
        "tpr": f"{record.tpr:.0%}",
        "blind": rate(record.blind),
        "null": f"{number(record.null_low, 2)} to {number(record.null_high, 2)}",
        "leaks": record.leaks,
    }
