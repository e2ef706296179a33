"""IR-152 backwards: residual units of transposed convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from leakgauge.attacks.decoder import Shape
from leakgauge.priors.decoders.networks import Float32Sigmoid, Resize, doublings, feature_map, halved_widths


@dataclass(frozen=True)
class ReversedIR:
    """One unit per doubling (512-256-128-64-64 from 4 × 4), one unit to the image's channels, a 3 × 3 layer and a sigmoid.

    Deviations: where doubling misses the image's size, the last map is resized bilinearly; a feature as large as the image
    passes the last unit only.

    Ref: Liu and Zhu 2025, Table 5 — Inversion-IR152
    """

    least_width: int = 16

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        channels, height, _ = feature_map(feature, image)
        layers: list[nn.Module] = []
        for width in halved_widths(channels, doublings(height, image[1]), least=self.least_width):
            layers.append(ReversedUnit(channels, width, doubles=True))
            channels = width
        layers += [ReversedUnit(channels, image[0], doubles=False), Resize(*image[1:])]
        return nn.Sequential(*layers, nn.ConvTranspose2d(image[0], image[0], 3, 1, 1), Float32Sigmoid())


class ReversedUnit(nn.Module):
    """norm, transposed 3 × 3, PReLU, transposed 4 × 4 with stride 2 (or 3 × 3 with 1), norm; plus a transposed shortcut.

    The shortcut is 4 × 4 with stride 2 where the unit doubles, else 1 × 1 with norm. No biases.
    """

    def __init__(self, channels: int, width: int, *, doubles: bool) -> None:
        super().__init__()
        up = (4, 2, 1) if doubles else (3, 1, 1)
        self.residual = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ConvTranspose2d(channels, width, 3, 1, 1, bias=False),
            nn.PReLU(width),
            nn.ConvTranspose2d(width, width, *up, bias=False),
            nn.BatchNorm2d(width),
        )
        if doubles:
            self.shortcut: nn.Module = nn.ConvTranspose2d(channels, width, 4, 2, 1, bias=False)
        else:
            self.shortcut = nn.Sequential(nn.ConvTranspose2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + self.shortcut(x)
