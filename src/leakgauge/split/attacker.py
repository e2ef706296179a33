"""Decoders trained one cut and one effort at a time, as a zone search asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from leakgauge.core import Defense, Victim
from leakgauge.split.inverters import Inverter, Stoppable
from leakgauge.split.scan import CutRisk, Images, scan
from leakgauge.split.zone import Attempt

MARGIN = 0.05
"""Share by which a decoder must be below the threshold on the adversary's own images before it may stop."""


@dataclass(frozen=True, eq=False)
class Attacker:
    """``attacked(cut, epochs)`` of :func:`leakgauge.split.zone.find_zone`: what ``inverter`` reads after that many epochs.

    With a ``folder`` the features of a cut are computed once for all efforts. ``rows`` keeps every result by cut and epochs
    allowed; what an earlier, interrupted search left there is not trained again. ``on_row`` gets each new one at once, with
    the epochs allowed and the images that were made.

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
    rows: dict[tuple[str, int], CutRisk] = field(default_factory=dict)
    on_row: Callable[[int, CutRisk, Tensor | None], None] | None = None

    def __call__(self, cut: str, epochs: int) -> Attempt:
        if (cut, epochs) not in self.rows:
            self.rows[cut, epochs] = self._attacked(cut, epochs)
        row = self.rows[cut, epochs]
        return Attempt(cut, row.epochs or epochs, row.fvu, stops=self._stopping is not None)

    @property
    def _stopping(self) -> Inverter | None:
        """The inverter that stops once it has shown the leak; None where it is not asked to, or cannot."""
        if self.enough is None or not isinstance(self.inverter, Stoppable):
            return None
        return self.inverter.until((1 - MARGIN) * self.enough)

    def _attacked(self, cut: str, epochs: int) -> CutRisk:
        stopping = self._stopping
        row, made = self._scanned(cut, epochs, stopping or self.inverter)
        if stopping is not None and row.epochs < epochs and self.enough is not None and row.fvu >= self.enough:
            stopped = row
            row, made = self._scanned(cut, epochs, self.inverter)
            row = replace(row, epochs=stopped.epochs + row.epochs, seconds=stopped.seconds + row.seconds)
        if self.on_row is not None:
            self.on_row(epochs, row, made)
        return row

    def _scanned(self, cut: str, epochs: int, inverter: Inverter) -> tuple[CutRisk, Tensor | None]:
        found: list[tuple[CutRisk, Tensor | None]] = []
        scan(
            self.victim,
            self.auxiliary,
            self.test,
            [cut],
            inverter=inverter,
            epochs=epochs,
            defenses=self.defenses,
            folder=self.folder,
            on_cut=lambda row, made: found.append((row, made)),
            seed=self.seed,
        )
        return found[0]
