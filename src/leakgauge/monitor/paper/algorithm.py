"""Algorithm 1 of the privacy-token paper as published, with controls that show what its number means."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core import Loss
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput
from leakgauge.monitor.paper.critic import CriticTrainer, TokenCriticFit, mismatch
from leakgauge.monitor.paper.pairs import Collection, GradientPairs, GradientReader, Shorten, preserve_buffers
from leakgauge.monitor.paper.result import Checkpoint, PaperControls, PaperCost, PaperResult, Reading, Shuffle
from leakgauge.monitor.paper.tokens import AutoencoderToken, Token

MEMORY = 2**32
"""Bytes allowed for stored pairs by default."""


@dataclass(frozen=True, kw_only=True)
class CriticPlan:
    """One critic of a training: which ``token`` it reads, when it is trained, and against which mismatched gradients.

    ``null`` also trains a second critic on shuffled pairs, which doubles the cost.
    """

    token: Token = field(default_factory=AutoencoderToken)
    reading: Reading = "once"
    shuffle: Shuffle = "sub_epoch"
    training: TokenCriticFit = field(default_factory=TokenCriticFit)
    null: bool = True

    def __post_init__(self) -> None:
        if self.reading not in ("once", "warm", "fresh") or self.shuffle not in ("all", "sub_epoch"):
            raise BadInput(
                f"reading must be 'once', 'warm' or 'fresh' and shuffle 'all' or 'sub_epoch', "
                f"got {self.reading!r} and {self.shuffle!r}"
            )


@dataclass(frozen=True)
class PaperSchedule:
    """How the monitored model is trained: ``sub_epochs`` with ``iterations`` steps of Adam on ``batch`` samples.

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
                f"a schedule needs sub-epochs, and at least two iterations, samples and evaluation batches: {self}"
            )
        if not self.checkpoints or min(self.checkpoints) < 0 or max(self.checkpoints) > self.sub_epochs:
            raise BadInput(f"checkpoints must be between 0 and {self.sub_epochs} sub-epochs, got {self.checkpoints}")


def paper_mode(
    model: nn.Module,
    loss: Loss,
    data: tuple[Tensor, Tensor],
    *,
    reading: Reading = "once",
    shuffle: Shuffle = "sub_epoch",
    token: Token | None = None,
    training: TokenCriticFit | None = None,
    controls: bool = True,
    **run: Any,
) -> PaperResult:
    """Trains a copy of ``model`` on ``data`` = (x, y) and measures its gradients as in the privacy-token paper.

    The defaults are Algorithm 1 as it is written: the critic is trained once, and a mismatched gradient comes from the same sub-epoch.
    The text leaves room for others. ``reading`` says when the critic is trained, with these costs in critic steps (N_MINE = 200 per
    training):

    - ``"once"``: after the whole training, on all collected pairs. N_MINE.
    - ``"warm"``: after every sub-epoch, continuing with the same critic. N_MINE × sub-epochs.
    - ``"fresh"``: a new critic at every checkpoint, on all pairs collected so far. N_MINE × checkpoints.

    Before any pair was collected (sub-epoch 0) warm and fresh critics are read untrained. ``shuffle`` says where a mismatched gradient
    comes from: pairs of the same ``"sub_epoch"``, or ``"all"`` collected pairs. ``controls=False`` skips decoy and null. ``run`` is what
    :func:`paper_modes` takes besides: the layers, the schedule, the seed.

    Ref: Meng et al. 2025, Algorithm 1 — mutual information estimation
    """
    plan = CriticPlan(
        token=token or AutoencoderToken(),
        reading=reading,
        shuffle=shuffle,
        training=training or TokenCriticFit(),
        null=controls,
    )
    return paper_modes(model, loss, data, [plan], decoy=controls, **run)[0]


def paper_modes(
    model: nn.Module,
    loss: Loss,
    data: tuple[Tensor, Tensor],
    plans: Sequence[CriticPlan],
    *,
    feature_layer: str,
    gradient_layers: Sequence[str],
    held_out: tuple[Tensor, Tensor] | None = None,
    schedule: PaperSchedule | None = None,
    sketch: Shorten | None = None,
    decoy: bool = True,
    memory: int = MEMORY,
    kept_on: torch.device | None = None,
    on_checkpoint: Callable[[int, nn.Module], None] | None = None,
    on_result: Callable[[int, PaperResult], None] | None = None,
    seed: int = 0,
) -> list[PaperResult]:
    """:func:`paper_mode` for several critics at the cost of one training; each result is the same as for its plan alone.

    Critics only observe, so all of them are trained after the model, in the order of ``plans``, on the pairs that existed at that
    time. ``on_result(number, result)`` is called as soon as a plan is done.

    ``held_out`` is other data; by default the last fifth of ``data`` is held out. ``sketch`` shortens gradients before they are
    stored; models with millions of watched parameters need one, because stored pairs may take at most ``memory`` bytes. They are
    kept on the CPU unless ``kept_on`` names a device with enough memory, where critics train much faster.
    ``on_checkpoint(sub_epoch, model)`` is called with a copy of the model at each checkpoint.
    """
    device = next(model.parameters()).device
    with private_randomness(seed, device):  # for dropout, which uses the global generator
        run = _Run(
            model=copy.deepcopy(model),
            device=device,
            loss=loss,
            data=data,
            held_out=held_out,
            schedule=schedule or PaperSchedule(),
            plans=plans,
            decoy=decoy,
            memory=memory,
            seed=seed,
            probe_options=(feature_layer, tuple(gradient_layers), sketch, kept_on),
        )
        return run(on_checkpoint, on_result)


