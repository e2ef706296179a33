"""Trains one network on 32×32 images: bfloat16, channels last, one warm-up and one half cosine of the learning rate.

On a GPU the step (forward, backward, clipping, optimizer) is recorded as a CUDA graph. These networks run thousands of small
kernels a step on images of this size, and launching them one by one took longer than running them: 67 ms a step of 512 images
for ConvNeXt-T with ImageNet's stem, where 8×8 places are left of an image.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core import Pixels
from leakgauge.engine import RecordedStep
from reproductions.practical_feasibility.optimizers import Muon, Nesterov, hidden_matrices


@dataclass(frozen=True)
class Recipe:
    """``lr`` is the peak, reached after the share ``warm_up`` of the steps. ``hole`` is the side of the square an image loses."""

    lr: float
    decay: float
    warm_up: float
    clip: float
    batch: int
    hole: int
    momentum: float | None = None
    """Of SGD with Nesterov's momentum; None means AdamW."""
    muon: bool = False
    """Muon in place of AdamW, for the hidden matrices."""
    mixed: float = 0.0
    """Share of the images that get a square of another one, and of its label."""


RESIDUAL = Recipe(lr=0.4, decay=5e-4, warm_up=0.25, clip=5.0, batch=512, hole=8, momentum=0.9)
"""The usual short recipe for ResNet18: 93 % after 20 epochs."""

CONVNEXT = Recipe(lr=1e-3, decay=0.05, warm_up=0.1, clip=1.0, batch=128, hole=0)
ATTENTION = Recipe(lr=5e-4, decay=0.05, warm_up=0.1, clip=1.0, batch=128, hole=8, muon=True)
_SWIN = Recipe(lr=2.5e-4, decay=0.05, warm_up=0.1, clip=1.0, batch=256, hole=8, mixed=0.5)
SWIN = (_SWIN, *(replace(_SWIN, muon=True, lr=lr) for lr in (1e-3, 2e-3)))
"""For 20 to 50 epochs from nothing. Batches of 512 with a rate of 1e-3 had brought Swin-T to 75 % in 29 epochs: 2,800 updates.

- A quarter of the batch gives four times the updates for the same images. Batches of 128, a rate of 1e-3, a warm-up of a tenth and decay
  0.05 are what Lee et al. 2021 (arXiv 2112.13492) train Swin with on CIFAR-10 with patches of 2 and windows of 4, for 100 epochs and with
  stronger augmentation. Here that rate was too high for attention: Swin-T underfitted (75.5 %, 83 % on training images, 62 epochs of
  batches of 256), and ViT-B stood at 35 % after one epoch and after three. Swin's own paper has 2.5e-4 for a batch of 256:
  after 390 steps with batches of 128 Swin-T was right for 44 % with it (of 1,000 test images, on a CPU), with 1e-3 for 20 %.
  For 53 epochs it gave 83.6 %, with 93.2 % on training images; the lowest loss after 400 steps had chosen it among four rates.
- So Muon is tried beside AdamW: a small Swin (width 32, five blocks, 8,000 images, 25 epochs, CPU, one seed) was right for 47 % of 2,000
  test images with AdamW at 2.5e-4, for 64 % with Muon at 1e-3, and for 68 % with 2e-3 after 20 epochs. The other attention networks, with
  little time, get it at half the lower rate, untried: they are larger. These and the next figures led to the recipe and prove nothing
  else: they were tried by hand on a Swin that no script here makes, with one square for a whole batch. ``accuracy.py`` measures the recipe.
- With Muon it overfits sooner: on 4,000 images (45 epochs at 2e-3) 95 % of training and 60.6 % of test images were right, with squares of
  other images in half of them 83 % and 62.4 %. So these are in Swin's recipe; where time ends the training first (25 epochs on 8,000 images
  at 1e-3) they cost 2.3 points.
- A small ConvNeXt (filipbasara0/simple-convnext) is reported to reach 92 % in 100 epochs at 1e-3, and 12 points less with a stem of 4×4.
- Swin's step of 128 images takes 10 ms on an H200, about as long as its 2,000 small kernels need to start: twice the batch costs little
  more, and gives more epochs in the same time.
- Images are shifted and mirrored; those of attention, which overfits first, lose a square as well.
- Clip and label smoothing are those of the networks' papers; stochastic depth is off, as in the attacked networks.
"""

