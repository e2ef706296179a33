"""Can the reconstruction be told apart: where does its own true image rank among many candidates?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakgauge.measures.image import checked, checked_pair

FLAT = 1e-6  # an image whose pixels deviate less than this from their mean (root mean square) has no pattern
TIE = 1e-9
COPY = 1e-3
"""Images nowhere further apart than this, a quarter of a level of 8 bits, are the same."""


def rank(
    reconstructions: Tensor, truths: Tensor, pool: Tensor, *, alike: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tensor:
    """Rank (1 = best) of each reconstruction's own true image among all candidates, shape (N,), integers.

    ``truths[i]`` is the true image of ``reconstructions[i]`` (pair them first). Candidates are the distinct images of
    ``truths`` and ``pool`` together; ``pool`` may repeat the truths, as copies count once, also copies that were normalised and
    brought back, which differ in their last digits. Candidates are ordered by
    :func:`normalised_correlation`, so neither brightness nor contrast matters, or by another likeness ``alike`` of every
    image of one batch with every image of another. Ties count against the attack: a reconstruction without any pattern ranks last.
    """
    apart = rounding(truths)
    reconstructions, truths = checked_pair(reconstructions, truths)
    checked_pair(truths, pool, same_count=False)
    own, candidates = together(truths, checked(pool, "the pool").to(truths.device), apart=apart)
    likeness = (alike or normalised_correlation)(reconstructions, candidates)
    return (likeness >= likeness.gather(1, own[:, None]) - TIE).sum(1)  # its own image is one of those counted


def rounding(images: Tensor) -> float:
    """How far apart copies of these images may lie: a model in bfloat16 moves what it is given by a level of 8 bits or more."""
    return max(COPY, torch.finfo(images.dtype).eps) if images.is_floating_point() else COPY


def normalised_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of every image of ``a`` (N) with every image of ``b`` (M), shape (N, M), within [-1, 1].

    ρ = ⟨x - x̄, y - ȳ⟩ / (‖x - x̄‖ ‖y - ȳ‖) with x an image of ``a``, y one of ``b`` and the mean over all pixels and
    channels; 0 where an image is flat.

    Ref: Lewis 1995, Eq. (2) — normalised cross-correlation, at zero shift
    """
    return pattern(a) @ pattern(b).T


def pattern(images: Tensor) -> Tensor:
    """Each image flattened, without its mean and with length 1; zeros where it is flat."""
    flat = images.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    norm = centred.norm(dim=1, keepdim=True)
    return torch.where(norm > FLAT * flat.shape[1] ** 0.5, centred / norm, 0.0)


def together(truths: Tensor, pool: Tensor, *, apart: float = COPY) -> tuple[Tensor, Tensor]:
    """For each of ``truths`` its index among the candidates, and the candidates: the distinct images of both, those of ``truths`` first.

    Images of the pool that are nowhere more than ``apart`` from one of ``truths`` are copies of it.
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
    """For each image the index of its first copy among the distinct images, and the distinct images themselves."""
    seen: dict[bytes, int] = {}
    rows = (images + 0.0).cpu().numpy()  # -0.0 becomes 0.0
    index = torch.tensor([seen.setdefault(row.tobytes(), len(seen)) for row in rows], device=images.device)
    first = torch.full((len(seen),), len(images), device=images.device)
    first.scatter_reduce_(0, index, torch.arange(len(images), device=images.device), "amin")
    return index, images[first]
