"""How similar two batches of images are, image by image, and which belong together: an attack on a batch cannot know the order.

Images are (N, C, H, W) with values in [0, 1]; the data range is 1. Everything is computed and returned in float64,
because the differences of near-equal images cancel in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput

WINDOW = 11
SIGMA = 1.5
K1, K2 = 0.01, 0.03
VIEWED = 64
"""Side in pixels up to which images are compared only as they are; larger images are also compared at a reduced size."""
SLACK = 1e-4  # how far rounding (interpolation, float16) may move a value out of [0, 1]


def check_images(images: Tensor, name: str = "images") -> Tensor:
    """``images`` in float64 and detached; ``BadInput`` unless non-empty (N, C, H, W), finite, in [0, 1]."""
    if images.ndim != 4 or images.numel() == 0:
        raise BadInput(f"{name} must be a non-empty batch (N, C, H, W), got shape {tuple(images.shape)}")
    values = images.detach().double()
    if not torch.isfinite(values).all():
        raise BadInput(f"{name} must be finite, got NaN or infinity in {_count_bad(values)} of {len(values)} images")
    low, high = values.min().item(), values.max().item()
    if low < -SLACK or high > 1 + SLACK:
        raise BadInput(f"{name} must be in [0, 1], got values from {low:g} to {high:g}; decode them first")
    return values


def _count_bad(values: Tensor) -> int:
    return int((~torch.isfinite(values)).flatten(1).any(1).sum())


def check_pair(a: Tensor, b: Tensor, *, same_count: bool = True) -> tuple[Tensor, Tensor]:
    """Both batches in float64; ``BadInput`` unless their images (and, by default, their counts) have the same shape."""
    start = 0 if same_count else 1
    if a.shape[start:] != b.shape[start:]:
        raise BadInput(f"both batches must have the same shape, got {tuple(a.shape)} and {tuple(b.shape)}")
    return check_images(a, "the first batch"), check_images(b, "the second batch")


def mse(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared error of each pair, shape (N,).

    MSE = 1/n Σ (x - y)² with x = ``a``, y = ``b`` and the sum over the n values (pixels and channels) of one image.

    >>> mse(torch.zeros(1, 3, 8, 8), torch.full((1, 3, 8, 8), 0.5)).tolist()
    [0.25]

    Ref: Horé 2010, Eq. (2) — mean squared error
    """
    a, b = check_pair(a, b)
    return _mean_square(a - b)


