"""Algorithm 1 of the privacy-token paper, as it is written, with the controls that say what its number means."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from leakgauge.core import Loss, private_randomness
from leakgauge.errors import BadInput
from leakgauge.monitor.gradient_pairs import Collection, Pairs, Probe, Sketch, untouched_buffers
from leakgauge.monitor.token_critic import Critic, CriticTraining, Gap, mismatched
from leakgauge.monitor.tokens import AutoencoderToken, Token

Reading = Literal["once", "warm", "fresh"]
Shuffle = Literal["all", "sub_epoch"]

LABEL = "critic gap, not mutual information: read it beside decoy, null and held_out"
ROOM = 2**31
"""Bytes of stored pairs beyond which a sketch is asked for."""


@dataclass(frozen=True)
class Schedule:
    """How the monitored model is trained: ``sub_epochs`` of ``iterations`` steps of Adam on ``batch`` samples.

    The learning rate is multiplied by ``decay`` every ``decay_every`` sub-epochs; ``evaluation`` batches are read at each checkpoint.

    Ref: Meng et al. 2025, Appendix A — hyperparameters for CIFAR-10
    """

    sub_epochs: int = 200
    iterations: int = 50
    batch: int = 20
    lr: float = 9e-4
    decay: float = 0.9
    decay_every: int = 20
    checkpoints: tuple[int, ...] = (0, 1, 5, 8, 60, 100, 200)
    evaluation: int = 200

    def __post_init__(self) -> None:
        if min(self.sub_epochs, self.decay_every) < 1 or min(self.iterations, self.batch, self.evaluation) < 2:
            raise BadInput(
                f"a schedule needs sub-epochs, and two iterations, samples and evaluation batches or more: {self}"
            )
        if not self.checkpoints or min(self.checkpoints) < 0 or max(self.checkpoints) > self.sub_epochs:
            raise BadInput(f"checkpoints must lie between 0 and {self.sub_epochs} sub-epochs, got {self.checkpoints}")


@dataclass(frozen=True)
class Controls:
    """What the same recipe reads where the data cannot have leaked.

    ``held_out``: the same critic on batches that took no part in training, at the checkpoint's weights.
    ``decoy``: the same critic on the collected pairs, with features of *other* data made by the same weights.
    ``null``: a critic trained alike on pairs whose gradients were shuffled, read on those very pairs.
    """

    held_out: Gap
    decoy: Gap | None
    null: Gap | None


@dataclass(frozen=True)
class Checkpoint:
    """One row of the paper's Table 1: ``paper`` at frozen weights, ``collected`` on pairs gathered since the beginning.

    ``paper`` reads evaluation batches of the training data at this checkpoint's weights, shuffled among themselves.
    ``collected`` reads the pairs that training itself has made so far; their weights differ, so it can tell the time.
    It is None at sub-epoch 0, where there are none.
    """

    sub_epoch: int
    accuracy: float
    paper: Gap
    collected: Gap | None
    controls: Controls


@dataclass(frozen=True)
class Cost:
    """``critic_steps`` is what a reading is paid in; ``stored`` are the bytes of the collected pairs at the end."""

    critic_steps: int
    critic_parameters: int
    stored: int
    seconds_model: float
    seconds_critic: float


@dataclass(frozen=True)
class PaperResult:
    """All checkpoints of one run, the settings that made them, and what they cost."""

    checkpoints: tuple[Checkpoint, ...]
    reading: Reading
    shuffle: Shuffle
    token: str
    seed: int
    cost: Cost
    label: str = LABEL


def paper_mode(
    model: nn.Module,
    loss: Loss,
    data: tuple[Tensor, Tensor],
    *,
    feature_layer: str,
    gradient_layers: Sequence[str],
    held_out: tuple[Tensor, Tensor] | None = None,
    schedule: Schedule | None = None,
    reading: Reading = "once",
    shuffle: Shuffle = "all",
    token: Token | None = None,
    training: CriticTraining | None = None,
    sketch: Sketch | None = None,
    controls: bool = True,
    on_checkpoint: Callable[[int, nn.Module], None] | None = None,
    seed: int = 0,
) -> PaperResult:
    """Trains a copy of ``model`` on ``data`` = (x, y) and measures its gradients as the privacy-token paper does.

    The paper does not say when its critic is trained. ``reading``, with the critic steps each costs (N_MINE = 200 each time):

    - ``"once"``: after the whole training, on all collected pairs; Algorithm 1 to the letter, the default. N_MINE.
    - ``"warm"``: after every sub-epoch, going on with the same critic. N_MINE × sub-epochs.
    - ``"fresh"``: a new critic at every checkpoint, on all pairs collected so far. N_MINE × checkpoints.

    Before anything was collected (sub-epoch 0) warm and fresh critics are read untrained. ``shuffle`` says among which pairs a
    mismatched gradient is drawn: ``"all"`` that were collected, or those of the same ``"sub_epoch"``.

    ``held_out`` is other data; by default the last fifth of ``data`` is set aside. ``sketch`` shortens gradients before
    they are stored; models with millions of watched parameters need one. ``controls=False`` leaves out decoy and null.
    ``on_checkpoint(sub_epoch, model)`` is called with a copy of the model at each checkpoint.

    Ref: Meng et al. 2025, Algorithm 1 — mutual information estimation
    """
    device = next(model.parameters()).device
    with private_randomness(seed, device):  # of dropout, which knows no other generator
        run = _Run(
            model=copy.deepcopy(model),
            device=device,
            loss=loss,
            data=data,
            held_out=held_out,
            schedule=schedule or Schedule(),
            reading=reading,
            shuffle=shuffle,
            token=token or AutoencoderToken(),
            training=training or CriticTraining(),
            controls=controls,
            seed=seed,
            probe_options=(feature_layer, tuple(gradient_layers), sketch),
        )
        return run(on_checkpoint)


@dataclass
class _Waiting:
    """A checkpoint whose pairs are there and whose critic may still have to be trained."""

    sub_epoch: int
    accuracy: float
    train: Pairs
    held: Pairs
    collected: int


@dataclass
class _Run:
    model: nn.Module
    device: torch.device
    loss: Loss
    data: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor] | None
    schedule: Schedule
    reading: Reading
    shuffle: Shuffle
    token: Token
    training: CriticTraining
    controls: bool
    seed: int
    probe_options: tuple[str, tuple[str, ...], Sketch | None]
    collection: Collection = field(default_factory=Collection)
    seconds_critic: float = 0.0
    critic_steps: int = 0

    def __post_init__(self) -> None:
        if self.reading not in ("once", "warm", "fresh") or self.shuffle not in ("all", "sub_epoch"):
            raise BadInput(
                f"reading must be 'once', 'warm' or 'fresh' and shuffle 'all' or 'sub_epoch', "
                f"got {self.reading!r} and {self.shuffle!r}"
            )
        # one generator each, so that neither controls nor checkpoints change which batches are trained on
        self.rng, self.others_rng = (torch.Generator().manual_seed(self.seed + add) for add in (0, 1_000_003))
        feature_layer, gradient_layers, sketch = self.probe_options
        self.probe = Probe(self.model, self.loss, feature_layer, gradient_layers, sketch)
        if self.held_out is None:
            cut = len(self.data[0]) * 4 // 5
            self.data, self.held_out = _rows(self.data, slice(cut)), _rows(self.data, slice(cut, None))
        for name, (x, y) in (("data", self.data), ("held_out", self.held_out)):
            if len(x) != len(y) or len(x) < 2 * self.schedule.batch:
                raise BadInput(
                    f"{name} needs as many labels as samples and at least two batches of {self.schedule.batch}, "
                    f"got {len(x)} samples and {len(y)} labels"
                )
        self.sizes = self.probe.sizes(*self._batch(self.data, torch.Generator().manual_seed(0)))
        self._check_room()

    def _check_room(self) -> None:
        pairs = self.schedule.sub_epochs * self.schedule.iterations
        needed = 4 * sum(self.sizes) * pairs
        if needed > ROOM:
            raise BadInput(
                f"{pairs} gradients of {sum(self.sizes)} values would take {needed / 1e9:.0f} GB; "
                "give sketch= a function that shortens them, or watch fewer layers"
            )

    def __call__(self, on_checkpoint: Callable[[int, nn.Module], None] | None) -> PaperResult:
        began = time.perf_counter()
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.schedule.lr)
        decay = torch.optim.lr_scheduler.StepLR(optimizer, self.schedule.decay_every, self.schedule.decay)
        real, null = self._critic(0), self._critic(1)
        waiting: list[_Waiting] = []
        done: list[Checkpoint] = []
        for sub_epoch in range(self.schedule.sub_epochs + 1):
            if sub_epoch:
                self._train_model(sub_epoch, optimizer)
                decay.step()
                if self.reading == "warm":
                    self._train_critics(real, null)
            if sub_epoch in self.schedule.checkpoints:
                if on_checkpoint is not None:
                    on_checkpoint(sub_epoch, copy.deepcopy(self.model))
                at = self._evaluation(sub_epoch)
                if self.reading == "once":
                    waiting.append(at)
                    continue
                if self.reading == "fresh":
                    real, null = self._critic(0), self._critic(1)
                    self._train_critics(real, null)
                done.append(self._read(at, real, null))
        if self.reading == "once":
            self._train_critics(real, null)
            done = [self._read(at, real, null) for at in waiting]
        return PaperResult(
            tuple(done),
            self.reading,
            self.shuffle,
            repr(self.token),
            self.seed,
            self._cost(time.perf_counter() - began),
        )

    def _cost(self, seconds: float) -> Cost:
        parameters = sum(p.numel() for p in self._critic(0).network.parameters())
        return Cost(
            critic_steps=self.critic_steps,
            critic_parameters=parameters,
            stored=self.collection.nbytes(),
            seconds_model=seconds - self.seconds_critic,
            seconds_critic=self.seconds_critic,
        )

    def _critic(self, which: int) -> Critic:
        with untouched_buffers(self.model), torch.no_grad():
            features = self.probe.features(self.data[0][:2].to(self.device))[0].shape[1]
        seed = 2 * self.seed + which
        return Critic.made(features, self.sizes, self.token, self.training, seed=seed, device=self.device)

    def _batch(self, data: tuple[Tensor, Tensor], rng: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randperm(len(data[0]), generator=rng)[: self.schedule.batch]
        x, y = _rows(data, rows)
        return x.to(self.device), y.to(self.device)

    def _train_model(self, sub_epoch: int, optimizer: torch.optim.Optimizer) -> None:
        """One sub-epoch of training; every step leaves one pair behind."""
        self.model.train()
        for _ in range(self.schedule.iterations):
            x, y = self._batch(self.data, self.rng)
            others = self._features_of_others()
            features, layers, every = self.probe.step(x, y)
            for name, parameter in self.model.named_parameters():
                parameter.grad = every.get(name)
            optimizer.step()
            self.collection.add(features, layers, others, sub_epoch)

    def _features_of_others(self) -> Tensor:
        if not self.controls:
            return torch.empty(0)
        with untouched_buffers(self.model), torch.no_grad(), private_randomness(self.seed, self.device):
            return self.probe.features(self._batch(self.data, self.others_rng)[0])[0].cpu()

    def _evaluation(self, sub_epoch: int) -> _Waiting:
        held_out = self.held_out or self.data
        train, held = (self._frozen(data, sub_epoch) for data in (self.data, held_out))
        return _Waiting(sub_epoch, self._accuracy(held_out), train, held, len(self.collection))

    def _frozen(self, data: tuple[Tensor, Tensor], sub_epoch: int) -> Pairs:
        """Pairs of the present weights, in train mode as in training, without moving them."""
        found, rng = Collection(), torch.Generator().manual_seed(self.seed + 2_000_003 + sub_epoch)
        self.model.train()
        with untouched_buffers(self.model), private_randomness(self.seed, self.device):
            for _ in range(self.schedule.evaluation):
                features, layers, _ = self.probe.step(*self._batch(data, rng))
                found.add(features, layers, torch.empty(0), sub_epoch)
        return found.pairs()

    def _accuracy(self, data: tuple[Tensor, Tensor]) -> float:
        self.model.eval()
        with torch.no_grad():
            right = [
                (self.model(x.to(self.device)).argmax(1).cpu() == y.cpu()).float()
                for x, y in zip(data[0].split(500), data[1].split(500), strict=True)
            ]
        return float(torch.cat(right).mean())

    def _partners(self, groups: Tensor, seed: int) -> Tensor:
        rng = torch.Generator().manual_seed(seed)
        return mismatched(groups if self.shuffle == "sub_epoch" else torch.zeros_like(groups), rng)

    def _train_critics(self, real: Critic, null: Critic) -> None:
        if not len(self.collection):
            return
        began = time.perf_counter()
        pairs = self.collection.pairs()
        partners = self._partners(pairs.group, self.seed)
        real.train(pairs, partners)
        if self.controls:
            shuffled = self._shuffled(pairs)
            null.train(shuffled, partners)
        self.critic_steps += self.training.steps
        self.seconds_critic += time.perf_counter() - began

    def _shuffled(self, pairs: Pairs) -> Pairs:
        """Features with a gradient drawn from all others: nothing is left to be found."""
        order = mismatched(torch.zeros_like(pairs.group), torch.Generator().manual_seed(self.seed + 1))
        return Pairs(pairs.features, tuple(layer[order] for layer in pairs.layers), pairs.others, pairs.group)

    def _read(self, at: _Waiting, real: Critic, null: Critic) -> Checkpoint:
        began = time.perf_counter()
        paper, held = (
            real.read(pairs.features, pairs.layers, self._partners(pairs.group, self.seed + 2))
            for pairs in (at.train, at.held)
        )
        collected = decoy = nothing = None
        if at.collected:
            every = self.collection.pairs()
            rows = torch.randperm(at.collected, generator=torch.Generator().manual_seed(self.seed))
            chosen = rows[: self.schedule.evaluation].sort().values
            pairs = every[chosen]
            partners = self._partners(pairs.group, self.seed + 3)
            collected = real.read(pairs.features, pairs.layers, partners)
            if self.controls:
                decoy = real.read(pairs.others, pairs.layers, partners)
                shuffled = self._shuffled(every)[chosen]
                nothing = null.read(shuffled.features, shuffled.layers, partners)
        self.seconds_critic += time.perf_counter() - began
        return Checkpoint(at.sub_epoch, at.accuracy, paper, collected, Controls(held, decoy, nothing))


def _rows(data: tuple[Tensor, Tensor], rows: Tensor | slice) -> tuple[Tensor, Tensor]:
    return data[0][rows], data[1][rows]