SMOOTHING = 0.1
AT_ONCE = 16
"""Batches whose images are shaken together."""
EVALUATION = 6.0
"""Seconds kept for recording the step and for the test images."""
TRIED, JUDGED = 300, 60
"""Steps with each of several recipes, and how many of the last are judged by their loss."""
SOME = 2000
"""Training images on which the accuracy is measured too."""


@dataclass(frozen=True)
class Trained:
    accuracy: float
    train_accuracy: float
    """On training images as they are: far above the other it means overfitting, close to it too short a training."""
    epochs: int
    images: int
    recipe: Recipe
    seconds: float
    ms_per_step: float
    note: str
    """Whether the step was recorded, and if not, why; and how images lie in memory where two ways were tried."""


def trained(
    model: nn.Module,
    space: Pixels,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    recipe: Recipe | Sequence[Recipe],
    seconds: float,
    device: torch.device,
    epochs: int | None = None,
    most_epochs: int = 60,
    seed: int = 0,
) -> Trained:
    """Trains ``model`` in place for ``epochs``, or for as many as fit into ``seconds``, measured on a copy before the start.

    Images (in [0, 1]) are shifted by up to 4 pixels and mirrored, and may lose a square. Of several recipes, which may differ in how they
    step, the best is taken.
    """
    began = time.perf_counter()
    recipes = [recipe] if isinstance(recipe, Recipe) else list(recipe)
    model.to(device).train()
    x, y = space.encode(train[0].to(device)), targets(train[1].to(device))
    batch = min(recipes[0].batch, len(x))
    in_epoch = len(x) // batch
    layout, per_step = _faster_layout(model, recipes[0], x[:batch], y[:batch])
    recipe = _best_recipe(model, recipes, x, y, layout, seed=seed)
    if recipe.muon:
        per_step = _measured(model, recipe, x[:batch], y[:batch], layout)
    if epochs is None:
        left = seconds - (_now(device) - began) - EVALUATION
        epochs = max(1, min(most_epochs, int(left / (per_step * in_epoch))))
    _laid_out(model, layout)
    rng = torch.Generator(device=device).manual_seed(seed)
    loop = Loop(model, recipe, x[:batch], y[:batch], steps=max(2, epochs * in_epoch), layout=layout)
    started = _now(device)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=rng, device=device)[: in_epoch * batch]
        for rows in order.split(AT_ONCE * batch):
            images, labels = augmented(x[rows], y[rows], recipe, rng)
            for one, its in zip(images.split(batch), labels.split(batch), strict=True):
                loop.step(one, its)
    per_step = (_now(device) - started) / (epochs * in_epoch)
    model.eval()
    reached, known = (_accuracy(model, space, *some) for some in (test, (train[0][:SOME], train[1][:SOME])))
    _laid_out(model, torch.contiguous_format)
    note = loop.note if layout is torch.channels_last else f"{loop.note}, channels first"
    return Trained(reached, known, epochs, len(x), recipe, time.perf_counter() - began, 1000 * per_step, note)


def _accuracy(model: nn.Module, space: Pixels, images: Tensor, labels: Tensor) -> float:
    device, right = next(model.parameters()).device, 0
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for x, y in zip(images.split(1000), labels.split(1000), strict=True):
            right += int((model(space.encode(x.to(device))).argmax(1).cpu() == y).sum())
    return right / len(images)


