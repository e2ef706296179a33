"""How a decoder is trained: the one loop that runs a recipe on cached features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core.randomness import private_randomness
from leakgauge.engine import RecordedStep
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import progress
from leakgauge.priors.decoders.networks import Calibrated
from leakgauge.priors.decoders.recipes import Recipe

FEWEST = 16
"""Public images below which nothing can be learned, not even a mean."""

CHUNK = 256
"""Images decoded at a time outside of training."""


ImageLoss = Callable[[Tensor, Tensor], Tensor]
"""Mean squared error of made images against the true ones, in whatever order is meant."""


@dataclass(frozen=True)
class History:
    """How a training went. Losses are mean squared errors of images in [0, 1], one per epoch.

    ``mean_image`` is the held-out loss of always answering with the mean training image, so ``held_out_fvu`` is the share
    of the pixels' variance that stays unexplained: 0 is a perfect copy, 1 is nothing learned.
    """

    trained_on: int
    held_out_on: int
    training: tuple[float, ...]
    held_out: tuple[float, ...]
    mean_image: float

    @property
    def best_epoch(self) -> int:
        """The epoch (from 1) whose weights are kept: the one with the lowest held-out loss."""
        return 1 + min(range(len(self.held_out)), key=self.held_out.__getitem__)

    @property
    def held_out_mse(self) -> float:
        return min(self.held_out)

    @property
    def held_out_fvu(self) -> float:
        return self.held_out_mse / self.mean_image if self.mean_image > 0 else math.nan


def train_decoder(
    network: nn.Module,
    features: Tensor,
    images: Tensor,
    *,
    recipe: Recipe,
    held_out: float | Tensor = 0.1,
    patience: int | None = None,
    enough: float | None = None,
    loss: ImageLoss = F.mse_loss,
    device: torch.device | None = None,
    seed: int = 0,
) -> tuple[dict[str, Tensor], History]:
    """Trains ``network`` in place to map ``features`` to ``images`` by squared ``loss``; gives its best weights and history.

    Features may be of any float type and lie anywhere (a memory map, another device); images are floats in [0, 1] or bytes.
    A share ``held_out`` of the pairs (or the pairs at these places) is never trained on: the epoch that is kept is chosen there, and with
    ``patience`` training stops when that many epochs have brought nothing better, with ``enough`` as soon as the held-out FVU is below it.
    On a GPU it runs in bfloat16 with channels last, and the step is recorded as a CUDA graph where all data lie there.

    Ref: Liu and Zhu 2025, section 2.2 — g ≈ f_edge⁻¹ learned from auxiliary data
    """
    device = device or features.device
    on_gpu = device.type == "cuda"
    rng = torch.Generator().manual_seed(seed)
    learn, check = _parts(len(features), held_out, rng)
    batch = min(recipe.batch, len(learn))
    steps = len(learn) // batch
    network.to(device)
    if on_gpu:
        _channels_last(network)
        images = _beside(images, features)
    if isinstance(network, Calibrated):
        network.calibrate(chosen(features, rows, device) for rows in learn.split(CHUNK))
    mean_image = _mean_image_loss(images, learn, check, device)
    state = recipe.begin(network.parameters(), steps)
    losses: list[float] = []
    checks: list[float] = []
    best: dict[str, Tensor] = {}
    step = _Step(network, state.optimizer, features, images, torch.zeros(batch, dtype=torch.long), device, loss)
    with private_randomness(seed, device), torch.enable_grad():  # a caller may be scoring, without gradients
        for epoch in range(recipe.epochs):
            network.train()
            step.total.zero_()
            order = learn[torch.randperm(len(learn), generator=rng)].to(features.device)
            for rows in order[: steps * batch].split(batch):
                step(rows)
                state.after_step()
            losses.append(float(step.total) / steps)
            checks.append(_loss(network, features, images, check, device, loss))
            if not (math.isfinite(losses[-1]) and math.isfinite(checks[-1])):
                raise Inapplicable(
                    f"the decoder diverged in epoch {epoch + 1} of {recipe.epochs} (loss {losses[-1]}, held out "
                    f"{checks[-1]}); a lower rate than {recipe.lr} may hold it"
                )
            if checks[-1] < min(checks[:-1], default=math.inf):
                best = {name: value.detach().clone() for name, value in network.state_dict().items()}
            state.after_epoch(checks[-1])
            progress.report(epoch + 1, recipe.epochs)
            if patience is not None and len(checks) - 1 - checks.index(min(checks)) >= patience:
                break
            if enough is not None and checks[-1] < enough * mean_image:
                break
    step.close()
    kept = {name: value.contiguous().cpu() for name, value in best.items()}
    return kept, History(len(learn), len(check), tuple(losses), tuple(checks), mean_image)


class _Step:
    """One step of the training on the pairs of given rows; ``total`` adds up the losses.

    On a GPU that holds features and images, the whole step is recorded, with its rows in one place.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        features: Tensor,
        images: Tensor,
        rows: Tensor,
        device: torch.device,
        loss: ImageLoss,
    ) -> None:
        self.network, self.optimizer, self.loss = network, optimizer, loss
        self.features, self.images, self.device = features, images, device
        self.rows = rows.to(features.device)
        self.total = torch.zeros((), device=device)
        self._take = RecordedStep(self._once) if _resident(features, images, device) else self._once

    def __call__(self, rows: Tensor) -> None:
        self.rows.copy_(rows)
        self._take()

    def close(self) -> None:
        """Lets go of the recording, which holds on to this object and with it to features and graph memory."""
        del self._take

    def _once(self) -> None:
        z, x = pair(self.features, self.images, self.rows, self.device)
        with _precision(self.device):
            made = self.network(z)
        loss = self.loss(made.float(), x)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.total += loss.detach()


