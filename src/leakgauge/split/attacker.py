"""Trains decoders one cut and one effort at a time, as a zone search requests them."""

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
"""How far below the threshold, as a share, a decoder must be on the adversary's own images before it may stop."""


@dataclass(frozen=True, eq=False)
class Attacker:
    """The ``attack(cut, epochs)`` of :func:`leakgauge.split.zone.find_zone`: the result of ``inverter`` after that many epochs.

    With a ``folder`` the features of a cut are computed once for all efforts. ``rows`` keeps every result by cut and allowed epochs;
    results of an earlier, interrupted search are not trained again. ``on_row`` gets each new one immediately, with the allowed
    epochs and the reconstructed images.

    With ``enough``, the threshold of the search, a decoder stops as soon as it shows on the adversary's own images that the cut
    leaks that much, and ``MARGIN`` more. If the attacked images disagree, it is trained to the end.
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
            self.rows[cut, epochs] = self._attack(cut, epochs)
        row = self.rows[cut, epochs]
        return Attempt(cut, row.epochs or epochs, row.fvu, stops=self._stopping is not None)

    @property
    def _stopping(self) -> Inverter | None:
        """The inverter that stops once it has shown the leak; None if that was not requested or is not possible."""
        if self.enough is None or not isinstance(self.inverter, Stoppable):
            return None
        return self.inverter.until((1 - MARGIN) * self.enough)

    def _attack(self, cut: str, epochs: int) -> CutRisk:
        stopping = self._stopping
        row, made = self._scan_cut(cut, epochs, stopping or self.inverter)
        if stopping is not None and row.epochs < epochs and self.enough is not None and row.fvu >= self.enough:
            stopped = row
            row, made = self._scan_cut(cut, epochs, self.inverter)
            row = replace(row, epochs=stopped.epochs + row.epochs, seconds=stopped.seconds + row.seconds)
        if self.on_row is not None:
            self.on_row(epochs, row, made)
        return row

    def _scan_cut(self, cut: str, epochs: int, inverter: Inverter) -> tuple[CutRisk, Tensor | None]:
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
