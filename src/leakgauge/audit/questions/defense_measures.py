"""What a trial of a defense measures besides the attack: who was in the batch, and what a short training loses.

The decoder holds the weights and a list of candidates. Nothing is trained: each release is regressed on the candidates' own updates, and
the weight of a candidate is its score. The updates are first brought to length 1: a weight would otherwise be least certain, and so often
largest, for the candidates with the shortest ones, which the model knows by heart. The decoder does not know the defense. One that does,
and repeats it on its candidates, can only do better.

The training is the same with and without the defense, on the same batches, judged on held-out images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.audit.control import fresh
from leakgauge.audit.session import Setup
from leakgauge.channels import DPSGD, Gradient
from leakgauge.channels.dpsgd import require_separate_samples
from leakgauge.channels.facts import is_gradient, public, reseed, single_client
from leakgauge.channels.gradient import each_gradient, gradient
from leakgauge.channels.rows import as_rows
from leakgauge.channels.twice import twice_differentiable
from leakgauge.core import Channel, Defense, NeedsVictim, Protects, RowByRow, Signal, Victim, apply_defenses
from leakgauge.core.randomness import private_randomness
from leakgauge.defenses import WithholdNames
from leakgauge.errors import Inapplicable
from leakgauge.measures.intervals import clopper_pearson, mean_interval
from leakgauge.measures.membership import Rate, auc_interval, decode_each
from leakgauge.measures.rdp import spent_epsilon
from leakgauge.monitor.whitebox import COUPLED, FLOATS, per_sample_gradients, whole_gradient

ENOUGH = 200
"""Images that the data must hold; with fewer a difference in accuracy would be chance."""
MOST_HELD_OUT = 500
LEARNING_RATE = 1e-3
PIXELS = 1 << 21
"""Numbers that the samples run together may hold."""
START = "fresh weights"
DELTA = 1e-5
"""For which an ε is stated."""
OPTIMIZER = f"Adam, learning rate {LEARNING_RATE:g}"


@dataclass(frozen=True, kw_only=True)
class Training:
    """``steps`` steps with ``batch`` images each; ``seed`` draws the fresh weights, the split and the batches."""

    steps: int
    batch: int
    seed: int


@dataclass(frozen=True, eq=False)
class Trained:
    """A model after its training: what to run it with."""

    model: nn.Module
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


def classified(setup: Setup, defenses: Sequence[Defense], how: Training, private: Channel | None = None) -> Tensor:
    """Trains from fresh weights, each gradient through the defenses, and says which held-out images come out right."""
    return judged(setup, trained(setup, defenses, how, private), held_out(setup, how.seed)[1])


def trained(setup: Setup, defenses: Sequence[Defense], how: Training, private: Channel | None = None) -> Trained:
    """The model after ``how.steps`` steps in train mode, each through the channel ``private`` if given. What is not sent is not updated."""
    train, _ = held_out(setup, how.seed)
    model = fresh(setup.victim.model, seed=how.seed, device=setup.victim.device)
    victim = Victim(model, setup.victim.space, setup.victim.loss, mode="train", name=setup.victim.name)
    if isinstance(private, DPSGD):
        require_separate_samples(victim)
    parameters, buffers = {n: p.clone() for n, p in victim.parameters().items()}, victim.buffers()
    optimizer = torch.optim.Adam(list(parameters.values()), lr=LEARNING_RATE)
    rng, noise = (torch.Generator().manual_seed(how.seed + more) for more in (1, 2))
    size = min(how.batch, len(train))
    epochs = [train[torch.randperm(len(train), generator=rng)] for _ in range(-(-how.steps * size // len(train)) or 1)]
    order = torch.cat(epochs)
    with private_randomness(how.seed, victim.device):
        for step in range(how.steps):
            x, y = _model_space(setup, order[step * size : (step + 1) * size])
            if private is None:
                sent = gradient(victim, x, y, parameters=parameters, buffers=buffers)
            elif not isinstance(private, DPSGD):
                sent = _step(victim, reseed(private, step), x, y, parameters, buffers)
            else:
                sent = private.release(each_gradient(victim, x, y, parameters=parameters, buffers=buffers), noise)
            sent = apply_defenses(victim, Gradient(), sent, defenses, rng=noise)
            for name, parameter in parameters.items():
                parameter.grad = sent.get(name)
            optimizer.step()
    return Trained(model, parameters, buffers)


def _step(
    victim: Victim, channel: Channel, x: Tensor, y: Tensor, parameters: Mapping[str, Tensor], buffers: dict[str, Tensor]
) -> Signal:
    """What the channel sends at these ``parameters``; ``buffers`` are updated as by a pass of the samples themselves."""
    victim.model.load_state_dict({**parameters, **buffers}, strict=False)  # the victim's own copy
    sent = {name: t.detach() for name, t in channel(victim, x, y).items()}
    with torch.no_grad():
        victim(x, buffers=buffers)
    return sent


def judged(setup: Setup, found: Trained, rows: Tensor) -> Tensor:
    """Which of the images are classified rightly, shape (images,), bool; a prediction that is not a number is wrong."""
    judge = Victim(found.model, setup.victim.space, setup.victim.loss, mode="eval", name=setup.victim.name)
    right = []
    with torch.no_grad():
        for some in rows.split(at_once(setup.victim.space.shape)):
            x, y = _model_space(setup, some)
            scores = judge(x, parameters=found.parameters, buffers={n: b.clone() for n, b in found.buffers.items()})
            right.append((scores.argmax(-1) == y) & scores.isfinite().all(-1))
    return torch.cat(right).cpu()


def at_once(shape: Sequence[int]) -> int:
    """How many samples of a shape are run together: many small ones, few large ones."""
    return max(1, PIXELS // math.prod(shape))


def accuracy(setup: Setup, right: Tensor, without: Tensor | None, how: Training) -> Mapping[str, Any]:
    """The accuracy and its cost against the training ``without`` defense, as a record keeps it.

    The interval of the accuracy is exact binomial; that of the cost a bootstrap over the held-out images, which both
    trainings share.
    """
    train, tested = held_out(setup, how.seed)
    hits = int(right.sum())
    low, high = clopper_pearson(hits, len(right))
    found = {
        "value": hits / len(right), "low": low, "high": high, "images": len(right), "steps": how.steps,
        "batch": min(how.batch, len(train)), "trained_on": len(train), "start": START, "optimizer": OPTIMIZER,
        "right": "".join("01"[int(r)] for r in right), "cost": None, "unknown": "",
    }  # fmt: skip
    if without is None:
        return {**found, "unknown": "the training without defense, which it is compared with, did not come to its end"}
    commonest = float(setup.labels[tested].bincount().max()) / len(tested)
    if clopper_pearson(int(without.sum()), len(without))[0] <= commonest:
        reached = float(without.double().mean())
        reason = (
            f"without defense {how.steps} steps reach an accuracy of {reached:.2f}, no better than "
            f"the commonest class ({commonest:.2f}); take more steps"
        )
        return {**found, "unknown": reason}
    cost = mean_interval(without.double() - right.double(), seed=how.seed)
    return {**found, "cost": {"value": cost.value, "low": cost.low, "high": cost.high}}


def privacy_of(setup: Setup, how: Training, private: DPSGD) -> str:
    """The guarantee of such a training, as a sentence; an accountant takes batches as drawn at random."""
    if not private.noise:
        return "clipping without noise gives no guarantee of privacy"
    train, _ = held_out(setup, how.seed)
    rate = min(how.batch, len(train)) / len(train)
    epsilon = spent_epsilon(noise=private.noise, rate=rate, steps=how.steps, delta=DELTA)
    return f"the short training has ε = {epsilon:.3g} at δ = {DELTA:g} ({how.steps} steps, sampling rate {rate:.2g})"


def held_out(setup: Setup, seed: int) -> tuple[Tensor, Tensor]:
    """Places of the images to train on and of those held out: half of the data, at most ``MOST_HELD_OUT``."""
    if not setup.facts.labelled:
        raise Inapplicable("the images have no classes, so there is no accuracy to measure")
    if not setup.classes:
        raise Inapplicable("the targets are no classes, so there is no accuracy to measure")
    if len(setup.images) < ENOUGH:
        raise Inapplicable(f"an accuracy needs at least {ENOUGH} images, the data holds {len(setup.images)}")
    order = torch.randperm(len(setup.images), generator=torch.Generator().manual_seed(seed))
    count = min(MOST_HELD_OUT, len(order) // 2)
    return order[count:], order[:count]


def _model_space(setup: Setup, rows: Tensor) -> tuple[Tensor, Tensor]:
    victim = setup.victim
    return victim.to_input(victim.space.encode(setup.images[rows])), setup.labels[rows].to(victim.device)


FALSE_POSITIVES = 0.01
FEWEST = 8
"""Candidates that are not in the batch; with fewer a rank says nothing."""


@dataclass(frozen=True, eq=False)
class Releases:
    """Updates before any defense: of every candidate alone (``rows``, by name), and of the batches drawn from them.

    ``batches`` (releases, batch) holds the places of the members. ``rows`` holds only tensors that fit into memory.
    """

    victim: Victim
    channel: Channel
    x: Tensor
    y: Tensor
    rows: Signal
    batches: Tensor
    seed: int

    def signals(self) -> Iterator[Signal]:
        """All releases in pieces, each tensor with one row per release; what a client draws, it draws again for each."""
        sizes = {name: p.numel() for name, p in self.victim.parameters().items()}
        if set(sizes) == set(self.rows) and _mean_of_singles(self.victim, self.channel):
            for places in self.batches.split(max(1, FLOATS // (sum(sizes.values()) * self.batches.shape[1]))):
                yield {name: rows[places].mean(1) for name, rows in self.rows.items()}
            return
        for some in torch.arange(len(self.batches)).split(max(1, FLOATS // sum(sizes.values()))):
            sent = [self._released(number, self.batches[number]) for number in some.tolist()]
            yield {name: torch.stack([one[name] for one in sent]) for name in sent[0]}

    def _released(self, number: int, places: Tensor) -> Signal:
        channel = self.channel
        if isinstance(channel, DPSGD) and set(self.rows) == set(self.victim.parameters()):
            require_separate_samples(self.victim)
            seed = None if channel.seed is None else channel.seed + number
            rng = None if seed is None else torch.Generator().manual_seed(seed)
            return channel.release({name: rows[places] for name, rows in self.rows.items()}, rng)
        return _sent(self.victim, reseed(channel, number), self.x[places], self.y[places], seed=self.seed)


def draw_releases(setup: Setup, channel: Channel, *, batch: int, candidates: int, releases: int, seed: int) -> Releases:
    """Candidates out of the data and batches out of the candidates, both from ``seed``; refuses where data is too small."""
    rng = torch.Generator().manual_seed(seed)
    count = min(len(setup.images), max(candidates, 4 * batch))
    if count - batch < max(FEWEST, batch):
        raise Inapplicable(
            f"membership needs at least {max(FEWEST, batch)} candidates beside the batch of {batch}, "
            f"the data holds {len(setup.images)} images"
        )
    victim = setup.victim
    chosen = torch.randperm(len(setup.images), generator=rng)[:count]
    x = victim.to_input(victim.space.encode(setup.images[chosen]))
    y = setup.labels[chosen].to(victim.device)
    batches = torch.stack([torch.randperm(count, generator=rng)[:batch] for _ in range(releases)])
    sizes = {name: p.numel() for name, p in victim.parameters().items()}
    names = whole_gradient(sizes, count)
    alone = _unprotected(channel)
    return Releases(victim, channel, x, y, _alone(victim, alone, names, x, y, seed=seed), batches, seed)


def _unprotected(channel: Channel) -> Channel:
    """How a candidate's own update is made by an attacker who does not know the noise and does not clip."""
    one = single_client(channel)
    return one.unprotected() if isinstance(one, Protects) else public(one)


