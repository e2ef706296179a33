"""How close a first-layer reading comes to an image under DP-SGD: the law of reconstruction from scratch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakgauge.errors import BadInput


def from_scratch_mse(images: Tensor, deviation: Tensor, *, clipped: bool = True) -> Tensor:
    """E (x̂ − x)² of each image, (N,), for x̂ = x + s·N(0, I) with ``images`` = x in [0, 1], (N, C, H, W), and ``deviation`` = s, (N, C).

    Under DP-SGD the clipped gradient of a layer that reads the image is at best C·x/‖x‖, and the noise on it σC·N(0, I). Scaled back it
    is x̂ = x + σ‖x‖·N(0, I), with σ the noise multiplier and ‖x‖ the norm of the image as the layer sees it: s = σ‖x‖ times the range of
    one unit of the layer's input in pixels. Then E (x̂ − x)² = s². With ``clipped``, x̂ is cut off at 0 and 1, which every adversary can
    do; with a = −x/s and b = (1 − x)/s the mean over the pixels of

        s² (Φ(b) − Φ(a) − b φ(b) + a φ(a)) + x² Φ(a) + (1 − x)² (1 − Φ(b))

    No attack without knowledge about images does better; one with a prior can.

    Ref: Riess et al. 2024 — reconstruction from scratch under DP-SGD: X̂ ~ N(X, σ²‖X‖² I)
    """
    if images.dim() != 4 or deviation.shape != images.shape[:2]:
        raise BadInput(
            f"the law needs images (N, C, H, W) and deviations (N, C), got {tuple(images.shape)} and {tuple(deviation.shape)}"
        )
    if not bool((deviation > 0).all()):
        raise BadInput("the law needs positive deviations; without noise a first layer gives the image exactly")
    x, s = images.double(), deviation.double()[:, :, None, None]
    if not clipped:
        return s.square().expand_as(x).flatten(1).mean(1)
    a, b = -x / s, (1 - x) / s
    below, above = torch.special.ndtr(a), torch.special.ndtr(-b)
    inside = 1 - below - above - b * _density(b) + a * _density(a)
    return (s.square() * inside + x.square() * below + (1 - x).square() * above).flatten(1).mean(1)


def _density(z: Tensor) -> Tensor:
    return torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)


def from_scratch_psnr(images: Tensor, deviation: Tensor, *, clipped: bool = True) -> Tensor:
    """The PSNR in dB of the mean squared error of :func:`from_scratch_mse`, of each image; images have a range of 1.

    >>> grey = torch.full((1, 1, 8, 8), 0.5)
    >>> round(float(from_scratch_psnr(grey, torch.tensor([[0.1]]), clipped=False)), 1)
    20.0
    """
    return -10 * from_scratch_mse(images, deviation, clipped=clipped).log10()