def _faster_layout(model: nn.Module, recipe: Recipe, x: Tensor, y: Tensor) -> tuple[torch.memory_format, float]:
    """How images should lie in memory, and seconds of a step, measured on copies of the model.

    Tensor cores want channels last. For convolutions channel by channel, as ConvNeXt has them, which way is faster depends on the
    library's version, so both are tried.
    """
    by_channel = any(isinstance(part, nn.Conv2d) and part.groups > 1 for part in model.modules())
    tried = [torch.channels_last, *([torch.contiguous_format] if by_channel and x.is_cuda else [])]
    measured = [(_measured(model, recipe, x, y, layout), layout) for layout in tried]
    seconds, layout = min(measured, key=lambda one: one[0])
    return layout, seconds


def _best_recipe(
    model: nn.Module, recipes: Sequence[Recipe], x: Tensor, y: Tensor, layout: torch.memory_format, *, seed: int
) -> Recipe:
    """The one with the lowest training loss after some steps, on copies of the model; no test image is seen."""
    if len(recipes) == 1:
        return recipes[0]
    found: list[float] = []
    steps, judged = (TRIED, JUDGED) if x.is_cuda else (4, 2)
    for recipe in recipes:
        trial = copy.deepcopy(model)
        _laid_out(trial, layout)
        batch = min(recipe.batch, len(x))
        loop = Loop(trial, recipe, x[:batch], y[:batch], steps=2 * steps, layout=layout)
        rng, losses = torch.Generator(device=x.device).manual_seed(seed), torch.zeros((), device=x.device)
        for number in range(steps):
            rows = torch.randint(0, len(x), (batch,), generator=rng, device=x.device)
            loop.step(*augmented(x[rows], y[rows], recipe, rng))
            if number >= steps - judged:
                losses += loop.loss
        found.append(math.inf if bool(losses.isnan()) else float(losses))
    return recipes[found.index(min(found))]


def _laid_out(model: nn.Module, layout: torch.memory_format) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)


