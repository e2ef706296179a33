"""What else an update tells: whether the samples behind it have a property, how many of them, and which site sent it.

The adversary owns data of the same kind and knows the property of each of its own samples. It makes *shadow updates* of both kinds through
the same channel at the same public weights, keeps a short sketch of each, and fits linear probes to it. They are then asked about
updates of other data. Nothing of these was seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.channels.facts import clients as clients_of
from leakgauge.channels.facts import is_gradient, reseed, single_client
from leakgauge.core import Channel, Defense, PerSample, Victim, share
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.measures.membership import Rate, auc, true_positive_rate
from leakgauge.measures.probe import fit_probes
from leakgauge.monitor.sketch import SignBucket, Sketch, SketchPlan

PERMUTATIONS = 200
"""Of the kinds of the updates, for the null."""
NUMBERS = 1 << 14
"""Of the sketch. A property moves an update less than its labels do, so it needs a finer sketch than the monitor's own: of a planted
square in the embedded CNN's update, 1,024 numbers show an AUC of 0.82, these 0.96."""
ADDS_UP = 1e-3
"""How far the mean of single updates may be from the update of the batch, relative to its norm."""
FEWEST = 20
"""Samples of each kind that the adversary and the client need each."""


@checked
@dataclass(frozen=True)
class Share:
    """The share of a client's samples that have the property: ``low`` in one kind of batch, ``high`` in the other.

    ``Share(0, 1)`` asks for an attribute of the sample (with batches of one) or for the site (all samples are of one or of the other);
    a ``low`` of 0 and a small ``high`` for the presence of a group.

    >>> Share(0.2, 0.5).counts(32)
    (6, 16)
    """

    low: float = 0.2
    high: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise BadInput(f"a property needs shares with 0 <= low < high <= 1, got {self.low} and {self.high}")

    def counts(self, size: int) -> tuple[int, int]:
        """How many of ``size`` samples have the property, in either kind; at least one makes the difference."""
        low = int(self.low * size)
        return low, max(low + 1, round(self.high * size))


@dataclass(frozen=True)
class PropertyLeakage:
    """How well updates of the two kinds are told apart.

    ``auc`` and ``tpr`` (at 1 % false positives) are on updates of data that the adversary never saw, with their 95 % intervals. ``blind``
    is the AUC of the same probe on nothing but how often each label occurs. ``null`` holds the AUCs of probes where the
    kinds of all updates, shadows and tests, are permuted: what would be found if there were no property.
    """

    auc: Rate
    tpr: Rate
    blind: Rate
    null: tuple[float, ...]
    batch: int
    shadows: int
    tests: int
    rounds: int

    @property
    def null_interval(self) -> tuple[float, float]:
        """Where 95 % of the probes on permuted labels are."""
        low, high = (
            torch.tensor(self.null, dtype=torch.float64)
            .quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
            .tolist()
        )
        return low, high

    @property
    def p_value(self) -> float:
        """How often a probe on permuted labels is as good, counting this one."""
        return (1 + sum(one >= self.auc.value for one in self.null)) / (1 + len(self.null))

    @property
    def leaks(self) -> bool:
        """Whether the update tells more than chance, and more than the labels alone."""
        return self.auc.low > 0.5 and self.auc.value > self.null_interval[1] and self.auc.low > self.blind.value


OnUpdate = Callable[[int, int], None]


