"""Guesses that use no signal: trivial reconstructions that a verdict has to beat, and how much of the images a reconstruction explains."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.measures.image import check_images, check_pair, mse


def mean_colour(images: Tensor) -> Tensor:
    """Each image (N, C, H, W) replaced by its mean colour; same shape."""
    return blur(images, grid=1)


def blur(images: Tensor, *, grid: int = 4) -> Tensor:
    """Each image (N, C, H, W) reduced to ``grid`` x ``grid`` block means and enlarged bilinearly; same shape.

    A side shorter than ``grid`` keeps all its pixels.
    """
    if grid < 1:
        raise BadInput(f"the grid needs at least one cell per side, got {grid}")
    if images.ndim != 4 or images.numel() == 0 or not images.is_floating_point():
        raise BadInput(f"images must be a non-empty float batch (N, C, H, W), got {images.dtype} {tuple(images.shape)}")
    height, width = images.shape[-2:]
    means = F.adaptive_avg_pool2d(images, (min(grid, height), min(grid, width)))
    return F.interpolate(means, size=(height, width), mode="bilinear", align_corners=False)


def mean_image(images: Tensor) -> Tensor:
    """Mean of images (N, C, H, W), shape (1, C, H, W): the best guess if you know only what images look like."""
    return check_images(images).mean(0, keepdim=True)


def class_mean_images(images: Tensor, labels: Tensor, *, of: Tensor) -> Tensor:
    """For each label in ``of`` (M,) the mean of the ``images`` with that label, shape (M, C, H, W).

    The best guess if you know the class of an image and nothing else about it.
    """
    values = check_images(images)
    if labels.shape != (len(images),) or of.ndim != 1:
        raise BadInput(f"class means need one label per image, got {tuple(labels.shape)} for {len(images)} images")
    known = labels.unique()
    missing = sorted(set(of.tolist()) - set(known.tolist()))
    if missing:
        raise BadInput(f"class {missing[0]} has no image for its class mean; give images of every class")
    means = torch.stack([values[labels == label].mean(0) for label in known])
    return means[torch.searchsorted(known, of.to(known))]


def mse_per_pixel(a: Tensor, b: Tensor) -> Tensor:
    """The split-inference paper's MSE of each pair, shape (N,): squared error summed over channels, mean over pixels.

    1/(HW) Σ_{c,i,j} (x - y)², C times :func:`leakgauge.measures.image.mse`; 3 times for colour images.

    Ref: Liu and Zhu 2025, section 4.1 — mean squared error, in the unit of its tables
    """
    a, b = check_pair(a, b)
    return (a - b).square().sum(1).flatten(1).mean(1)


def psnr_of_batches(a: Tensor, b: Tensor, *, batch: int = 128) -> float:
    """The split-inference paper's PSNR in dB: computed from the mean MSE of each batch, then averaged over batches.

    Ref: Liu and Zhu 2025, section 4.1 — peak signal-to-noise ratio, in the unit of its tables
    """
    errors = mse(a, b)
    return float(torch.stack([-10 * torch.log10(part.mean()) for part in errors.split(batch)]).mean())


def most_exposed(errors: Tensor, *, share: float = 0.05) -> float:
    """Mean of the lowest ``share`` of the errors (N,), at least one: the attack's error on the images it reconstructs best.

    >>> most_exposed(torch.arange(100.0), share=0.05)
    2.0
    """
    if errors.ndim != 1 or len(errors) == 0 or not 0 < share <= 1:
        raise BadInput(f"the worst cases need errors (N,) and a share in (0, 1], got {tuple(errors.shape)} and {share}")
    count = max(1, round(share * len(errors)))
    return float(errors.double().sort().values[:count].mean())
