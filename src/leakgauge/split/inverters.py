"""How features are turned back into images: what a scan trains at a cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from leakgauge.core.randomness import draw_indices
from leakgauge.measures.ridge import fit_ridge

Decode = Callable[[Tensor], Tensor]
"""From features (N, ...) to images (N, C, H, W) in [0, 1]."""


class Inverter(Protocol):
    """Learns from the adversary's own features and images; more ``epochs`` mean more effort.

    A learned decoder fits in one line: ``lambda z, x, *, epochs, seed: fit_on(z, x, epochs=epochs, seed=seed).decode``.
    Raises ``Inapplicable`` if it cannot be trained.
    """

    def __call__(self, features: Tensor, images: Tensor, /, *, epochs: int, seed: int) -> Decode: ...


@runtime_checkable
class Stoppable(Inverter, Protocol):
    """An inverter that can stop as soon as its FVU, on images it holds out itself, is below a number."""

    def until(self, fvu: float, /) -> Inverter: ...


@dataclass(frozen=True)
class RidgeInverter:
    """Ridge regression in closed form, see :func:`leakgauge.measures.ridge.fit_ridge`; epochs have no effect.

    It is an attack, and a weak one at shallow cuts: it shows a minimum of leakage, never a maximum.
    """

    most: int | None = None
    """Auxiliary images used, drawn by the seed (default: 4000 on a GPU, 1000 elsewhere); time grows with their square, then cube."""

    def __call__(self, features: Tensor, images: Tensor, /, *, epochs: int = 1, seed: int = 0) -> Decode:
        most = self.most or (4000 if features.device.type == "cuda" else 1000)
        if len(features) > most:
            rows = draw_indices(len(features), most, seed=seed)
            features, images = features[rows.to(features.device)], images[rows.to(images.device)]
        fitted = fit_ridge(features, images, seed=seed)

        def decode(sent: Tensor) -> Tensor:
            return fitted(sent).clamp(0, 1)

        return decode
