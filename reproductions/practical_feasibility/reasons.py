"""Why a number is not the paper's: rules about what was measured beside it. All that apply are named, in this order.

Where the paper sees an image and we do not (*a miss*):

1. untrained network;
2. trained network with an accuracy below 85 %;
3. the oracle finds an image better by 0.05 in SSIM or more: it was there, but the adversary cannot tell which of its candidates it is;
4. 1 − cos at most 0.05: another image explains the gradient;
5. otherwise the search did not get there: the steps and 1 − cos are given.

Where we see an image and the paper does not (*a leak*):

1. and 2. as above;
3. SSIM at most that of mean colour or blur: no more than these would reach;
4. otherwise not found out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leakgauge.audit.verdict import RECONSTRUCTED, Check, judge
from reproductions.practical_feasibility.attacking import scores_of
from reproductions.practical_feasibility.ledger import Row, mean

DIFFER, DIFFER_LAYOUT = 0.05, 0.2
"""From here on two values of SSIM, and two correlations of layouts, differ."""
WELL_TRAINED = 0.85
MATCHED = 0.05
"""1 − cos up to which a gradient counts as explained."""


@dataclass(frozen=True)
class Beside:
    """What other parts found: accuracies on CIFAR-10 by network, and the checks of a reconstruction, frozen before."""

    accuracies: Mapping[str, float] = field(default_factory=dict)
    whole: Sequence[Check] = RECONSTRUCTED

    def level(self, row: Row) -> int:
        """0 where the verdict is infeasible, 1 for partial, 2 for feasible."""
        attack, null, baseline = (scores_of(row[kind]) for kind in ("attack", "null", "baseline"))
        return judge(attack, null, baseline, to_reconstruct=self.whole).outcome.severity

    def training(self, row: Row) -> list[str]:
        if not row["trained"]:
            return ["untrained here"]
        reached = self.accuracies.get(row.get("network", row["case"])) if row["data"] == "CIFAR-10" else None
        return [] if reached is None or reached >= WELL_TRAINED else [f"trained to {reached:.0%} only"]

    def miss(self, row: Row) -> str:
        found = self.training(row)
        own, best = ssim(row), ssim(row, "oracle")
        if best >= own + DIFFER:
            found.append(f"the oracle finds SSIM {best:.2f} among the same candidates")
        if row["mismatch"] <= MATCHED:
            found.append(f"another image explains the gradient (1 − cos = {row['mismatch']:.3f})")
        else:
            found.append(f"the search ended at 1 − cos = {row['mismatch']:.2f} after {row['steps']} steps")
        return f"{row['case']}: {', '.join(found)}"

    def leak(self, row: Row) -> str:
        found = self.training(row)
        if ssim(row) <= ssim(row, "baseline"):
            found.append(f"mean colour or blur alone reach SSIM {ssim(row, 'baseline'):.2f}")
        return f"{row['case']}: {', '.join(found) or 'not found out'}"

    def should_differ(self, leaking: list[Row], safe: list[Row]) -> str:
        """Why those of the first list do not leak clearly more than those of the second."""
        found = [self.miss(row) for row in leaking if self.level(row) == 0]
        found += [self.leak(row) for row in safe if self.level(row) > 0]
        return "; ".join(found)


def layout(row: Row, kind: str = "attack") -> float:
    return mean(row[kind]["layout"])


def ssim(row: Row, kind: str = "attack") -> float:
    return mean(row[kind]["ssim"])


def spread(rows: list[Row]) -> float:
    """Largest standard deviation of SSIM over the restarts of one of the rows."""
    found = []
    for row in rows:
        values = row["restart_ssim"]
        middle = mean(values)
        found.append(mean([(value - middle) ** 2 for value in values]) ** 0.5)
    return max(found)