def read_members(drawn: Releases, defenses: Sequence[Defense], *, seed: int) -> Mapping[str, Any]:
    """How well members are distinguished from the other candidates of the same release, as a record keeps it.

    The AUC is the mean over releases of the share of pairs (member, other) that the decoder puts in the right order. TPR is
    the share of members whose weight is above that of all but 1 % of the others of the same release. Releases are drawn
    independently, so both are means of independent values within [0, 1], which is what their intervals rest on.
    """
    bound = [d.for_victim(drawn.victim) if isinstance(d, NeedsVictim) else d for d in defenses]
    rng = torch.Generator().manual_seed(seed)
    gram, length, scores, names, sent = torch.zeros(0), torch.ones(1), [], [], 0
    for signals in drawn.signals():
        for defense in bound:
            signals = _row_by_row(defense, signals, rng)
        if not names:
            names = [name for name in drawn.rows if name in signals]
            sent = len(signals)
            if not names:
                raise Inapplicable("nothing that the candidates' updates could be compared with is sent")
            gram = torch.stack([_flat(drawn.rows[n]) @ _flat(drawn.rows[n]).T for n in names]).sum(0)
            length = gram.diagonal().double().sqrt().clamp_min(1e-30)[:, None]
            gram = gram / length / length.T
        cross = torch.stack([_flat(drawn.rows[n]) @ _flat(signals[n]).T for n in names]).sum(0) / length
        energy = torch.stack([_flat(signals[n]).square().sum(1) for n in names]).sum(0)
        scores.append(decode_each(gram, cross, energy, sum(drawn.rows[n][0].numel() for n in names)))
    weights = torch.cat(scores, 1).T.cpu()  # (releases, candidates)
    if not bool(weights.isfinite().all()):
        raise Inapplicable("the updates of the candidates, or what is sent, are not finite")
    auc, tpr = rates(weights, drawn.batches)
    notes = []
    if len(names) < sent:
        notes.append(
            f"the decoder reads {len(names)} of {sent} tensors for lack of memory; the whole update reveals more"
        )
    if drawn.batches.shape[1] > 1 and not _mean_of_singles(drawn.victim, _unprotected(drawn.channel)):
        notes.append("the decoder takes each candidate alone, though samples of a batch act on each other here")
    return {
        "auc": asdict(auc),
        "tpr": asdict(tpr),
        "candidates": weights.shape[1],
        "batch": drawn.batches.shape[1],
        "releases": len(weights),
        "tensors": len(names),
        "of": len(drawn.victim.parameters()),
        "notes": notes,
        "unknown": "",
    }


