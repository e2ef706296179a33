"""A multilayer perceptron: the gradient of its first layer reveals the input in closed form."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from leakgauge.models.seeded import seeded


class MLP(nn.Module):
    """Linear layers with ReLU on the flattened image; ``bias=False`` removes the gradient that the closed form divides by."""

    def __init__(
        self,
        *,
        shape: tuple[int, ...] = (1, 28, 28),
        hidden: tuple[int, ...] = (256, 128),
        classes: int = 10,
        bias: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        with seeded(seed):
            width = prod(shape)
            for size in hidden:
                layers += [nn.Linear(width, size, bias=bias), nn.ReLU()]
                width = size
            self.body = nn.Sequential(*layers)
            self.head = nn.Linear(width, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1)))