@dataclass
class _Waiting:
    """A checkpoint with its pairs, for critics to read later; ``collected`` pairs existed at that time."""

    sub_epoch: int
    accuracy: float
    train: GradientPairs
    held: GradientPairs
    collected: int


@dataclass
class _Run:
    model: nn.Module
    device: torch.device
    loss: Loss
    data: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor] | None
    schedule: PaperSchedule
    plans: Sequence[CriticPlan]
    decoy: bool
    memory: int
    seed: int
    probe_options: tuple[str, tuple[str, ...], Shorten | None, torch.device | None]

    def __post_init__(self) -> None:
        # separate generators, so neither controls nor checkpoints change the training batches
        self.rng, self.others_rng = (torch.Generator().manual_seed(self.seed + add) for add in (0, 1_000_003))
        self.probe = GradientReader(self.model, self.loss, *self.probe_options)
        if self.held_out is None:
            cut = len(self.data[0]) * 4 // 5
            self.data, self.held_out = _rows(self.data, slice(cut)), _rows(self.data, slice(cut, None))
        for name, (x, y) in (("data", self.data), ("held_out", self.held_out)):
            if len(x) != len(y) or len(x) < 2 * self.schedule.batch:
                raise BadInput(
                    f"{name} needs as many labels as samples and at least two batches of {self.schedule.batch}, "
                    f"got {len(x)} samples and {len(y)} labels"
                )
        self.features, self.sizes = self.probe.sizes(*self._batch(self.data, torch.Generator().manual_seed(0)))
        self.collection = Collection(self.schedule.sub_epochs * self.schedule.iterations)
        self._check_memory()

    def _check_memory(self) -> None:
        pairs = self.schedule.sub_epochs * self.schedule.iterations
        features = self.schedule.batch * self.features * (2 if self.decoy else 1)
        needed = 4 * pairs * (sum(self.sizes) + features)
        if needed > self.memory:
            raise BadInput(
                f"{pairs} pairs of {features} features and gradients of {sum(self.sizes)} values would take {needed / 1e9:.1f} GB; "
                f"pass sketch=, a function that shortens the gradients, or allow more than memory={self.memory}"
            )

    def __call__(
        self,
        on_checkpoint: Callable[[int, nn.Module], None] | None,
        on_result: Callable[[int, PaperResult], None] | None,
    ) -> list[PaperResult]:
        began = time.perf_counter()
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.schedule.lr)
        decay = torch.optim.lr_scheduler.StepLR(optimizer, self.schedule.decay_every, self.schedule.decay)
        waiting: list[_Waiting] = []
        for sub_epoch in range(self.schedule.sub_epochs + 1):
            if sub_epoch:
                self._train_model(sub_epoch, optimizer)
                decay.step()
            if sub_epoch in self.schedule.checkpoints:
                if on_checkpoint is not None:
                    on_checkpoint(sub_epoch, copy.deepcopy(self.model))
                waiting.append(self._evaluation(sub_epoch))
        seconds = time.perf_counter() - began
        found: list[PaperResult] = []
        for number, plan in enumerate(self.plans):
            found.append(_Watch(self, plan, waiting)(seconds))
            if on_result is not None:
                on_result(number, found[-1])
        return found

    def _batch(self, data: tuple[Tensor, Tensor], rng: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randperm(len(data[0]), generator=rng)[: self.schedule.batch]
        x, y = _rows(data, rows)
        return x.to(self.device), y.to(self.device)

    def _train_model(self, sub_epoch: int, optimizer: torch.optim.Optimizer) -> None:
        """One sub-epoch of training; every step adds one pair."""
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
        if not self.decoy:
            return torch.empty(0)
        with preserve_buffers(self.model), torch.no_grad(), private_randomness(self.seed, self.device):
            return self.probe.kept(self.probe.features(self._batch(self.data, self.others_rng)[0])[0])

    def _evaluation(self, sub_epoch: int) -> _Waiting:
        held_out = self.held_out or self.data
        train, held = (self._frozen(data, sub_epoch) for data in (self.data, held_out))
        return _Waiting(sub_epoch, self._accuracy(held_out), train, held, len(self.collection))

    def _frozen(self, data: tuple[Tensor, Tensor], sub_epoch: int) -> GradientPairs:
        """Pairs at the current weights, in train mode as in training, without changing the weights."""
        found = Collection(self.schedule.evaluation)
        rng = torch.Generator().manual_seed(self.seed + 2_000_003 + sub_epoch)
        self.model.train()
        with preserve_buffers(self.model), private_randomness(self.seed, self.device):
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

    def null_order(self, n: int) -> Tensor:
        """For every row a gradient drawn from all others, so there is nothing to find."""
        return mismatch(torch.zeros(n), torch.Generator().manual_seed(self.seed + 1))


class _Watch:
    """One critic that observes a finished training as if it had been present: it sees no pair before its time."""

    def __init__(self, run: _Run, plan: CriticPlan, waiting: Sequence[_Waiting]) -> None:
        self.run, self.plan, self.waiting = run, plan, waiting
        self.steps = 0
        self.real, self.null = self._critic(0), self._critic(1)

    def __call__(self, seconds_model: float) -> PaperResult:
        began = time.perf_counter()
        trained, done = 0, []
        if self.plan.reading == "once":
            self._train(len(self.run.collection))
        for at in self.waiting:
            if self.plan.reading == "warm":
                per = self.run.schedule.iterations
                for sub_epoch in range(trained // per + 1, at.sub_epoch + 1):
                    self._train(sub_epoch * per)
                trained = at.collected
            elif self.plan.reading == "fresh":
                self.real, self.null = self._critic(0), self._critic(1)
                self._train(at.collected)
            done.append(self._read(at))
        cost = PaperCost(
            critic_steps=self.steps,
            critic_parameters=sum(p.numel() for p in self.real.network.parameters()),
            stored=self.run.collection.pairs().nbytes(),
            seconds_model=seconds_model,
            seconds_critic=time.perf_counter() - began,
        )
        return PaperResult(
            tuple(done), self.plan.reading, self.plan.shuffle, repr(self.plan.token), self.run.seed, cost
        )

    def _critic(self, which: int) -> CriticTrainer:
        seed = 2 * self.run.seed + which
        return CriticTrainer.build(
            self.run.features, self.run.sizes, self.plan.token, self.plan.training, seed=seed, device=self.run.device
        )

    def _partners(self, groups: Tensor, add: int) -> Tensor:
        """For every row another row, as its mismatched partner."""
        rng = torch.Generator().manual_seed(self.run.seed + add)
        return mismatch(groups if self.plan.shuffle == "sub_epoch" else torch.zeros_like(groups), rng)

    def _train(self, count: int) -> None:
        """Trains on the first ``count`` pairs."""
        if not count:
            return
        pairs = self.run.collection.pairs().first(count)
        rows, partners = torch.arange(count), self._partners(pairs.group, 0)
        self.real.train(pairs.features, pairs.layers, rows, partners)
        if self.plan.null:
            shuffled = self.run.null_order(count)
            self.null.train(pairs.features, pairs.layers, shuffled, shuffled[partners])
        self.steps += self.plan.training.steps

    def _read(self, at: _Waiting) -> Checkpoint:
        paper, held = (
            self.real.read(pairs.features, pairs.layers, torch.arange(len(pairs)), self._partners(pairs.group, 2))
            for pairs in (at.train, at.held)
        )
        collected = decoy = nothing = None
        if at.collected:
            pairs = self.run.collection.pairs()
            order = torch.randperm(at.collected, generator=torch.Generator().manual_seed(self.run.seed))
            rows = order[: self.run.schedule.evaluation].sort().values
            partners = self._partners(pairs.group[: at.collected], 3)[
                rows
            ]  # out of all rows, because few share a sub-epoch
            collected = self.real.read(pairs.features[rows], pairs.layers, rows, partners)
            if self.run.decoy:
                decoy = self.real.read(pairs.others[rows], pairs.layers, rows, partners)
            if self.plan.null:
                # on the pairs that its critic was trained on: all for "once", otherwise those so far
                shuffled = self.run.null_order(len(pairs) if self.plan.reading == "once" else at.collected)
                nothing = self.null.read(pairs.features[rows], pairs.layers, shuffled[rows], shuffled[partners])
        return Checkpoint(at.sub_epoch, at.accuracy, paper, collected, PaperControls(held, decoy, nothing))


def _rows(data: tuple[Tensor, Tensor], rows: Tensor | slice) -> tuple[Tensor, Tensor]:
    return data[0][rows], data[1][rows]
