"""The LeNet of Deep Leakage from Gradients: smooth activations and no pooling, so its gradient can be matched."""

from __future__ import annotations

from torch import Tensor, nn

from leakgauge.models.seeded import seeded


class LeNet(nn.Module):
    """5 × 5 convolutions of 12 channels with sigmoid, then one linear layer.

    Weights and biases are drawn from U(-0.5, 0.5), the wide initialisation that the published attack relies on: with torch's
    default, sigmoid layers have hardly any second derivative.

    Ref: Zhu, Liu, Han 2019, *Deep Leakage from Gradients*, section 4. Strides (2, 2, 1) follow iDLG (Zhao et al.
    2020); the first release of the DLG code has a fourth convolution, ``strides=(2, 2, 1, 1)``.
    """

    def __init__(
        self,
        *,
        in_channels: int = 3,
        side: int = 32,
        classes: int = 10,
        strides: tuple[int, ...] = (2, 2, 1),
        bound: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        with seeded(seed):
            channels = in_channels
            for stride in strides:
                layers += [nn.Conv2d(channels, 12, 5, stride, 2), nn.Sigmoid()]
                channels, side = 12, (side - 1) // stride + 1
            self.body = nn.Sequential(*layers)
            self.fc = nn.Linear(channels * side * side, classes)
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).flatten(1))
