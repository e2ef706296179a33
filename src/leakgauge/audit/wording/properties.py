"""What probes of properties showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakgauge.audit.phrasing import duration, number, plural
from leakgauge.audit.questions import QUESTIONS
from leakgauge.audit.questions.properties import STRONG, PropertyRecord
from leakgauge.audit.wording.statement import Statement, Tone
from leakgauge.measures.membership import Rate

WHAT: Mapping[str, str] = {
    "bright": "images brighter than the median of their class",
    "class": "images of the most frequent class",
}
FEW = f"with so few batches that share no sample even a probe with an AUC of {STRONG:g} could not be distinguished from chance"
NOT_BOUNDED = "Differential privacy for single records does not bound this: a property of a batch or a site is one of many records at once."
"""Said under every answer."""


def on_properties(found: Sequence[PropertyRecord]) -> Statement:
    said = [property_sentence(record) for record in found]
    leaks = [record for record in found if record.leaks]
    tone: Tone
    if leaks:
        tone, badge = "partly", "Tells properties"
    elif any(not record.could_tell and not record.told_by_labels for record in found):
        tone, badge = "none", "Inconclusive"
        said.append(f"That is no evidence: {FEW}; give more data.")
    else:
        tone, badge = "none", "None found"
        said.append("Another property, another probe or more updates may tell more.")
    assumed = (("deployable", "the server has images of the same kind and knows which of them have the property"),)
    spent = f"{plural(found[0].shadows, 'shadow update')} and {plural(found[0].tests, 'test')} for each property, "
    spent += duration(sum(record.seconds for record in found))
    asked = QUESTIONS["properties"]
    return Statement("properties", asked, tone, badge, (*said, NOT_BOUNDED), assumed, spent)


def property_sentence(record: PropertyRecord) -> str:
    """What one probe showed."""
    what = f"whether {record.low:.0%} or {record.high:.0%} of {plural(record.batch, 'sample')} are {WHAT[record.name]}"
    if record.leaks:
        verb = f"The update tells {what}"
    elif record.told_by_labels:
        verb = f"The update tells no more than the labels do about {what}"
    elif record.could_tell:
        verb = f"No probe could tell {what}"
    else:
        verb = f"There is too little data to find out {what}"
    return (
        f"{verb}: AUC {rate(record.auc)}, {record.tpr:.0%} found at 1 % false alarms; labels alone {number(record.blind.value, 2)}, "
        f"chance at most {number(record.null_high, 2)}."
    )


def rate(found: Rate) -> str:
    """A value with its interval.

    >>> rate(Rate(0.9, 0.8, 0.95))
    '0.90 (0.80 to 0.95)'
    """
    return f"{number(found.value, 2)} ({number(found.low, 2)} to {number(found.high, 2)})"