@checked
def property_leakage(
    victims: Victim | Sequence[Victim],
    channel: Channel,
    x: Tensor,
    y: Tensor,
    has: Tensor,
    *,
    share_of: Share = Share(),  # noqa: B008 - frozen
    batch: int = 32,
    shadows: int = 400,
    tests: int = 400,
    defenses: Sequence[Defense] = (),
    sketch: Sketch | None = None,
    seed: int = 0,
    on_update: OnUpdate | None = None,
) -> PropertyLeakage:
    """Plays the game above. ``x, y`` (model space) are split in half, one half for the adversary; ``has`` (N,) says which samples have the
    property.

    Several ``victims`` are one model at the weights of several rounds: a client sends one update a round, each of another batch with the
    same share, and the evidence of the rounds is added. Batches are drawn from the same half with repetition between batches, so
    tests are not fully independent and the intervals are a little too narrow.
    """
    rounds = [victims] if isinstance(victims, Victim) else list(victims)
    if not rounds or len({len(x), len(y), len(has)}) != 1 or has.dim() != 1:
        raise BadInput(
            f"a property needs one value per sample and a victim, got {tuple(has.shape)} for {len(x)} samples"
        )
    if batch < 1 or min(shadows, tests) < FEWEST:
        raise BadInput(
            f"a property needs batches of at least 1 and {FEWEST} updates of each kind, got {batch}, {shadows}, {tests}"
        )
    has, rng = has.bool().cpu(), torch.Generator().manual_seed(seed)
    own, other = _halves(has, rng)
    clients = clients_of(channel)
    kinds = [torch.arange(count) % 2 for count in (shadows, tests)]
    total, done = len(rounds) * (shadows + tests), 0
    evidence = torch.zeros(tests, dtype=torch.float64)
    blind = evidence.clone()
    null = torch.zeros(PERMUTATIONS, tests, dtype=torch.float64)
    permuted = torch.stack([kinds[0], *(kinds[0][torch.randperm(shadows, generator=rng)] for _ in range(PERMUTATIONS))])
    for number, victim in enumerate(rounds):
        batches = [
            [_batch(half, has, share_of, int(one), batch, clients, rng) for one in kind]
            for half, kind in zip((own, other), kinds, strict=True)
        ]
        seen = _Seen(victim, channel, x, y, defenses, sketch or SignBucket(total=NUMBERS), seed + number, rng)
        rows: list[Tensor] = []
        for drawn in (*batches[0], *batches[1]):
            rows.append(seen(drawn))
            done += 1
            if on_update is not None:
                on_update(done, total)
        views = [view.split([shadows, tests]) for view in _views(torch.stack(rows), shadows)]
        counts = [_label_counts(y, one) for one in batches]
        found = torch.stack([fit_probes(shadow, permuted)(test) for shadow, test in views]).sum(0)
        evidence += found[0]
        null += found[1:]
        blind += fit_probes(counts[0], kinds[0][None])(counts[1])[0]
    truth = kinds[1]

    def area(scores: Tensor, kind: Tensor = truth) -> Rate:
        return auc(scores[kind == 1], scores[kind == 0])

    return PropertyLeakage(
        auc=area(evidence),
        tpr=true_positive_rate(evidence[truth == 1], evidence[truth == 0]),
        blind=area(blind),
        null=tuple(area(one, truth[torch.randperm(tests, generator=rng)]).value for one in null),
        batch=batch,
        shadows=shadows,
        tests=tests,
        rounds=len(rounds),
    )