def mse_pairs(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared error of every image of ``a`` (N) with every image of ``b`` (M), shape (N, M).

    Every difference is computed explicitly: an exact copy scores exactly 0.
    """
    a, b = check_pair(a, b, same_count=False)
    return torch.stack([_mean_square(image - b) for image in a])


def _mean_square(difference: Tensor) -> Tensor:
    return difference.square().flatten(1).mean(1)


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each pair in dB, shape (N,); infinite where the images are equal.

    PSNR = 10 log10(L² / MSE) with L = 1, the data range, and MSE = ``mse(a, b)``.

    Ref: Horé 2010, Eq. (1) — peak signal-to-noise ratio
    """
    return -10 * torch.log10(mse(a, b))


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Mean structural similarity of each pair, shape (N,): mean of :func:`ssim_index` over positions and channels.

    The window is an 11 x 11 Gaussian with sigma 1.5; only positions where it fits into the image count. If a side is below 11, the
    window shrinks to the largest odd size that fits, with the same sigma; compare such values only with each other. Along a side of one
    pixel (a series) there is no window, and the other side has its own. Colour channels are treated separately.

    Ref: Wang 2004, Eq. (17) — mean SSIM over all window positions
    """
    a, b = check_pair(a, b)
    return _mean_ssim(_moments(a), _moments(b), _blur(a * b))


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    return _blur(x), _blur(x * x)


def _mean_ssim(of_a: tuple[Tensor, Tensor], of_b: tuple[Tensor, Tensor], product: Tensor) -> Tensor:
    (mean_a, square_a), (mean_b, square_b) = of_a, of_b
    index = ssim_index(
        mean_a, mean_b, square_a - mean_a * mean_a, square_b - mean_b * mean_b, product - mean_a * mean_b
    )
    return index.flatten(1).mean(1)


def downscale(images: Tensor) -> Tensor | None:
    """Images averaged down by the smallest integer factor that leaves no side above ``VIEWED`` pixels; None if no side is above it.

    SSIM uses a window of 11 pixels. On 32×32 that is a third of the image, on 224×224 a twentieth: there, grain that no viewer
    would mind decides the score.
    """
    height, width = images.shape[-2:]
    factor = -(-max(height, width) // VIEWED)
    if factor == 1:
        return None
    return F.interpolate(images, size=(max(1, height // factor), max(1, width // factor)), mode="area")


def ssim_index(mean_a: Tensor, mean_b: Tensor, var_a: Tensor, var_b: Tensor, cov: Tensor) -> Tensor:
    """Structural similarity at each position, from the local statistics there.

    SSIM = (2 μx μy + C1)(2 σxy + C2) / ((μx² + μy² + C1)(σx² + σy² + C2)) with μx = ``mean_a``, μy = ``mean_b``,
    σx² = ``var_a``, σy² = ``var_b``, σxy = ``cov`` (weights sum to one, so these are population moments),
    C1 = (K1 L)², C2 = (K2 L)², K1 = 0.01, K2 = 0.03 and L = 1.

    Ref: Wang 2004, Eq. (13) — structural similarity index
    """
    c1, c2 = K1**2, K2**2
    alike = (2 * mean_a * mean_b + c1) * (2 * cov + c2)
    return alike / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))


def _blur(x: Tensor) -> Tensor:
    """Gaussian-weighted local mean, at the positions where the window fits.

    A sum of shifted copies, one axis after the other: ten times faster in float64 than torch's convolution on CPU.
    """
    axes = [axis for axis in (-2, -1) if x.shape[axis] > 1]
    size = min((WINDOW, *(x.shape[axis] for axis in axes)))
    weights = _gaussian(size - 1 + size % 2)
    for axis in axes:
        length = x.shape[axis] - len(weights) + 1
        out = x.narrow(axis, 0, length) * weights[0]
        for k, weight in enumerate(weights[1:], start=1):
            out.add_(x.narrow(axis, k, length), alpha=weight)
        x = out
    return x


def _gaussian(size: int) -> list[float]:
    at = torch.arange(size, dtype=torch.float64) - size // 2
    weights = torch.exp(-0.5 * (at / SIGMA) ** 2)
    return (weights / weights.sum()).tolist()


def pair(reconstructions: Tensor, truths: Tensor) -> Tensor:
    """The permutation with ``truths[pair(reconstructions, truths)]`` in the order of ``reconstructions``.

    Entry i is the index of the truth matched to reconstruction i. It is the one-to-one matching with the least total squared
    error (Hungarian method), so a perfect but shuffled batch gets its order back.

    >>> truths = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> pair(truths[[2, 0, 1]], truths).tolist()
    [2, 0, 1]
    """
    if len(reconstructions) != len(truths):
        raise BadInput(f"pairing is one to one, got {len(reconstructions)} reconstructions and {len(truths)} truths")
    from scipy.optimize import linear_sum_assignment  # here, because it takes longer to import than this whole package

    _, columns = linear_sum_assignment(mse_pairs(reconstructions, truths).cpu().numpy())
    return torch.as_tensor(columns, dtype=torch.long, device=reconstructions.device)


def brighter(images: Tensor, labels: Tensor | None, *, than: tuple[Tensor, Tensor | None] | None = None) -> Tensor:
    """Which of the images are brighter than the median of their class, (N,): an attribute that every image has and no label tells.

    Medians are those of ``than`` (images and labels), by default of the images themselves; a class that it lacks, or no labels, has the
    median of all.

    >>> brighter(torch.tensor([0.1, 0.2, 0.8, 0.9]).view(4, 1, 1, 1), torch.tensor([0, 0, 1, 1])).tolist()
    [False, True, False, True]
    """
    known, classes = (images, labels) if than is None else than
    light, own = images.flatten(1).double().mean(1).cpu(), known.flatten(1).double().mean(1).cpu()
    limit = own.median().expand(len(light)).clone()
    if labels is not None and classes is not None:
        for one in classes.unique().tolist():
            limit[labels.cpu() == one] = own[classes.cpu() == one].median()
    return light > limit
