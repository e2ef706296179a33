"""Images that are alone in some unit of a fully connected first layer, from the update of a whole batch."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.attacks.found_images import batch_of, valid_range
from leakgauge.attacks.linear import first_layer_gradients
from leakgauge.core import Observation, Reconstruction, Victim
from leakgauge.core.examples import example
from leakgauge.inversion.labels import batch_size

SAME = 1e-3
"""Relative distance below which two rows show the same image."""
OUTSIDE = 1e-2
"""By how much of the range a pixel of a row may leave the valid images, for rounding."""
COMPARED = 64
"""Random projections on which rows are compared, in place of all pixels."""


@dataclass(frozen=True)
class LinearRows:
    """The attack made by :func:`linear_rows`."""

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began, size = time.perf_counter(), batch_size(seen)
        _, weight, bias = first_layer_gradients(victim, seen, seed=seed)
        rows = quotients(weight, bias)
        chosen, shown = told_apart(rows, victim, seed=seed)
        x = chosen[:size].view(-1, *victim.space.shape).to(victim.dtype)
        told = f"{len(rows)} units answered; {shown} images stand in several of them, for {size} in the batch"
        return Reconstruction.single(
            batch_of(victim.space.project(x), size, victim), None, made_by=repr(self), began=began, notes=(told,)
        )


def quotients(weight: Tensor, bias: Tensor) -> Tensor:
    """∂W_j / ∂b_j for every unit j that any image reached: Σ_i δ_ij x_i / Σ_i δ_ij, the image itself where one reached it alone.

    Ref: Boenisch et al. 2023 — input from the gradients of one unit
    """
    reached = bias != 0
    return weight[reached].double() / bias[reached].double()[:, None]


def told_apart(rows: Tensor, victim: Victim, *, seed: int) -> tuple[Tensor, int]:
    """Rows in the order of belief, each image once, and how many of them stand in several units.

    Mixtures differ from unit to unit, so what two units show alike is a single image. Then come rows that are valid images; a mixture
    whose weights have both signs mostly is none.
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
def linear_rows() -> LinearRows:
    """Boenisch et al. 2023: single images of a batch, from units of a fully connected first layer that only one of them reached.

        x̂ = ∂W_j / ∂b_j

    Works on honest weights as well (a wide first layer has such units by chance), and on many more images where a malicious server
    chose the weights (:class:`leakgauge.servers.TrapWeightServer`). The adversary does not know which units are reached by one image
    alone; it believes those that agree with another unit first, then those that are valid images. Images that were not found are grey.

    Deviations: the paper counts what was extracted with the truth at hand; here the adversary chooses without it.

    Ref: Boenisch et al. 2023 — extraction of single images of a batch
    """
    return LinearRows()