class Loop:
    """One training step, over and over, on tensors that stay in their place; ``x`` and ``y`` are a batch and its targets."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        x: Tensor,
        y: Tensor,
        *,
        steps: int,
        layout: torch.memory_format = torch.channels_last,
    ) -> None:
        self.model, self.recipe, self.steps, self.done = model, recipe, steps, 0
        device = x.device
        self.on_gpu = device.type == "cuda"
        self.x, self.y = torch.empty_like(x, memory_format=layout), torch.empty_like(y)
        self.loss = torch.zeros((), device=device)
        lr = torch.zeros((), device=device)
        matrices = hidden_matrices(model) if recipe.muon else []
        others = [p for p in model.parameters() if all(p is not one for one in matrices)]
        groups = [
            {"params": [p for p in others if p.dim() > 1], "weight_decay": recipe.decay},
            {"params": [p for p in others if p.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizers: list[torch.optim.Optimizer] = []
        if recipe.momentum is not None:
            self.optimizers.append(Nesterov(groups, lr, recipe.momentum))
        else:  # not the fused one: it refuses gradients of 1×1 convolutions, whose layout is ambiguous
            self.optimizers.append(torch.optim.AdamW(groups, lr=lr, foreach=self.on_gpu, capturable=self.on_gpu))
        if matrices:
            self.optimizers.append(Muon([{"params": matrices, "weight_decay": recipe.decay}], lr))
        self.captured = RecordedStep(self._move) if self.on_gpu else None

    @property
    def note(self) -> str:
        return "eager" if self.captured is None else self.captured.note

    def step(self, x: Tensor, y: Tensor) -> None:
        self.x.copy_(x)
        self.y.copy_(y)
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            group["lr"].fill_(self.rate(self.done))  # a tensor, so that the recorded step reads the new value
        self.done += 1
        if self.captured is None:
            self._move()
        else:
            self.captured()

    def rate(self, number: int) -> float:
        warm = max(1, round(self.recipe.warm_up * self.steps))
        if number < warm:
            return self.recipe.lr * (number + 1) / warm
        return self.recipe.lr * 0.5 * (1 + math.cos(math.pi * (number - warm) / max(1, self.steps - warm)))

    def _move(self) -> None:
        # without autocast's cache: what it keeps would belong to the recording
        with torch.autocast("cuda", torch.bfloat16, enabled=self.on_gpu, cache_enabled=False):
            loss = F.cross_entropy(self.model(self.x).float(), self.y, label_smoothing=SMOOTHING)
        self.loss.copy_(loss.detach())
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        for optimizer in self.optimizers:
            optimizer.step()


def _measured(model: nn.Module, recipe: Recipe, x: Tensor, y: Tensor, layout: torch.memory_format) -> float:
    """Seconds of a step once it is recorded, on a copy of the model."""
    trial = copy.deepcopy(model)
    _laid_out(trial, layout)
    loop = Loop(trial, recipe, x, y, steps=1000, layout=layout)
    warm, count = (8, 15) if loop.on_gpu else (0, 1)
    for _ in range(warm):
        loop.step(x, y)
    ready = _now(x.device)
    for _ in range(count):
        loop.step(x, y)
    return (_now(x.device) - ready) / count


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def targets(labels: Tensor, classes: int = 10) -> Tensor:
    """Class probabilities (N, classes): one for the label, which squares of other images then share."""
    return torch.eye(classes, device=labels.device)[labels]


def augmented(x: Tensor, y: Tensor, recipe: Recipe, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    x = shaken(x, rng, hole=recipe.hole)
    return mixed(x, y, rng, chance=recipe.mixed) if recipe.mixed else (x, y)


def mixed(x: Tensor, y: Tensor, rng: torch.Generator, *, chance: float) -> tuple[Tensor, Tensor]:
    """CutMix (Yun et al. 2019), image by image: a square of another, of an area spread evenly, and that share of its targets."""
    count, _, height, width = x.shape
    device = x.device
    drawn = torch.rand(4, count, generator=rng, device=device)
    side = (torch.where(drawn[0] < chance, drawn[1], 0.0).sqrt() * min(height, width)).long()
    other = torch.randperm(count, generator=rng, device=device)
    down, across = (
        torch.arange(size, device=device)[None] - (at * (size - side + 1)).long()[:, None]
        for size, at in zip((height, width), drawn[2:], strict=True)
    )
    inside = [(part >= 0) & (part < side[:, None]) for part in (down, across)]
    square = (inside[0][:, :, None] & inside[1][:, None, :])[:, None]
    share = (side.square() / (height * width))[:, None]
    return torch.where(square, x[other], x), (1 - share) * y + share * y[other]


def shaken(x: Tensor, rng: torch.Generator, *, hole: int = 8) -> Tensor:
    """Each image (N, C, H, W) shifted by -4 to 4 pixels with zeros coming in, mirrored or not, and with a square hole."""
    count, _, height, width = x.shape
    device = x.device
    shift = torch.randint(0, 9, (2, count), generator=rng, device=device)
    rows = shift[0][:, None] + torch.arange(height, device=device)
    columns = shift[1][:, None] + torch.arange(width, device=device)
    mirrored = torch.rand(count, generator=rng, device=device) < 0.5
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = F.pad(x, (4, 4, 4, 4)).permute(0, 2, 3, 1)
    which = torch.arange(count, device=device)[:, None, None]
    moved = padded[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    if not hole:
        return moved
    corner = torch.randint(0, height - hole + 1, (2, count, 1), generator=rng, device=device)
    down, across = (
        torch.arange(size, device=device)[None] - at for size, at in zip((height, width), corner, strict=True)
    )
    missing = ((down >= 0) & (down < hole))[:, :, None] & ((across >= 0) & (across < hole))[:, None, :]
    return moved.masked_fill(missing[:, None], 0.0)
