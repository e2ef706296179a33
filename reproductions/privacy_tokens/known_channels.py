"""Whether ``identified`` reads the information of channels in which it is known, in the dimensions of the four networks' gradients.

    python -m reproductions.privacy_tokens.known_channels      (a minute on a CPU, 3 GB)

64 orthogonal signals of length d in Gaussian noise of deviation 1. Only the 64 coordinates along the signals matter, so the known value
is a simulation in these alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reproductions.privacy_tokens.leakage import identified, watched
from reproductions.privacy_tokens.setups import SETUPS

SIGNALS = 64
LENGTHS = (2.0, 4.0)


def known(length: float) -> float:
    """Nats that one noisy signal tells about which of the 64 it is."""
    rng = torch.Generator().manual_seed(1)
    scores = length * torch.randn(50_000, SIGNALS, dtype=torch.float64, generator=rng)
    scores[:, 0] += length**2
    return math.log(SIGNALS) + float(scores.log_softmax(1)[:, 0].mean())


def channel(length: float, dimensions: int) -> Tensor:
    rows = torch.zeros(SIGNALS, dimensions)
    places = torch.arange(SIGNALS)
    rows[places, dimensions // SIGNALS * places] = length
    return rows


def main() -> None:
    for name, setup in SETUPS.items():
        model = setup.make(0)
        size = sum(dict(model.named_parameters())[one].numel() for one in watched(model, setup))
        for length in LENGTHS:
            found = identified(channel(length, size), 1.0)
            read = f"{found['nats']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
            print(f"{name}, {size:,} values: {read} for {known(length):.2f} nats")


if __name__ == "__main__":
    main()
