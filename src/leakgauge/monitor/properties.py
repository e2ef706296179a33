"""What else an update tells: whether the samples behind it have a property, how many of them, and which site sent it.

The adversary owns data of the same kind and knows the property of each of its own samples. It makes *shadow updates* of both kinds through
the same channel at the same public weights, keeps a short sketch of each, and fits linear probes to it. They are then asked about
updates of other data. Nothing of these was seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leakgauge.channels.facts import clients as clients_of
from leakgauge.channels.facts import reseed
from leakgauge.core import Channel, Defense, PerSample, Signal, Victim, share
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.measures.membership import Rate, auc, auc_interval, true_positive_rate
from leakgauge.measures.probe import fit_probes
from leakgauge.measures.sketch import SignBucket, Sketch, SketchPlan
from leakgauge.monitor.property_counts import MOST, PropertyCounts, fit_counts

PERMUTATIONS = 200
"""Of the kinds of the updates, for the null."""
NUMBERS = 1 << 13
"""Of each sketch. A property moves an update less than its labels do, so it needs a finer sketch than the monitor's own."""
HELD = 1 / 3
"""Share of the adversary's samples whose shadow updates choose the view and the penalty. Shadow updates share samples, so others cannot."""
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

    def disjoint(self, those: int, rest: int, size: int, batches: int = 1) -> int:
        """How many pairs, a test of each kind, can be made of ``those`` with the property and the ``rest`` without using a sample twice.
        A test takes ``batches``, one of every client in every round; those of other clients are drawn from all samples alike.

        >>> Share(0.2, 0.5).disjoint(400, 600, 32), Share(0.2, 0.5).disjoint(400, 600, 32, batches=4)
        (14, 3)
        """
        low, high = self.counts(size)
        return min(those // (low + high), rest // max(1, 2 * size - low - high)) // batches

    def counts(self, size: int) -> tuple[int, int]:
        """How many of ``size`` samples have the property, in either kind; at least one makes the difference."""
        low = int(self.low * size)
        return low, max(low + 1, round(self.high * size))


@dataclass(frozen=True)
class PropertyLeakage:
    """How well updates of the two kinds are told apart.

    ``auc`` (with its 95 % interval) and ``tpr`` are on updates of data that the adversary never saw. ``blind`` is the AUC of the same probe
    on nothing but how often each label occurs. ``null`` holds the AUCs of probes where the kinds of all updates, shadows and tests,
    are permuted.

    Tests share samples, since a half of the data has only so many. Their AUC is then a U-statistic, whose deviation is bounded as that of
    ``disjoint`` independent tests of each kind: the most that can be made without using a sample twice, where a test takes a batch of
    every client in every round. All intervals are for that number, and are wide where there are few data.

    ``tpr`` is the share found where 1 % of these tests are false positives. It has no interval: the threshold is one of the largest scores
    of ``disjoint`` independent negatives, too few to fix 1 %.

    Ref: Hoeffding 1963, section 5 — bounds for U-statistics
    """

    auc: Rate
    tpr: float
    blind: Rate
    null: tuple[float, ...]
    batch: int
    shadows: int
    tests: int
    rounds: int
    disjoint: int

    @property
    def null_interval(self) -> tuple[float, float]:
        """Where the AUC of chance is with 95 %: that of permuted kinds, and that of finite data."""
        permuted = torch.tensor(self.null, dtype=torch.float64)
        low, high = auc_interval(0.5, self.disjoint, self.disjoint)
        return min(low, float(permuted.quantile(0.025))), max(high, float(permuted.quantile(0.975)))

    @property
    def leaks(self) -> bool:
        return tells(self.auc, self.blind, self.null_interval[1])


def tells(auc: Rate, blind: Rate, null_high: float) -> bool:
    """Whether updates tell more than chance, which ends at ``null_high``, and more than the labels alone."""
    return auc.low > 0.5 and auc.value > null_high and auc.low > blind.value


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
    same share, and the evidence of the rounds is added.
    """
    rounds = [victims] if isinstance(victims, Victim) else list(victims)
    if not rounds or len({len(x), len(y), len(has)}) != 1 or has.dim() != 1:
        raise BadInput(
            f"a property needs one value per sample and a victim, got {tuple(has.shape)} for {len(x)} samples"
        )
    if batch < 1 or shadows < 2 * FEWEST or tests < FEWEST:
        raise BadInput(
            f"a property needs batches of at least 1, {2 * FEWEST} shadow updates and {FEWEST} tests, got {batch}, {shadows} and {tests}"
        )
    has, rng = has.bool().cpu(), torch.Generator().manual_seed(seed)
    if min(those := int(has.sum()), len(has) - those) < 2 * FEWEST:
        raise BadInput(
            f"a property needs {2 * FEWEST} samples with it and {2 * FEWEST} without, got {those} and {len(has) - those}"
        )
    own, other = _split(torch.arange(len(has)), has, 0.5, rng)
    fitted, held_out = _split(own, has, HELD, rng)
    held = round(HELD * shadows)
    clients = clients_of(channel)
    kinds = [torch.arange(count) % 2 for count in (shadows, tests)]
    total, done = len(rounds) * (shadows + tests), 0
    evidence = torch.zeros(tests, dtype=torch.float64)
    blind = evidence.clone()
    null = torch.zeros(PERMUTATIONS, tests, dtype=torch.float64)
    permuted = torch.stack([kinds[0], *(kinds[0][torch.randperm(shadows, generator=rng)] for _ in range(PERMUTATIONS))])
    for number, victim in enumerate(rounds):
        sources = (*[fitted] * (shadows - held), *[held_out] * held, *[other] * tests)
        drawn = [
            _batch(half, has, int(one), share_of=share_of, size=batch, clients=clients, rng=rng)
            for half, one in zip(sources, torch.cat(kinds), strict=True)
        ]
        seen = _Seen(victim, channel, defenses, sketch or SignBucket(total=NUMBERS), seed + number, rng)
        seen.learn_counts(x, y, has, fitted, partial(_batch, share_of=share_of, size=batch, clients=clients, rng=rng))
        views = seen.views(x, y, drawn, shadows, lambda made, done=done: on_update and on_update(done + made, total))
        done += len(drawn)
        counts = _label_counts(y, drawn)
        found = _best_view(views, permuted, held)
        evidence += found[0]
        null += found[1:]
        blind += _best_view([counts], kinds[0][None], held)[0]
    truth = kinds[1]

    few = share_of.disjoint(int(has[other].sum()), int((~has[other]).sum()), batch, len(rounds) * clients)
    few = max(1, min(few, tests // 2))

    def area(scores: Tensor, kind: Tensor = truth) -> Rate:
        value = auc(scores[kind == 1], scores[kind == 0]).value
        return Rate(value, *auc_interval(value, few, few))

    return PropertyLeakage(
        auc=area(evidence),
        tpr=true_positive_rate(evidence[truth == 1], evidence[truth == 0]).value,
        blind=area(blind),
        null=tuple(area(one, truth[torch.randperm(tests, generator=rng)]).value for one in null),
        batch=batch,
        shadows=shadows,
        tests=tests,
        rounds=len(rounds),
        disjoint=few,
    )


@dataclass(frozen=True)
class SiteLeakage:
    """How well the site that sent an update is found among ``sites``.

    ``top1`` is the share of updates, of data that the adversary never saw, for which the right site is ranked first; ``chance`` is 1 of
    all sites. ``blind`` is the same from how often each label occurs. ``null`` holds the shares where the sites of all updates are
    permuted. Intervals are for ``disjoint`` updates without a common sample, as in :class:`PropertyLeakage`.
    """

    top1: Rate
    blind: Rate
    null: tuple[float, ...]
    sites: tuple[int, ...]
    batch: int
    shadows: int
    tests: int
    disjoint: int

    @property
    def chance(self) -> float:
        return 1 / len(self.sites)

    @property
    def null_high(self) -> float:
        """What chance stays below with 97.5 %: permuted sites, and guesses on as few data."""
        permuted = float(torch.tensor(self.null, dtype=torch.float64).quantile(0.975))
        return max(permuted, auc_interval(self.chance, self.disjoint, self.disjoint)[1])

    @property
    def leaks(self) -> bool:
        """Whether the update names its site better than chance, and better than the labels alone."""
        return self.top1.value > self.null_high and self.top1.low > max(self.chance, self.blind.value)


@checked
def site_leakage(
    victim: Victim,
    channel: Channel,
    x: Tensor,
    y: Tensor,
    sites: Tensor,
    *,
    batch: int = 32,
    shadows: int = 400,
    tests: int = 400,
    defenses: Sequence[Defense] = (),
    sketch: Sketch | None = None,
    seed: int = 0,
) -> SiteLeakage:
    """Which site sent an update? ``sites`` (N,) numbers the site of each sample. The adversary has half of every site's samples and makes
    shadow updates, each of the samples of one site; a probe for each site is asked about updates of the other half, and the
    site with most evidence is the answer.
    """
    sites, rng = sites.long().cpu(), torch.Generator().manual_seed(seed)
    names = sites.unique().tolist()
    if len({len(x), len(y), len(sites)}) != 1 or sites.dim() != 1 or len(names) < 2:
        raise BadInput(
            f"site_leakage needs the site of every sample and at least 2 sites, got {len(names)} for {len(x)}"
        )
    if clients_of(channel) > 1:
        raise BadInput(
            "site_leakage asks about updates of single sites, but this channel adds several; use property_leakage"
        )
    if batch < 1 or min(shadows, tests) < FEWEST * len(names):
        raise BadInput(
            f"site_leakage needs {FEWEST} shadow updates and tests for each of {len(names)} sites, got {shadows} and {tests}"
        )
    own, other = _split(torch.arange(len(sites)), sites, 0.5, rng)
    fitted, held_out = _split(own, sites, HELD, rng)
    least = min(int((sites[part] == one).sum()) for part in (fitted, held_out, other) for one in names)
    if least < batch:
        raise BadInput(
            f"batches of {batch} need more samples of each site: one part of the data has {least}; use a smaller batch"
        )
    held = round(HELD * shadows)
    kinds = [torch.arange(count) % len(names) for count in (shadows, tests)]
    sources = (*[fitted] * (shadows - held), *[held_out] * held, *[other] * tests)
    drawn: list[Tensor] = []
    for part, kind in zip(sources, torch.cat(kinds).tolist(), strict=True):
        those = part[sites[part] == names[kind]]
        drawn.append(those[torch.randperm(len(those), generator=rng)[:batch]])
    seen = _Seen(victim, channel, defenses, sketch or SignBucket(total=NUMBERS), seed, rng)
    views = seen.views(x, y, drawn, shadows)
    each = torch.arange(len(names))[:, None]
    orders = [torch.arange(shadows), *(torch.randperm(shadows, generator=rng) for _ in range(PERMUTATIONS // 4))]
    asked = torch.cat([kinds[0][order] == each for order in orders]).long()
    answers = _best_view(views, asked, held).view(len(orders), len(names), tests).argmax(1)
    guessed = _best_view([_label_counts(y, drawn)], asked[: len(names)], held).argmax(0)
    few = sum(int((sites[other] == one).sum()) // batch for one in names)
    few = max(1, min(few, tests))

    def rate(answer: Tensor, truth: Tensor = kinds[1]) -> Rate:
        value = float((answer == truth).double().mean())
        return Rate(value, *auc_interval(value, few, few))

    null = tuple(rate(one, kinds[1][torch.randperm(tests, generator=rng)]).value for one in answers[1:])
    return SiteLeakage(rate(answers[0]), rate(guessed), null, tuple(names), batch, shadows, tests, few)


def _split(samples: Tensor, groups: Tensor, share: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """All but a ``share`` of the samples, and that share, with as many of each of ``groups`` (with and without the property, or sites) in
    proportion."""
    parts = [samples[groups[samples] == one] for one in groups.unique(sorted=True).flip(0)]
    mixed = [part[torch.randperm(len(part), generator=rng)] for part in parts]
    pieces = [part.split([len(part) - round(share * len(part)), round(share * len(part))]) for part in mixed]
    return torch.cat([first for first, _ in pieces]), torch.cat([second for _, second in pieces])


def _batch(
    half: Tensor, has: Tensor, kind: int, *, share_of: Share, size: int, clients: int, rng: torch.Generator
) -> Tensor:
    """Samples of one update: ``size`` of the client in question, and as many of each other client, drawn without regard to the property."""
    count = share_of.counts(size)[kind]
    those, rest = half[has[half]], half[~has[half]]
    if count > len(those) or size - count > len(rest):
        raise BadInput(
            f"a batch of {size} needs {count} samples with the property and {size - count} without, but its part of the data has "
            f"{len(those)} and {len(rest)}; use a smaller batch"
        )
    drawn = [part[torch.randperm(len(part), generator=rng)[:n]] for part, n in ((those, count), (rest, size - count))]
    mine = torch.cat(drawn)[torch.randperm(size, generator=rng)]
    left = size * (clients - 1)
    return torch.cat([mine, half[torch.randint(len(half), (left,), generator=rng)]]) if left else mine


def _best_view(views: Sequence[Tensor], kinds: Tensor, held: int) -> Tensor:
    """Evidence (P, tests) of the probe on the view that separates the held shadow updates best; chosen for each of P ``kinds`` of the
    shadow updates, so the null has the same choice. Of each view the shadow updates come first."""
    shadows = kinds.shape[1]
    probes = [fit_probes(view[:shadows], kinds, held=held) for view in views]
    best = torch.stack([one.apart for one in probes]).argmax(0)
    evidence = torch.stack([one(view[shadows:]) for one, view in zip(probes, views, strict=True)])
    return evidence[best, torch.arange(len(best))]


class _Seen:
    """What a batch sends, as the probes see it: a sketch of the update, the mean inputs of its layers, and a count.

    A property that makes samples larger or smaller moves an update either way, depending on the labels. So there are three views besides
    the sketch: how far each of its numbers is from the mean (made later), x̄ = ∂Wᵀ∂b / ‖∂b‖² of every layer with a weight and a bias,
    an average of what the layer read with weights that sum to 1, and what the last layer says about the count
    (:class:`~leakgauge.monitor.property_counts.PropertyCounts`, where updates are sums over samples).
    """

    def __init__(
        self,
        victim: Victim,
        channel: Channel,
        defenses: Sequence[Defense],
        sketch: Sketch,
        seed: int,
        rng: torch.Generator,
    ) -> None:
        self.victim, self.channel, self.defenses, self.rng = victim, channel, defenses, rng
        self.sketch, self.seed = sketch, seed
        self.plans: list[SketchPlan] = []
        self.counts: PropertyCounts | None = None

    def learn_counts(self, x: Tensor, y: Tensor, has: Tensor, own: Tensor, batch: Callable[..., Tensor]) -> None:
        """``own`` are the places of the adversary's samples; ``batch`` draws places of one batch of a kind."""
        layer = last_layer(self.victim.parameters())
        if isinstance(self.channel, PerSample) or layer is None:
            return
        own = own[torch.randperm(len(own), generator=self.rng)[:MOST]]
        own_x, own_y, places = x[own], y[own], torch.arange(len(own))
        self.counts = fit_counts(
            self.victim,
            layer,
            own_x,
            own_y,
            has[own],
            lambda kind: batch(places, has[own], kind),
            lambda drawn: self.signal(own_x[drawn], own_y[drawn]),
            seed=self.seed,
        )

    def signal(self, x: Tensor, y: Tensor) -> Signal:
        """What one batch sends, with noise and orders of its own."""
        noise = int(torch.randint(2**31, (1,), generator=self.rng))
        channel = reseed(self.channel, 1 + noise % 1_000_003)
        x, y = self.victim.to_input(x), y.to(self.victim.device)
        return share(self.victim, channel, x, y, defenses=self.defenses, secret=noise).signal

    def views(
        self, x: Tensor, y: Tensor, drawn: Sequence[Tensor], shadows: int, on_update: Callable[[int], object] = bool
    ) -> list[Tensor]:
        """Every view of all updates, (updates, numbers); the first ``shadows`` say what the mean is. ``on_update`` is given how many were
        made."""
        rows: list[tuple[Tensor, ...]] = []
        for one in drawn:
            rows.append(self(x[one], y[one]))
            on_update(len(rows))
        stacked = [torch.stack(view) for view in zip(*rows, strict=True)]
        return [*stacked, (stacked[0] - stacked[0][:shadows].mean(0)).abs()]

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """The views of one update; features of a batch as their mean."""
        signal = self.signal(x, y)
        if isinstance(self.channel, PerSample):
            signal = {name: value.float().mean(0) for name, value in signal.items()}
        parts = [signal, mean_inputs(signal)]
        if not self.plans:
            self.plans = [
                self.sketch.plan(
                    {n: tuple(t.shape) for n, t in part.items()}, device=self.victim.device, seed=self.seed
                )
                for part in parts
                if part
            ]
        views = [plan(part).flatten().cpu() for plan, part in zip(self.plans, parts, strict=False)]
        return (*views, self.counts(signal)) if self.counts is not None else tuple(views)


def last_layer(parameters: Signal) -> tuple[str, str] | None:
    """The names of weight and bias of the last fully connected layer that has both."""
    pairs = [(name, name.removesuffix("weight") + "bias") for name in parameters if name.endswith("weight")]
    own = [(w, b) for w, b in pairs if parameters[w].dim() == 2 and b in parameters]
    return own[-1] if own else None


class ShareColumn:
    """How well a probe of earlier updates of a training tells later ones with more samples of a kind than usual from those with fewer.

    It keeps the last ``steps`` updates as the probes of :func:`property_leakage` see them. The probe is fitted to the first two thirds and
    asked about the rest; more than usual is above the median of those. There is no interval: from the second epoch on the probe has seen
    the samples that it is asked about. Nor is there a baseline, so labels that go with the property may explain it.
    """

    def __init__(self, *, seed: int, steps: int = 256) -> None:
        self._seed, self._steps = seed, steps
        self._plan: SketchPlan | None = None
        self._rows: list[tuple[Tensor, Tensor, float]] = []

    def add(self, sketch: Tensor, signal: Signal, share: float) -> None:
        inputs = mean_inputs(signal)
        if self._plan is None:
            shapes = {name: tuple(value.shape) for name, value in inputs.items()}
            self._plan = SignBucket().plan(shapes or {"": (1,)}, device=sketch.device, seed=self._seed)
        row = (sketch.flatten().cpu(), self._plan(inputs).flatten().cpu(), share)
        if all(bool(part.isfinite().all()) for part in row[:2]):
            self._rows = [*self._rows[1 - self._steps :], row]

    def auc(self) -> float | None:
        """None with too few steps."""
        count = 2 * len(self._rows) // 3
        if count < 2 * FEWEST:
            return None
        sketches, inputs = torch.stack([row[0] for row in self._rows]), torch.stack([row[1] for row in self._rows])
        shares = torch.tensor([share for _, _, share in self._rows])
        more, held = (shares > shares[:count].median()).long(), count // 3
        if any(part.unique().numel() < 2 for part in more.split([count - held, held, len(more) - count])):
            return None
        views = [sketches, inputs, (sketches - sketches[:count].mean(0)).abs()]
        scores, later = _best_view(views, more[None, :count], held)[0], more[count:] == 1
        return auc(scores[later], scores[~later]).value

    def nbytes(self) -> int:
        return sum(part.nbytes for row in self._rows for part in row[:2])


def mean_inputs(signal: Signal) -> dict[str, Tensor]:
    """x̄ = ∂Wᵀ∂b / ‖∂b‖² for every weight with a bias of its own, or with the bias of a normalisation right behind it."""
    found: dict[str, Tensor] = {}
    names = list(signal)
    for place, name in enumerate(names):
        weight = signal[name].float()
        near = [
            signal[n]
            for n in names[place + 1 : place + 3]
            if n.endswith("bias") and signal[n].shape == weight.shape[:1]
        ]
        if weight.dim() > 1 and near:
            bias = near[0].float()
            found[name] = weight.flatten(1).T @ bias / bias.square().sum().clamp_min(1e-20)
    return found


def _label_counts(y: Tensor, batches: Sequence[Tensor]) -> Tensor:
    """How often each class occurs in each batch, (batches, classes); zeros where targets are no classes."""
    if y.dim() != 1 or y.is_floating_point():
        return torch.zeros(len(batches), 1)
    classes = int(y.max()) + 1
    return torch.stack([torch.bincount(y[drawn].cpu(), minlength=classes).double() for drawn in batches])
