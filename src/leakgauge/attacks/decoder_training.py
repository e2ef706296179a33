"""How a decoder is trained: two recipes and the one loop that runs them on cached features."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks.decoders.shapes import Calibrated
from leakgauge.core import private_randomness
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import progress

FEWEST = 16
"""Public images below which nothing can be learned, not even a mean."""

SHORTEST_CYCLE = 4
"""Steps below which a rate cannot rise and fall; it stays where it is."""

CHUNK = 256
"""Images decoded at a time outside of training."""


class Steps(Protocol):
    """A recipe under way: told of every step and of every epoch with its held-out loss."""

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...
    def after_step(self) -> None: ...
    def after_epoch(self, held_out: float) -> None: ...


class Training(Protocol):
    """A recipe: how long, in which batches, and by which optimiser and schedule."""

    @property
    def epochs(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def batch(self) -> int: ...
    def begin(self, parameters: Iterable[nn.Parameter], steps_an_epoch: int, /) -> Steps: ...


@dataclass(frozen=True)
class OneCycle:
    """AdamW whose rate rises to ``lr`` and falls to nothing once, its momentum the other way round.

    A dozen epochs do what the paper's recipe does in many.
    """

    epochs: int = 12
    lr: float = 2e-3
    batch: int = 64
    weight_decay: float = 0.01

    def begin(self, parameters: Iterable[nn.Parameter], steps_an_epoch: int, /) -> Steps:
        optimizer = torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
        total = self.epochs * steps_an_epoch
        if total < SHORTEST_CYCLE:
            return _Constant(optimizer)
        rising = 0.2 if total >= 10 else 0.5  # torch divides by zero where the rising part has a single step
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total, pct_start=rising)
        return _OneCycleSteps(optimizer, schedule)


@dataclass(frozen=True)
class _Constant:
    optimizer: torch.optim.Optimizer

    def after_step(self) -> None:
        pass

    def after_epoch(self, held_out: float) -> None:
        pass


@dataclass(frozen=True)
class _OneCycleSteps:
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.OneCycleLR

    def after_step(self) -> None:
        self.schedule.step()

    def after_epoch(self, held_out: float) -> None:
        pass


@dataclass(frozen=True)
class Plateau:
    """Adam with β₁ = 0.5 and AMSGrad; the rate is halved when the held-out loss has not fallen for ``patience`` epochs.

    Deviations: the released code watches the loss on the test set and picks its best epoch there; here both are done on
    a part of the public images.

    Ref: Liu and Zhu 2025, section 4.1 — training of the inversion models
    """

    epochs: int = 100
    lr: float = 2e-4
    batch: int = 128
    betas: tuple[float, float] = (0.5, 0.999)
    patience: int = 8

    def begin(self, parameters: Iterable[nn.Parameter], steps_an_epoch: int, /) -> Steps:
        optimizer = torch.optim.Adam(parameters, lr=self.lr, betas=self.betas, amsgrad=True)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=self.patience)
        return _PlateauSteps(optimizer, schedule)


@dataclass(frozen=True)
class _PlateauSteps:
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.ReduceLROnPlateau

    def after_step(self) -> None:
        pass

    def after_epoch(self, held_out: float) -> None:
        self.schedule.step(held_out)


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
    training: Training,
    held_out: float = 0.1,
    patience: int | None = None,
    device: torch.device | None = None,
    seed: int = 0,
) -> tuple[dict[str, Tensor], History]:
    """Trains ``network`` in place to map ``features`` to ``images`` by squared error; gives its best weights and history.

    Features may be of any float type and lie anywhere (a memory map, another device); images are floats in [0, 1] or bytes.
    A share ``held_out`` of the pairs is never trained on: the epoch that is kept is chosen there, and with ``patience``
    training stops when that many epochs have brought nothing better. On a GPU it runs in bfloat16 with channels last.

    Ref: Liu and Zhu 2025, section 2.2 — g ≈ f_edge⁻¹ learned from auxiliary data
    """
    device = device or features.device
    on_gpu = device.type == "cuda"
    rng = torch.Generator().manual_seed(seed)
    learn, check = _parts(len(features), held_out, rng)
    batch = min(training.batch, len(learn))
    steps = len(learn) // batch
    network.to(device)
    if on_gpu:
        _channels_last(network)
    if isinstance(network, Calibrated):
        network.calibrate(chosen(features, rows, device) for rows in learn.split(CHUNK))
    state = training.begin(network.parameters(), steps)
    losses: list[float] = []
    checks: list[float] = []
    best: dict[str, Tensor] = {}
    precision = torch.autocast(device.type, torch.bfloat16, enabled=on_gpu)
    with private_randomness(seed, device), precision, torch.enable_grad():  # a caller may be scoring, without gradients
        for epoch in range(training.epochs):
            network.train()
            total = torch.zeros((), device=device)
            order = learn[torch.randperm(len(learn), generator=rng)].to(features.device)
            for rows in order[: steps * batch].split(batch):
                z, x = pair(features, images, rows, device)
                loss = F.mse_loss(network(z).float(), x)
                state.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                state.optimizer.step()
                state.after_step()
                total += loss.detach()
            losses.append(float(total) / steps)
            checks.append(_loss(network, features, images, check, device))
            if not (math.isfinite(losses[-1]) and math.isfinite(checks[-1])):
                raise Inapplicable(
                    f"the decoder diverged in epoch {epoch + 1} of {training.epochs} (loss {losses[-1]}, held out "
                    f"{checks[-1]}); a lower rate than {training.lr} may hold it"
                )
            if checks[-1] < min(checks[:-1], default=math.inf):
                best = {name: value.detach().clone() for name, value in network.state_dict().items()}
            state.after_epoch(checks[-1])
            progress.report(epoch + 1, training.epochs)
            if patience is not None and len(checks) - 1 - checks.index(min(checks)) >= patience:
                break
    mean_image = _mean_image_loss(images, learn, check, device)
    kept = {name: value.contiguous().cpu() for name, value in best.items()}
    return kept, History(len(learn), len(check), tuple(losses), tuple(checks), mean_image)


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


def _parts(count: int, held_out: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
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
def _loss(network: nn.Module, features: Tensor, images: Tensor, rows: Tensor, device: torch.device) -> float:
    network.eval()
    total = torch.zeros((), device=device)
    for piece in rows.split(CHUNK):
        z, x = pair(features, images, piece, device)
        total += F.mse_loss(network(z).float(), x) * len(piece)
    return float(total) / len(rows)


def _mean_image_loss(images: Tensor, learn: Tensor, check: Tensor, device: torch.device) -> float:
    mean = sum(piece.sum(0) for piece in _pieces(images, learn, device)) / len(learn)
    return sum(float((piece - mean).square().mean()) * len(piece) for piece in _pieces(images, check, device)) / len(
        check
    )


def _pieces(images: Tensor, rows: Tensor, device: torch.device) -> Iterator[Tensor]:
    for piece in rows.split(4 * CHUNK):
        yield as_images(images[piece.to(images.device)].to(device))
