"""What a victim takes as input (images, series or sentences), and the conversion between that and what the model sees."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked

ROUNDING = 0.01
"""By how much of their range images in model space may exceed it: a type of 16 bits rounds, and resampling overshoots."""


def refuse_range(low: float, high: float, *, kind: str, source: str, bounds: tuple[float, float] = (0, 1)) -> None:
    """Refuse images of type ``kind`` with values from ``low`` to ``high`` unless these are within ``bounds``."""
    if low < bounds[0] or high > bounds[1]:
        raise BadInput(
            f"{source} holds {kind} images with values from {low:g} to {high:g}; values from {bounds[0]:g} to {bounds[1]:g} are "
            "expected, so scale them first (mean and std belong to Pixels)"
        )


class Space(Protocol):
    """The input domain of a victim. Attacks work in model space and never see a mean, a std or a tokenizer."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def start(self, n: int, rng: torch.Generator) -> Tensor: ...
    def project(self, x: Tensor) -> Tensor: ...
    def encode(self, image: Tensor) -> Tensor: ...
    def decode(self, x: Tensor) -> Tensor: ...


@lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Per-channel values, made once per device: a copy in every step would make it impossible to record a CUDA graph."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device, dtype=dtype).view(-1, 1, 1)


MOST_VALUES = 1 << 28
"""Of one image: a gibibyte in 32 bits."""


class _Scaled:
    """What spaces of numbers share: the model sees ``(value - mean) / std``, channel by channel, and values are within ``bounds``."""

    shape: tuple[int, ...]
    bounds: tuple[float, float]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def _refuse_scale(self) -> None:
        name = type(self).__name__
        if math.prod(self.shape) > MOST_VALUES:
            raise BadInput(f"{name} needs at most {MOST_VALUES} values, got {self.shape}")
        if not (math.isfinite(self.bounds[0]) and math.isfinite(self.bounds[1]) and self.bounds[0] < self.bounds[1]):
            raise BadInput(f"{name} needs finite bounds (low, high) with low < high, got {self.bounds}")
        for part, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.shape[0]):
                raise BadInput(f"{name} needs 1 or {self.shape[0]} values of {part}, got {len(values)}")
        if min(self.std) <= 0:
            raise BadInput(f"{name} needs a positive std, got {self.std}")

    def _affine(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (_constant(values, like.device, like.dtype) for values in (self.mean, self.std))
        return (mean, std) if len(self.shape) == 3 else (mean[..., 0], std[..., 0])

    def start(self, n: int, rng: torch.Generator) -> Tensor:
        """Standard normal noise in model space, shape (n, *shape)."""
        return torch.randn(n, *self.shape, generator=rng)

    def encode(self, image: Tensor) -> Tensor:
        """From values (within ``bounds``) to the model's input."""
        mean, std = self._affine(image)
        return (image - mean) / std

    def values(self, x: Tensor) -> Tensor:
        """From the model's input to values, also beyond ``bounds``."""
        mean, std = self._affine(x)
        return x * std + mean

    def project(self, x: Tensor) -> Tensor:
        """The nearest valid sample, in model space."""
        mean, std = self._affine(x)
        low, high = ((bound - mean) / std for bound in self.bounds)
        return torch.minimum(torch.maximum(x, low), high)

    def outside(self, x: Tensor) -> tuple[float, float] | None:
        """The lowest and highest value of samples (model space) if they exceed ``bounds`` by more than rounding."""
        low, high = (float(end) for end in self.values(x).aminmax())
        slack = ROUNDING * (self.bounds[1] - self.bounds[0])
        return (low, high) if low < self.bounds[0] - slack or high > self.bounds[1] + slack else None


@checked
@dataclass(frozen=True)
class Pixels(_Scaled):
    """Images of ``shape`` = (channels, height, width). The model sees ``(image - mean) / std``.

    >>> space = Pixels((1, 2, 2), mean=(0.5,), std=(0.25,))
    >>> space.encode(torch.ones(1, 1, 2, 2)).unique().tolist()
    [2.0]
    """

    shape: tuple[int, ...]
    bounds: tuple[float, float] = (0.0, 1.0)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for name in ("shape", "bounds", "mean", "std"):  # lists are welcome
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.shape) != 3 or min(self.shape) < 1:
            hint = ""
            if len(self.shape) in (1, 2) and min(self.shape) >= 1:
                channels, length = self.shape if len(self.shape) == 2 else (1, *self.shape)
                hint = f"; for series give a Series({channels}, {length}), for columns of a table a Table"
            raise BadInput(f"Pixels needs a shape (channels, height, width) of positive sizes, got {self.shape}{hint}")
        self._refuse_scale()

    def decode(self, x: Tensor) -> Tensor:
        """From the model's input to an image in [0, 1], clipped."""
        low, high = self.bounds
        return ((self.values(x) - low) / (high - low)).clamp(0, 1)

    def refuse_outside(self, x: Tensor) -> None:
        """Refuse samples (model space) that are no images: bytes as floats, or values normalised with another mean and std."""
        if ends := self.outside(x):
            refuse_range(*ends, kind=str(x.dtype).removeprefix("torch."), source="the batch", bounds=self.bounds)


