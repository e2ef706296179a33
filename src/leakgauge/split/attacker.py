"""Decoders trained one cut and one effort at a time, as a zone search asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leakgauge.core import Defense, Victim
from leakgauge.inversion.progress import also_watching
from leakgauge.split.inverters import Inverter, Stoppable
from leakgauge.split.scan import CutRisk, Images, scan
from leakgauge.split.zone import Outcome

MARGIN = 0.05
"""Share by which a decoder must be below the threshold on the adversary's own images before it may stop."""


@dataclass(frozen=True, eq=False)
class Attacker:
    """``attacked(cut, epochs)`` of :func:`leakgauge.split.zone.find_zone`: what ``inverter`` reads after that many epochs.

    With a ``folder`` the features of a cut are computed once for all efforts. ``rows`` keeps every result with the epochs
    that were allowed.

    With ``enough``, the threshold of the search, a decoder stops as soon as it has shown on the adversary's own images that
    the cut leaks so much, and ``MARGIN`` more. Where the attacked images say otherwise, it is trained to the end.
    """

    victim: Victim
    auxiliary: Images
    test: Images
    inverter: Inverter
    defenses: Sequence[Defense] = ()
    folder: Path | None = None
    seed: int = 0
    enough: float | None = None
    rows: list[tuple[int, CutRisk]] = field(default_factory=list)

    def __call__(self, cut: str, epochs: int) -> Outcome:
        inverter = self.inverter
        if self.enough is not None and isinstance(inverter, Stoppable):
            inverter = inverter.until((1 - MARGIN) * self.enough)
        row, trained = self._scanned(cut, epochs, inverter)
        if self.enough is not None and trained < epochs and row.fvu >= self.enough and inverter is not self.inverter:
            row, more = self._scanned(cut, epochs, self.inverter)
            trained += more
        self.rows.append((epochs, row))
        return Outcome(row.fvu, trained or epochs)

    def _scanned(self, cut: str, epochs: int, inverter: Inverter) -> tuple[CutRisk, int]:
        """The result, and the number of epochs that the inverter reported."""
        reported = [0]
        with also_watching(lambda done, total: reported.append(done)):
            found = scan(
                self.victim,
                self.auxiliary,
                self.test,
                [cut],
                inverter=inverter,
                epochs=epochs,
                defenses=self.defenses,
                folder=self.folder,
                seed=self.seed,
            )
        return found.rows[0], reported[-1]
