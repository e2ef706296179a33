"""A larger decoder than the paper's: residual units at every resolution."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from leakgauge.attacks.decoder import Shape
from leakgauge.errors import BadInput
from leakgauge.priors.decoders.networks import Float32Sigmoid, Resize, doublings, feature_map


@dataclass(frozen=True)
class Residual:
    """A 3 × 3 convolution, then per doubling a transposed convolution (4 × 4, stride 2) and ``units`` residual units.

    Maps start with as many channels as the feature, between ``width`` and 8 · ``width``, and lose half of them with each
    doubling, down to ``width``. The last convolution is 3 × 3 with a sigmoid. Not of the paper. At equal epochs it
    reconstructs better than :class:`Deconvolution`, at equal time it need not (``docs/split.md``).
    """

    width: int = 32
    units: int = 1

    def __post_init__(self) -> None:
        if self.width < 1 or self.units < 0:
            raise BadInput(f"Residual needs a positive width and no negative number of units, got {self!r}")

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        channels, height, _ = feature_map(feature, image)
        width = max(self.width, min(channels, 8 * self.width))
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), *self._refined(width)]
        for _ in range(doublings(height, image[1])):
            narrower = max(self.width, width // 2)
            layers += [nn.ConvTranspose2d(width, narrower, 4, 2, 1, bias=False), *self._refined(narrower)]
            width = narrower
        return nn.Sequential(*layers, Resize(*image[1:]), nn.Conv2d(width, image[0], 3, padding=1), Float32Sigmoid())

    def _refined(self, width: int) -> list[nn.Module]:
        return [nn.BatchNorm2d(width), nn.SiLU(), *(ResidualUnit(width) for _ in range(self.units))]


class ResidualUnit(nn.Module):
    """SiLU(x + BN(conv(SiLU(BN(conv(x))))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(x + self.body(x))
