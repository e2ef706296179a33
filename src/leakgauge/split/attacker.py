"""Attacks one cut with everything there is, as a zone search requests it: least squares first, then a decoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from leakgauge.core import Defense, Victim
from leakgauge.split.inverters import Inverter, Stoppable
from leakgauge.split.scan import CutRisk, Images, scan
from leakgauge.split.whitebox import WhiteBox
from leakgauge.split.zone import Attempt, kept

MARGIN = 0.05
"""How far below the threshold, as a share, a decoder must be on the adversary's own images before it may stop."""


@dataclass(frozen=True, eq=False)
class Attacker:
    """The ``attack(cut, epochs)`` of :func:`leakgauge.split.zone.find_zone`: the best result of all attacks on the cut.

    With a ``whitebox`` its result comes first (``computed`` keeps one per cut, ``on_computed`` gets new ones); ``flops`` of the edge
    by cut bound its work. If that shows the leak, no decoder is trained. Else ``inverter`` is, for that many epochs; None stands for
    no decoder, and then the regression's FVU by cut (``cheap``) counts too. Images that are re-identified more often than
    ``recognised`` count as a leak.

    With a ``folder`` the features of a cut are computed once for all efforts. ``rows`` keeps every result by cut and allowed epochs;
    results of an earlier, interrupted search are not trained again. ``on_row`` gets each new one immediately, with the allowed
    epochs and the reconstructed images.

    With ``enough``, the threshold of the search, a decoder stops as soon as it shows on the adversary's own images that the cut
    leaks that much, and ``MARGIN`` more. If the attacked images disagree, it is trained to the end.
    """

    victim: Victim
    auxiliary: Images
    test: Images
    inverter: Inverter | None
    defenses: Sequence[Defense] = ()
    folder: Path | None = None
    seed: int = 0
    enough: float | None = None
    recognised: float = 1.0
    whitebox: WhiteBox | None = None
    flops: Mapping[str, int] = field(default_factory=dict)
    cheap: Mapping[str, float] = field(default_factory=dict)
    computed: dict[str, CutRisk] = field(default_factory=dict)
    on_computed: Callable[[CutRisk, Tensor | None], None] | None = None
    rows: dict[tuple[str, int], CutRisk] = field(default_factory=dict)
    on_row: Callable[[int, CutRisk, Tensor | None], None] | None = None

    def __call__(self, cut: str, epochs: int) -> Attempt:
        found = self.compute(cut)
        if self.enough is not None and found < self.enough:
            return Attempt(cut, 0, found, stops=True)
        if self.inverter is None:
            return Attempt(cut, 0, _least(found, self.cheap.get(cut, math.nan)))
        if (cut, epochs) not in self.rows:
            self.rows[cut, epochs] = self._attack(cut, epochs, self.inverter)
        row = self.rows[cut, epochs]
        best = row.fvu if math.isnan(row.fvu) else _least(found, self._kept(row))
        return Attempt(cut, row.epochs or epochs, best, stops=self._stopping is not None)

    def compute(self, cut: str) -> float:
        """What the white box leaves; NaN if there is none, or it refused."""
        if self.whitebox is None:
            return math.nan
        if cut not in self.computed:
            self.computed[cut], made = self.whitebox(
                self.victim,
                cut,
                self.auxiliary,
                self.test,
                flops=self.flops.get(cut, 0),
                defenses=self.defenses,
                folder=self.folder,
                seed=self.seed,
            )
            if self.on_computed is not None:
                self.on_computed(self.computed[cut], made)
        return self._kept(self.computed[cut])

    def _kept(self, row: CutRisk) -> float:
        if self.enough is None:
            return row.fvu
        return kept(row.fvu, row.reidentified, threshold=self.enough, recognised=self.recognised)

    @property
    def _stopping(self) -> Inverter | None:
        """The inverter that stops once it has shown the leak; None if that was not requested or is not possible."""
        if self.enough is None or not isinstance(self.inverter, Stoppable):
            return None
        return self.inverter.until((1 - MARGIN) * self.enough)

    def _attack(self, cut: str, epochs: int, inverter: Inverter) -> CutRisk:
        stopping = self._stopping
        row, made = self._scan_cut(cut, epochs, stopping or inverter)
        if stopping is not None and row.epochs < epochs and self.enough is not None and self._kept(row) >= self.enough:
            stopped = row
            row, made = self._scan_cut(cut, epochs, inverter)
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


def _least(*values: float) -> float:
    """The lowest that is known; NaN if none is."""
    return min((value for value in values if not math.isnan(value)), default=math.nan)
