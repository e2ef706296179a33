"""Attack difficulty by controlled starts: how much of the target must be given before the gradient finds the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakgauge.audit.case import Case, uses_of
from leakgauge.audit.records import Record
from leakgauge.core import NoisyCopy
from leakgauge.errors import BadInput

PROBABILITIES = tuple(round(0.1 * i, 1) for i in range(11))
"""Starting noise factors of the paper's figure 4."""

_REVEAL = "noisy_copy"


def controlled_cases(
    models: Sequence[str], *, probabilities: Sequence[float] = PROBABILITIES, base: Case | None = None
) -> list[Case]:
    """One case for each model and share of noise, all on the same image, with the same noise and the same options.

    The start is the target with each pixel, with probability p, replaced by N(0, 1) in model space. Labels are given, as in
    the paper. ``base`` sets everything else; its attack must start at a revealed copy, as ``feasibility`` does.

    Ref: Valadi et al. 2026, section 5.3 and figure 4 — controlled initialisation
    """
    base = Case(attack="feasibility", options={"steps": 500, "statistics": 0.0}) if base is None else base
    if "noisy_copy" not in uses_of(base.attack):
        raise BadInput(f"{base.attack} does not start at a revealed copy; use feasibility or huang")
    return [
        replace(base, name="", model=model, reveal=("size", "labels", f"{_REVEAL}:{p}"))
        for model in models
        for p in probabilities
    ]


@dataclass(frozen=True)
class Row:
    """Mean SSIM of one start: of the start itself, after the null run (the priors alone) and after the attack."""

    model: str
    p: float
    start: float
    null: float
    attack: float

    @property
    def gained(self) -> float:
        """What the gradient added to what smoothing alone makes of the same start."""
        return self.attack - self.null


def controlled_table(records: Sequence[Record]) -> list[Row]:
    """The rows of all records that had a controlled start and were judged; refusals and errors have no row."""
    rows = []
    for record in records:
        known = record.case.build_reveal()
        given = [copy.p for copy in known if isinstance(copy, NoisyCopy)]
        parts = (record.start, record.null, record.scores)
        if record.status == "done" and given:
            means = [mean for part in parts if part is not None and (mean := part.mean("ssim")) is not None]
            if len(means) == len(parts):
                rows.append(Row(record.case.model, float(given[0]), *means))
    return rows


def as_markdown(rows: Sequence[Row]) -> str:
    """A table with one column per share of noise, and for each model the start, the null run and the attack."""
    shares = sorted({row.p for row in rows})
    at = {(row.model, row.p): row for row in rows}
    lines = [
        "| model | SSIM of | " + " | ".join(f"{p:g}" for p in shares) + " |",
        "|---|---|" + "---|" * len(shares),
    ]
    for model in dict.fromkeys(row.model for row in rows):
        for what in ("start", "null", "attack"):
            cells = [f"{getattr(at[model, p], what):.2f}" if (model, p) in at else "" for p in shares]
            lines.append(f"| {model} | {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
