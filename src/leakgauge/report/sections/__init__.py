"""The sections of the report, one file per question and one for its top: what the templates show, made from records and findings.

A section is a mapping with these entries, and with those of its own template: ``statement`` is the answer to its question, ``made_from``
says what it is made of, ``sources`` are its records for the appendix, ``versions`` those it was measured with.
"""

from __future__ import annotations

from collections.abc import Mapping

from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import Tone

LOOKS: Mapping[Tone, str] = {
    "bad": Outcome.FEASIBLE,
    "partly": Outcome.PARTIAL,
    "good": Outcome.INFEASIBLE,
    "none": "refused",
}
"""The style of a badge by the tone of a statement; it is that of the set-ups."""