@checked
@dataclass(frozen=True)
class Series(_Scaled):
    """Series of ``length`` values in each of ``channels``, such as leads of an ECG or axes of a sensor. The model sees
    ``(value - mean) / std``, shape (channels, length). ``bounds`` are the values that can occur.

    >>> space = Series(1, 3, bounds=(-4, 4), mean=(1.0,), std=(2.0,))
    >>> space.encode(torch.tensor([[3.0, 1.0, -3.0]])).tolist()
    [[1.0, 0.0, -2.0]]
    >>> space.decode(torch.tensor([[1.0, 0.0, 9.0]])).tolist()
    [[3.0, 1.0, 4.0]]
    """

    channels: int
    length: int
    bounds: tuple[float, float] = (-1.0, 1.0)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    shape: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("bounds", "mean", "std"):  # lists are welcome
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "shape", (self.channels, self.length))
        if self.channels < 1 or self.length < 2:
            raise BadInput(
                f"Series needs at least 1 channel and a length of at least 2, got {self.channels} and {self.length}"
            )
        self._refuse_scale()

    def decode(self, x: Tensor) -> Tensor:
        """From the model's input to values within ``bounds``."""
        return self.values(x).clamp(*self.bounds)

    def refuse_outside(self, x: Tensor) -> None:
        """Refuse series (model space) whose values cannot occur: bounds are part of what the adversary knows."""
        if ends := self.outside(x):
            raise BadInput(
                f"the series hold values from {ends[0]:g} to {ends[1]:g}, but Series says that they are from {self.bounds[0]:g} to "
                f"{self.bounds[1]:g}; give it other bounds, or its mean and std if the series are normalised already"
            )

    def picture(self, values: Tensor) -> Tensor:
        """Values (..., channels, length) as images one pixel high, in [0, 1]: shape (..., channels, 1, length)."""
        low, high = self.bounds
        return ((values - low) / (high - low)).clamp(0, 1).unsqueeze(-2)


def as_images(space: Space, x: Tensor) -> Tensor:
    """The model's input as images in [0, 1], which image measures compare; series are one pixel high."""
    shown = space.decode(x)
    return space.picture(shown) if isinstance(space, Series) else shown


@checked
@dataclass(frozen=True)
class Tokens:
    """Sentences of ``length`` token ids below ``vocab``: integers, which can be looked up but not differentiated.

    >>> Tokens(3, vocab=5).project(torch.tensor([[-2, 4, 9]])).tolist()
    [[0, 4, 4]]
    """

    length: int
    vocab: int

    def __post_init__(self) -> None:
        if self.length < 1 or self.vocab < 1:
            raise BadInput(f"Tokens needs a positive length and vocabulary, got {self.length} and {self.vocab}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    def start(self, n: int, rng: torch.Generator) -> Tensor:
        """Ids drawn uniformly, shape (n, length)."""
        return torch.randint(self.vocab, (n, self.length), generator=rng)

    def project(self, x: Tensor) -> Tensor:
        """The nearest valid ids."""
        return x.round().clamp(0, self.vocab - 1).long()

    def encode(self, image: Tensor) -> Tensor:
        """The ids, in the type that a look-up needs."""
        return image.long()

    def decode(self, x: Tensor) -> Tensor:
        return x