def _halves(has: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two halves of the samples, each with half of those that have the property."""
    parts = [
        where[torch.randperm(len(where), generator=rng)] for where in (has.nonzero()[:, 0], (~has).nonzero()[:, 0])
    ]
    if min(map(len, parts)) < 2 * FEWEST:
        raise BadInput(
            f"a property needs {2 * FEWEST} samples with it and {2 * FEWEST} without, got {len(parts[0])} and {len(parts[1])}"
        )
    return torch.cat([p[: len(p) // 2] for p in parts]), torch.cat([p[len(p) // 2 :] for p in parts])


def _batch(
    half: Tensor, has: Tensor, share_of: Share, kind: int, size: int, clients: int, rng: torch.Generator
) -> Tensor:
    """Samples of one update: ``size`` of the client in question, and as many of each other client, drawn without regard to the property."""
    count = share_of.counts(size)[kind]
    those, rest = half[has[half]], half[~has[half]]
    if count > len(those) or size - count > len(rest):
        raise BadInput(
            f"a batch of {size} needs {count} samples with the property and {size - count} without, but a half of the data has "
            f"{len(those)} and {len(rest)}; use a smaller batch"
        )
    drawn = [part[torch.randperm(len(part), generator=rng)[:n]] for part, n in ((those, count), (rest, size - count))]
    mine = torch.cat(drawn)[torch.randperm(size, generator=rng)]
    left = size * (clients - 1)
    return torch.cat([mine, half[torch.randint(len(half), (left,), generator=rng)]]) if left else mine


def _views(rows: Tensor, shadows: int) -> tuple[Tensor, Tensor]:
    """The sketches, and how far each number is from its mean over the shadow updates. A property that makes samples larger or smaller
    moves an update either way, depending on the labels: then its size tells what its direction does not. Each view has its own probe."""
    return rows, (rows - rows[:shadows].mean(0)).abs()


class _Seen:
    """The sketch of what a batch sends. Where an update is the mean of those of its samples, each alone, every sample is sent once
    and the sketches, which are linear, are averaged."""

    def __init__(
        self,
        victim: Victim,
        channel: Channel,
        x: Tensor,
        y: Tensor,
        defenses: Sequence[Defense],
        sketch: Sketch,
        seed: int,
        rng: torch.Generator,
    ) -> None:
        self.victim, self.channel, self.x, self.y, self.defenses, self.rng = victim, channel, x, y, defenses, rng
        self.sketch, self.seed = sketch, seed
        self.plan: SketchPlan | None = None
        self.singles: dict[int, Tensor] | None = {} if self._may_add_up() else None

    def __call__(self, drawn: Tensor) -> Tensor:
        if self.singles is None:
            return self._whole(drawn)
        if not self.singles and len(drawn) > 1:  # verified on the first batch
            whole, mean = self._whole(drawn), self._mean(drawn)
            if float((whole - mean).norm()) > ADDS_UP * float(whole.norm()):
                self.singles = None
                return whole
        return self._mean(drawn)

    def _may_add_up(self) -> bool:
        """Whether it is worth a try: no defense, and neither local steps nor statistics of the batch."""
        coupled = self.victim.mode == "train" and self.victim.depends_on_mode()
        plain = is_gradient(single_client(self.channel), self.victim.mode) or isinstance(self.channel, PerSample)
        return plain and not coupled and not self.defenses

    def _mean(self, drawn: Tensor) -> Tensor:
        assert self.singles is not None
        channel = single_client(self.channel)
        for one in drawn.tolist():
            if one not in self.singles:
                self.singles[one] = self._sketched(channel, torch.tensor([one]))
        return torch.stack([self.singles[one] for one in drawn.tolist()]).mean(0)

    def _whole(self, drawn: Tensor) -> Tensor:
        return self._sketched(self.channel, drawn)

    def _sketched(self, channel: Channel, drawn: Tensor) -> Tensor:
        """What leaves the device, with noise and orders of its own; features of a batch as their mean."""
        noise = int(torch.randint(2**31, (1,), generator=self.rng))
        x, y = self.victim.to_input(self.x[drawn]), self.y[drawn].to(self.victim.device)
        signal = share(
            self.victim, reseed(channel, 1 + noise % 1_000_003), x, y, defenses=self.defenses, secret=noise
        ).signal
        if isinstance(channel, PerSample):
            signal = {name: value.float().mean(0) for name, value in signal.items()}
        if self.plan is None:
            shapes = {name: tuple(value.shape) for name, value in signal.items()}
            self.plan = self.sketch.plan(shapes, device=self.victim.device, seed=self.seed)
        return self.plan(signal).flatten().double().cpu()


def _label_counts(y: Tensor, batches: Sequence[Tensor]) -> Tensor:
    """How often each class occurs in each batch, (batches, classes); zeros where targets are no classes."""
    if y.dim() != 1 or y.is_floating_point():
        return torch.zeros(len(batches), 1)
    classes = int(y.max()) + 1
    return torch.stack([torch.bincount(y[drawn].cpu(), minlength=classes).double() for drawn in batches])