def _resident(features: Tensor, images: Tensor, device: torch.device) -> bool:
    """Whether a step needs nothing from outside of the GPU, so it can be recorded."""
    return features.is_cuda and features.device == images.device == device


def _precision(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU. Entered for every pass: inside of one block, weights once converted would stay as they were."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def _beside(images: Tensor, features: Tensor) -> Tensor:
    """The images on the features' GPU if these are on one with room to spare, so a step needs nothing from elsewhere."""
    if not features.is_cuda or images.device == features.device:
        return images
    free, _ = torch.cuda.mem_get_info(features.device)
    return images.to(features.device) if images.numel() * images.element_size() < free // 8 else images


def _channels_last(network: nn.Module) -> None:
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def pair(features: Tensor, images: Tensor, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """The chosen features and images as float32 on ``device``; only these rows are copied."""
    return chosen(features, rows, device), as_images(images[rows.to(images.device)].to(device))


def chosen(features: Tensor, rows: Tensor | slice, device: torch.device) -> Tensor:
    z = features[rows if isinstance(rows, slice) else rows.to(features.device)].to(device, non_blocking=True).float()
    return z.contiguous(memory_format=torch.channels_last) if z.ndim == 4 and device.type == "cuda" else z


def as_images(images: Tensor) -> Tensor:
    """Floats in [0, 1]; bytes are divided by 255."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _parts(count: int, held_out: float | Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    if isinstance(held_out, Tensor):
        learn = torch.ones(count, dtype=torch.bool)
        learn[held_out] = False
        return learn.nonzero()[:, 0], held_out
    if not 0 < held_out < 1:
        raise BadInput(f"a decoder holds out a share of the public images between 0 and 1, got {held_out}")
    if count < FEWEST:
        raise BadInput(f"a decoder learns from at least {FEWEST} public images, got {count}; give more of them")
    order = torch.randperm(count, generator=rng)
    aside = max(1, round(held_out * count))
    if count - aside < 2:
        raise BadInput(f"holding out {aside} of {count} public images leaves too few to learn from; lower held_out")
    return order[aside:], order[:aside]


@torch.no_grad()
def _loss(
    network: nn.Module, features: Tensor, images: Tensor, rows: Tensor, device: torch.device, loss: ImageLoss
) -> float:
    network.eval()
    total = torch.zeros((), device=device)
    for piece in rows.split(CHUNK):
        z, x = pair(features, images, piece, device)
        with _precision(device):
            made = network(z)
        total += loss(made.float(), x) * len(piece)
    return float(total) / len(rows)


def _mean_image_loss(images: Tensor, learn: Tensor, check: Tensor, device: torch.device) -> float:
    mean = sum(piece.sum(0) for piece in _pieces(images, learn, device)) / len(learn)
    return sum(float((piece - mean).square().mean()) * len(piece) for piece in _pieces(images, check, device)) / len(
        check
    )


def _pieces(images: Tensor, rows: Tensor, device: torch.device) -> Iterator[Tensor]:
    for piece in rows.split(4 * CHUNK):
        yield as_images(images[piece.to(images.device)].to(device))
