"""How features are turned back into images: what a scan trains at a cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from leakgauge.core.randomness import draw_indices
from leakgauge.errors import Inapplicable
from leakgauge.measures.baseline import mean_image
from leakgauge.measures.local_ridge import LocalRidge, as_map, fit_local_ridge
from leakgauge.measures.ridge import Ridge, fit_ridge

RIDGE, LOCAL_RIDGE = "ridge", "local ridge"
"""Names of the regressions."""

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


@runtime_checkable
class Named(Protocol):
    """A decode function that says which attack it is, where an inverter chooses among several."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class RidgeInverter:
    """Ridge regression in closed form, see :func:`leakgauge.measures.ridge.fit_ridge`; epochs have no effect.

    It is an attack, and a weak one at shallow cuts: it shows a minimum of leakage, never a maximum.
    """

    most: int | None = None
    """Auxiliary images used, drawn by the seed (default: 4000 on a GPU, 1000 elsewhere); time grows with their square, then cube."""

    def __call__(self, features: Tensor, images: Tensor, /, *, epochs: int = 1, seed: int = 0) -> Decode:
        return Fitted(self.fit(features, images, seed=seed), RIDGE)

    def fit(self, features: Tensor, images: Tensor, *, seed: int = 0) -> Ridge:
        """The regression itself, with its error on held-out images."""
        most = self.most or (4000 if features.device.type == "cuda" else 1000)
        if len(features) > most:
            rows = draw_indices(len(features), most, seed=seed)
            features, images = features[rows.to(features.device)], images[rows.to(images.device)]
        return fit_ridge(features, images, seed=seed)


@dataclass(frozen=True)
class LinearInverter:
    """The better of two regressions on images the adversary holds out: of whole images, and of patches.

    Ridge of whole images knows where things usually are, but has one sample per image: with a few hundred it cannot learn even
    the identity of 128×128 pixels. Ridge of patches (:func:`leakgauge.measures.local_ridge.fit_local_ridge`) has one sample per
    place. If that leaves less than ``clear`` of the variance, the other is not fitted.
    """

    most: int | None = None
    clear: float = 0.05

    def __call__(self, features: Tensor, images: Tensor, /, *, epochs: int = 1, seed: int = 0) -> Decode:
        local = _local(features, images, seed)
        if local is not None and local.held_out_mse < self.clear * _variance(images):
            return Fitted(local, LOCAL_RIDGE)
        whole = RidgeInverter(self.most).fit(features, images, seed=seed)
        if local is not None and local.held_out_mse < whole.held_out_mse:
            return Fitted(local, LOCAL_RIDGE)
        return Fitted(whole, RIDGE)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted regression as a decode function, with the name of the attack."""

    regression: Ridge | LocalRidge
    name: str

    def __call__(self, sent: Tensor) -> Tensor:
        return self.regression(sent).clamp(0, 1)


def _local(features: Tensor, images: Tensor, seed: int) -> LocalRidge | None:
    """None where the features have no places."""
    try:
        as_map(features[:1])
        return fit_local_ridge(features, images, seed=seed)
    except Inapplicable:
        return None


def _variance(images: Tensor) -> float:
    return float((images.double() - mean_image(images)).square().mean())
