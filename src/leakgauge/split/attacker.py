"""Decoders trained one cut and one effort at a time, as a zone search asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leakgauge.core import Defense, Victim
from leakgauge.split.inverters import Inverter
from leakgauge.split.scan import CutRisk, Images, scan


@dataclass(frozen=True, eq=False)
class Attacker:
    """``attacked(cut, epochs)`` of :func:`leakgauge.split.zone.find_zone`: the FVU of ``inverter`` after that many epochs.

    With a ``folder`` the features of a cut are computed once for all efforts. ``rows`` keeps every result.
    """

    victim: Victim
    auxiliary: Images
    test: Images
    inverter: Inverter
    defenses: Sequence[Defense] = ()
    folder: Path | None = None
    seed: int = 0
    rows: list[tuple[int, CutRisk]] = field(default_factory=list)

    def __call__(self, cut: str, epochs: int) -> float:
        found = scan(
            self.victim,
            self.auxiliary,
            self.test,
            [cut],
            inverter=self.inverter,
            epochs=epochs,
            defenses=self.defenses,
            folder=self.folder,
            seed=self.seed,
        )
        self.rows.append((epochs, found.rows[0]))
        return found.rows[0].fvu
