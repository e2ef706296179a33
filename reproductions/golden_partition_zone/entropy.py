"""Eqs. (3) to (5) over the blocks: the bound that is to explain the zone, from the class radii of the committed rows.

Eq. (5) bounds H(x|z) from below by H(x) less the entropy bound of z. H(x) is the same at every block, so the bound rises exactly where
the subtracted term falls. At the decision level that is D/2·ln(2πe R_c²/D) + ln K. Rows hold the mean of R_c² over the classes, not its
maximum, and not the variance of Eq. (3), so the term of Eq. (4) is taken at all blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from statistics import mean

import torch
from torch import nn

from leakgauge.measures.features import Radii, decision_entropy
from reproductions.common.networks import IR152, VGG19
from reproductions.common.runner import Row
from reproductions.golden_partition_zone.results_rows import PAPERS_DECODER, by_block
from reproductions.golden_partition_zone.splits import SIDE

CLASSES = 10
NETWORKS: dict[str, tuple[str, Callable[[], VGG19 | IR152]]] = {
    "vgg19-curve": ("VGG19", VGG19),
    "ir152-curve": ("IR-152", IR152),
}


@dataclass(frozen=True)
class AtBlock:
    """``radius`` is R_c²/D, ``nats`` the subtracted term, ``fvu`` what the paper's decoder leaves; means over the seeds."""

    block: int
    dimensions: int
    radius: float
    nats: float
    fvu: float


@dataclass(frozen=True)
class Curve:
    name: str
    blocks: tuple[AtBlock, ...]

    def agreement(self) -> tuple[int, int]:
        """Of the pairs of blocks with the same D, how many have the larger FVU where the term is smaller; and how many pairs."""
        pairs = [(a, b) for a, b in combinations(self.blocks, 2) if a.dimensions == b.dimensions]
        return sum((a.nats - b.nats) * (a.fvu - b.fvu) < 0 for a, b in pairs), len(pairs)


def curves(rows: list[Row]) -> list[Curve]:
    made: list[Curve] = []
    for part, (name, network) in NETWORKS.items():
        for labels in ("one-hot", "LS+", "LS-"):
            radii, fvu = (longest(rows, column, part, labels) for column in ("radius_per_dimension", "fvu"))
            sizes = dimensions(network, list(radii))
            blocks = [
                AtBlock(b, sizes[b], mean(r), subtracted(mean(r), sizes[b]), mean(fvu[b])) for b, r in radii.items()
            ]
            made += [Curve(f"{name}, {labels}", tuple(blocks))] if blocks else []
    return made


def longest(rows: list[Row], column: str, part: str, labels: str) -> dict[int, list[float]]:
    """The column over the blocks with the paper's 100 decoder epochs where all blocks have them, else with 30."""
    short, hundred = (
        by_block(rows, column, part=name, labels=labels, decoder=PAPERS_DECODER) for name in (part, f"{part}-100")
    )
    return hundred if hundred.keys() >= short.keys() else short


def subtracted(radius: float, size: int) -> float:
    """D/2·ln(2πe R_c²/D) + ln K with R_c²/D = ``radius`` for every class and D = ``size``."""
    total = radius * size
    radii = Radii(dict.fromkeys(range(CLASSES), total), total, total, total, 1.0, size)
    return decision_entropy(radii).nats


def dimensions(network: Callable[[], VGG19 | IR152], blocks: list[int]) -> dict[int, int]:
    """Entries of one image's feature at each block, from a pass without numbers."""
    found: dict[int, int] = {}

    def keep(block: int) -> Callable[[nn.Module, object, torch.Tensor], None]:
        return lambda _module, _inputs, out: found.__setitem__(block, out[0].numel())

    with torch.device("meta"):
        model = network().eval()
        for block in blocks:
            model.get_submodule(model.cut(block)).register_forward_hook(keep(block))
        model(torch.zeros(1, 3, SIDE, SIDE))
    return found
