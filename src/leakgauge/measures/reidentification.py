"""Re-identification: where does the true image rank among many candidates?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakgauge.measures.image import check_images, check_pair

FLAT = 1e-6  # an image with a smaller root mean square deviation from its mean has no pattern
TIE = 1e-9
COPY = 1e-3
"""Images that differ nowhere by more than this, a quarter of an 8-bit level, are copies."""


def rank(
    reconstructions: Tensor, truths: Tensor, pool: Tensor, *, alike: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tensor:
    """Rank (1 = best) of each reconstruction's own true image among all candidates, shape (N,), integers.

    ``truths[i]`` is the true image of ``reconstructions[i]`` (pair them first). Candidates are the distinct images of
    ``truths`` and ``pool`` together. ``pool`` may repeat the truths: copies count once, including copies that were normalised and
    decoded and differ in the last digits. Candidates are ordered by :func:`normalised_correlation`, so brightness and contrast do
    not matter, or by ``alike``, another similarity of every image of one batch with every image of another. Ties count against
    the attack: a reconstruction without any pattern ranks last.
    """
    apart = rounding_error(truths)
    reconstructions, truths = check_pair(reconstructions, truths)
    check_pair(truths, pool, same_count=False)
    own, candidates = merge_candidates(truths, check_images(pool, "the pool").to(truths.device), apart=apart)
    likeness = (alike or normalised_correlation)(reconstructions, candidates)
    return (likeness >= likeness.gather(1, own[:, None]) - TIE).sum(1)  # includes its own image


def rounding_error(images: Tensor) -> float:
    """How much copies of these images may differ: a bfloat16 model changes its input by an 8-bit level or more."""
    return max(COPY, torch.finfo(images.dtype).eps) if images.is_floating_point() else COPY


def normalised_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of every image of ``a`` (N) with every image of ``b`` (M), shape (N, M), within [-1, 1].

    ρ = ⟨x - x̄, y - ȳ⟩ / (‖x - x̄‖ ‖y - ȳ‖) with x an image of ``a``, y one of ``b`` and the mean over all pixels and
    channels; 0 if an image is flat.

    Ref: Lewis 1995, Eq. (2) — normalised cross-correlation, at zero shift
    """
    return pattern(a) @ pattern(b).T


def pattern(images: Tensor) -> Tensor:
    """Each image flattened, without its mean and with length 1; zeros if it is flat."""
    flat = images.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    norm = centred.norm(dim=1, keepdim=True)
    return torch.where(norm > FLAT * flat.shape[1] ** 0.5, centred / norm, 0.0)


def merge_candidates(truths: Tensor, pool: Tensor, *, apart: float = COPY) -> tuple[Tensor, Tensor]:
    """For each of ``truths`` its index among the candidates, and the candidates: the distinct images of both, ``truths`` first.

    An image of the pool that differs nowhere by more than ``apart`` from one of ``truths`` is a copy of it.
    """
    index, images = _distinct(torch.cat([truths, pool]))
    own = index[: len(truths)]
    known = int(own.max()) + 1
    rest = images[known:]
    copies = torch.zeros(len(rest), dtype=torch.bool, device=rest.device)
    if len(rest):
        for one in images[:known]:
            copies |= (rest - one).abs().flatten(1).amax(1) <= apart
    return own, torch.cat([images[:known], rest[~copies]])


def _distinct(images: Tensor) -> tuple[Tensor, Tensor]:
    """For each image the index of its first copy among the distinct images, and these distinct images."""
    seen: dict[bytes, int] = {}
    rows = (images + 0.0).cpu().numpy()  # -0.0 becomes 0.0
    index = torch.tensor([seen.setdefault(row.tobytes(), len(seen)) for row in rows], device=images.device)
    first = torch.full((len(seen),), len(images), device=images.device)
    first.scatter_reduce_(0, index, torch.arange(len(images), device=images.device), "amin")
    return index, images[first]