def rates(weights: Tensor, batches: Tensor) -> tuple[Rate, Rate]:
    """AUC and TPR at 1 % FPR from scores (releases, candidates) and the places of the members (releases, batch)."""
    releases, batch = batches.shape
    member = torch.zeros_like(weights, dtype=torch.bool).scatter(1, batches.to(weights.device), True)
    members = weights[member].view(releases, batch, 1)
    others = weights[~member].view(releases, 1, -1)
    right = ((members > others).double() + 0.5 * (members == others).double()).mean()
    allowed = int(FALSE_POSITIVES * others.shape[2] + 1e-9)
    threshold = others.topk(allowed + 1, dim=2).values[:, :, -1:]
    hits = int((members > threshold).sum())
    rate = hits / (releases * batch)
    # members of one release are not independent of each other, so only releases count
    spread = clopper_pearson(hits, releases) if batch == 1 else auc_interval(rate, releases, releases)
    return Rate(float(right), *auc_interval(float(right), releases, releases)), Rate(rate, *spread)


def _mean_of_singles(victim: Victim, channel: Channel) -> bool:
    """Whether the update of a batch is the mean of the updates of its samples, each alone."""
    coupled = victim.mode == "train" and any(isinstance(m, COUPLED) for m in victim.model.modules())
    return is_gradient(channel, victim.mode) and not coupled


