"""Trains several small models of one shape at once, to say what a defense costs in accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakgauge.engine import TF32

BATCH = 500


def accuracies(
    models: Sequence[nn.Module],
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    frozen: Sequence[Sequence[str]],
    epochs: int,
    device: torch.device,
    lr: float = 1e-3,
    seed: int = 0,
) -> list[float]:
    """Test accuracy of each model after training all of them on the same batches.

    ``frozen`` names the parameters of each model that stay as they are. AdamW with one learning-rate cycle, batches of
    500, colours standardised, mirrored at random and shifted by up to 2 pixels; on a GPU products are in TF32. Models
    see the same batches in the same order, so they differ by what they are and by their initial weights alone.
    """
    parameters, buffers = stack_module_state([m.to(device) for m in models])
    moving = {name: _moving(value, name, frozen) for name, value in parameters.items()}
    skeleton = models[0]

    def one(own: dict[str, Tensor], images: Tensor) -> Tensor:
        return functional_call(skeleton, own, (images,))

    every = vmap(one, in_dims=(0, None))
    mean, std = train[0].mean((0, 2, 3), keepdim=True), train[0].std((0, 2, 3), keepdim=True)
    x, y = ((train[0] - mean) / std).to(device), train[1].to(device)
    rng = torch.Generator(device=device).manual_seed(seed)
    steps = epochs * max(1, len(x) // BATCH)
    optimizer = torch.optim.AdamW(list(parameters.values()), lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, max(2, steps), pct_start=0.2)
    plain = partial(sdpa_kernel, SDPBackend.MATH)  # the fused kernels of attention know no vmap
    for number in range(steps):
        if number % max(1, len(x) // BATCH) == 0:
            order = torch.randperm(len(x), generator=rng, device=device)
        at = number * BATCH % max(1, len(x) // BATCH * BATCH)
        rows = order[at : at + BATCH]  # pyright: ignore[reportPossiblyUnboundVariable]
        images = _shaken(x[rows], rng, number)
        with plain(), TF32().inside(device):
            logits = every({**parameters, **buffers}, images)
        loss = F.cross_entropy(logits.flatten(0, 1), y[rows].repeat(len(models))) * len(models)
        grads = torch.autograd.grad(loss, list(parameters.values()))
        for (name, value), gradient in zip(parameters.items(), grads, strict=True):
            value.grad = gradient * moving[name]
        optimizer.step()
        schedule.step()
    with plain(), torch.no_grad(), TF32().inside(device):
        guesses = [
            every({**parameters, **buffers}, part.to(device)).argmax(-1).cpu()
            for part in ((test[0] - mean) / std).split(BATCH)
        ]
    return [float(v) for v in (torch.cat(guesses, 1) == test[1]).double().mean(1)]


def _moving(value: Tensor, name: str, frozen: Sequence[Sequence[str]]) -> Tensor:
    """1 for each model that trains this parameter, 0 for each that does not, in a shape that multiplies its gradient."""
    flags = [0.0 if name in names else 1.0 for names in frozen]
    return torch.tensor(flags, device=value.device).view(-1, *[1] * (value.dim() - 1))


def _shaken(images: Tensor, rng: torch.Generator, number: int) -> Tensor:
    """Half of the images mirrored, and all of the batch shifted by -2 to 2 pixels (the edge comes back on the other side)."""
    mirrored = torch.rand(len(images), generator=rng, device=images.device) < 0.5
    images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return images.roll((number % 5 - 2, number // 5 % 5 - 2), (2, 3))
