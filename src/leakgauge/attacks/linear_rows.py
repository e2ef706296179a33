"""Finds images that are alone in some unit of a fully connected first layer, from the update of a whole batch."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.found_images import batch_of, valid_range
from leakgauge.attacks.linear import first_layer_gradients
from leakgauge.core import Observation, Reconstruction, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import batch_size

SAME = 1e-3
"""Relative distance below which two rows show the same image."""
OUTSIDE = 1e-2
"""How far a pixel of a row may be outside the valid range, as a share of that range, because of rounding."""
COMPARED = 64
"""Random projections used to compare rows, instead of all pixels."""


@dataclass(frozen=True)
class LinearRows:
    """The attack made by :func:`linear_rows`."""

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began, size = time.perf_counter(), batch_size(seen)
        _, weight, bias = first_layer_gradients(victim, seen, seed=seed)
        rows = quotients(weight, bias)
        chosen, shown = distinct_images(rows, victim, seed=seed)
        x = chosen[:size].view(-1, *victim.space.shape).to(victim.dtype)
        note = f"{len(rows)} units fired; {shown} images appear in several of them, for {size} in the batch"
        return Reconstruction.single(
            batch_of(victim.space.project(x), size, victim), None, made_by=repr(self), began=began, notes=(note,)
        )


def quotients(weight: Tensor, bias: Tensor) -> Tensor:
    """∂W_j / ∂b_j for every unit j that any image reached: Σ_i δ_ij x_i / Σ_i δ_ij, which is the image itself if only one reached it.

    Ref: Boenisch et al. 2023 — input from the gradients of one unit
    """
    reached = bias != 0
    return weight[reached].double() / bias[reached].double()[:, None]


def distinct_images(rows: Tensor, victim: Victim, *, seed: int) -> tuple[Tensor, int]:
    """Rows by descending confidence, each image once, and how many of them appear in several units.

    Mixtures differ between units, so a row that appears in two units is a single image. Next come rows that are valid images; a
    mixture with weights of both signs usually is not.
    """
    if not len(rows):
        return rows, 0
    rng = torch.Generator().manual_seed(seed)
    probe = torch.randn(rows.shape[1], COMPARED, generator=rng, dtype=rows.dtype).to(rows.device)
    sketch = rows @ probe / rows.shape[1] ** 0.5
    scale = sketch.norm(dim=1)
    near = torch.cdist(sketch, sketch) <= SAME * torch.maximum(scale[:, None], scale[None])
    images = rows.view(-1, *victim.space.shape)
    dark, light = valid_range(victim, images)
    out = ((images - victim.space.project(images)).abs() / (light - dark)).flatten(1).amax(1)
    count = near.sum(1) * (out < OUTSIDE)
    order = sorted(range(len(rows)), key=lambda j: (-int(count[j]), float(out[j])))
    kept: list[int] = []
    taken = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    for j in order:
        if not bool(taken[j]):
            kept.append(j)
            taken |= near[j]
    return rows[kept], sum(int(count[j]) > 1 for j in kept)


@example("mlp")
@checked
def linear_rows() -> LinearRows:
    """Boenisch et al. 2023: single images of a batch, from units of a fully connected first layer that only one image reached.

        x̂ = ∂W_j / ∂b_j

    Works with honest weights too (a wide first layer has such units by chance), and finds many more images if a malicious server
    chose the weights (:class:`leakgauge.servers.TrapWeightServer`). The adversary does not know which units were reached by a single
    image; it first trusts rows that agree with another unit, then rows that are valid images. Images that were not found are grey.

    Deviations: the paper counts extracted images using the truth; here the adversary chooses without it.

    Ref: Boenisch et al. 2023 — extraction of single images of a batch
    """
    return LinearRows()