def _alone(victim: Victim, channel: Channel, names: tuple[str, ...], x: Tensor, y: Tensor, *, seed: int) -> Signal:
    if _mean_of_singles(victim, channel):
        with twice_differentiable():  # the mathematical form of attention is also the one that vmap knows
            pieces = [
                per_sample_gradients(victim.model, victim.loss, names, a, b, seed=seed)
                for a, b in zip(*(t.split(at_once(victim.space.shape)) for t in (x, y)), strict=True)
            ]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in names}
    each = [_sent(victim, channel, x[i : i + 1], y[i : i + 1], seed=seed, only=names) for i in range(len(x))]
    return {name: torch.stack([one[name] for one in each]) for name in names}


def _sent(
    victim: Victim, channel: Channel, x: Tensor, y: Tensor, *, seed: int, only: tuple[str, ...] | None = None
) -> Signal:
    with private_randomness(seed, victim.device):
        signal = channel(victim, x, y)
    return {name: t.detach() for name, t in signal.items() if only is None or name in only}


def _row_by_row(defense: Defense, signals: Signal, rng: torch.Generator) -> Signal:
    """The defense on each row as a message of its own; at once where the defense can."""
    if isinstance(defense, WithholdNames):  # drops whole tensors, whatever their rows are
        return defense(signals, rng=rng)
    if isinstance(defense, RowByRow):
        return defense.by_row(signals, rng=rng)
    count = len(next(iter(signals.values())))
    each = [defense({name: t[i] for name, t in signals.items()}, rng=rng) for i in range(count)]
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def _flat(rows: Tensor) -> Tensor:
    """Doubles, for the reason that :func:`leakgauge.monitor.whitebox.products` gives."""
    return as_rows(rows).double()
