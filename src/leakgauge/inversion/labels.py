"""Reads the labels from the gradient of the head, z = W h + b under cross entropy.

For sample k with features h_k, class probabilities p_k and one-hot label y_k, the shared (mean) gradients are
∂W_i = 1/B Σ_k (p_ki − y_ki) h_k and ∂b_i = 1/B Σ_k (p_ki − y_ki). Only y_ki makes an entry negative.
Each rule checks its preconditions and raises ``Inapplicable`` if they do not hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.channels import Features
from leakgauge.channels.facts import (
    is_gradient,
    is_weight_update,
    lacks_clients,
    local_steps,
    require_shared,
    single_client,
    step_size,
    summed_rate,
)
from leakgauge.core import Loss, Observation, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.engine.reference import capturing, inputs_of
from leakgauge.errors import Inapplicable, first_line
from leakgauge.families import find_roles
from leakgauge.inversion.class_counts import (
    UNEVEN_ASSUMED,
    UNEVEN_SEEN,
    ClassRates,
    CountEstimate,
    assumed_rates,
    estimate_counts,
    fit_temperature,
    rates_from_scores,
    thrown_off,
)
from leakgauge.inversion.cross_entropy import is_cross_entropy, label_smoothing
from leakgauge.inversion.output_gradient import OutputGradient, samples_at_head


class LabelRule(Protocol):
    """Labels (B,) in any order, or None to optimise them together with the images."""

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None: ...


@dataclass(frozen=True, eq=False)
class ReadLabels:
    """``labels`` (B,) in any order, or None. ``accuracy`` is the share that the rule expects to be right, as a multiset; None if
    the rule does not state it, or the labels were revealed."""

    labels: Tensor | None
    accuracy: float | None = None


@runtime_checkable
class StatingRule(LabelRule, Protocol):
    """A rule that states how many of its labels it expects to be right."""

    def read(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> ReadLabels: ...


@dataclass(frozen=True)
class Joint:
    """No rule: label logits are optimised together with the image, as in DLG."""

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        return None


@dataclass(frozen=True)
class SignRule:
    """One sample: row c of ∂W points against all others, ⟨∂W_c, ∂W_j⟩ ≤ 0 for every j ≠ c.

    Rows are (p_i − y_i)·h with the same h, and only p_c − 1 is negative; features may have any sign. A row of zeros (a class
    with a probability too small for the number type) opposes nothing and is skipped.

    Ref: Zhao et al. 2020, Eq. (5) — iDLG's label rule
    """

    def read(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> ReadLabels:
        return ReadLabels(self(victim, seen, rng=rng), 1.0)

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        if batch_size(seen) != 1:
            raise Inapplicable(f"the sign rule reads one label, but the batch has {seen.size}")
        rows = head_gradient(victim, seen, "weight")
        lengths = rows.norm(dim=1)
        classes = lengths.nonzero().flatten()
        rows = rows[classes] / lengths[classes, None]
        agreement = rows @ rows.T
        agreement.fill_diagonal_(-1)
        found = classes[(agreement < 0).all(1)]
        if len(found) != 1:
            raise Inapplicable(
                f"the sign rule needs exactly one row of the head's gradient that opposes all others, found {len(found)}"
            )
        return found


@dataclass(frozen=True)
class RowSum:
    """Distinct labels: class i is in the batch iff Σ_j ∂W_ij < 0, for features h ≥ 0 (after a ReLU or a sigmoid).

    Ref: Wainakh et al. 2022, section 4.1 — the sign of the summed row gives presence
    """

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        sums = head_gradient(victim, seen, "weight").sum(1)
        require_positive_features(victim, rng=rng, rule="the row-sum rule")
        return _exactly(sums < 0, batch_size(seen), rule="the row-sum rule")


@dataclass(frozen=True)
class MinimumEntry:
    """Distinct labels: the B classes with the smallest entry in their row of ∂W, for features h ≥ 0.

    A class outside the batch has no negative entry, so at least B rows must have one; noise may add more.

    Ref: Yin et al. 2021, batch label restoration — column-wise minimum of the head's gradient
    """

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        smallest = head_gradient(victim, seen, "weight").min(1).values
        require_positive_features(victim, rng=rng, rule="Yin et al.'s rule")
        size = batch_size(seen)
        if size > int((smallest < 0).sum()):
            raise Inapplicable(
                f"Yin et al.'s rule needs {size} distinct labels, but only {int((smallest < 0).sum())} classes show one"
            )
        return smallest.argsort()[:size].sort().values


@dataclass(frozen=True)
class BiasCounts:
    """Labels that may repeat: how often each class occurs, from ∂b_i = 1/B Σ_k p_ki − n_i/B.

    Every class with ∂b_i < 0 occurs at least once. One occurrence is assumed to account for
    u = 1/B Σ_{i: ∂b_i<0} |∂b_i|; the rest of the B labels go, one by one, to the class with the largest −∂b_i − n_i·u.
    Exact while the probabilities p_k are equal for all samples and classes (an untrained model), an estimate otherwise.
    With ``strict=False`` more than B negative entries, as noise causes them, are allowed: the B largest drops count.

    Ref: Wainakh et al. 2022, section 4.2 — counting labels by the impact of one sample
    """

    strict: bool = True

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        size = batch_size(seen)
        missing = -head_gradient(victim, seen, "bias")
        present = missing > 0
        if self.strict and not 1 <= int(present.sum()) <= size:
            raise Inapplicable(
                f"the count rule needs 1 to {size} classes with a negative bias gradient, found {int(present.sum())}"
            )
        unit = missing[present].sum() / size
        counts = present.long() if self.strict else torch.zeros_like(present, dtype=torch.long)
        while int(counts.sum()) < size:
            counts[(missing - counts * unit).argmax()] += 1
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


@dataclass(frozen=True)
class ExpectedCounts:
    """Labels that may repeat, of trained and untrained models: E[n | ∂b], rounded; see :mod:`leakgauge.inversion.class_counts`.

    How the model answers to each class is learned from at most ``images`` public images where the server holds some, and from
    noise where the model answers alike to all inputs, as before training. Any other model without public images either answers to
    images as to noise, or is calibrated and equally good at all classes: what explains ∂b better counts more. After local steps the
    public model is known at both ends, and answers are averaged over the straight way between them. Label smoothing is known from the
    loss.

    Refused if nothing but a gradient or a change of weights explains the signal, and for an untrained model if the length of ∂b
    is off by a factor of four from what the counts imply: then clipping has changed the scale, which :class:`BiasCounts` does not
    need.

    Ref: Wainakh et al. 2022, attack with auxiliary data — offsets of the classes estimated with other images
    """

    images: int = 256

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        return self.read(victim, seen, rng=rng).labels

    def read(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> ReadLabels:
        found = self.estimate(victim, seen, rng=rng)
        return ReadLabels(found.labels, found.accuracy)

    def estimate(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> CountEstimate:
        """The counts, with the share of labels that the rule itself expects to be right."""
        size, smoothing = batch_size(seen), label_smoothing(victim.loss)
        if not (is_gradient(single_client(seen.channel), victim.mode) or is_weight_update(seen.channel)):
            raise Inapplicable("expected counts need a gradient or the change of weights after local steps")
        slope = head_gradient(victim, seen, "bias", smoothed=True) / _gradient_scale(victim, seen)
        if not bool(slope.isfinite().all()):
            raise Inapplicable("the gradient of the head's bias is not finite")
        possible = self._rates(victim, seen, rng)
        found = estimate_counts(slope, size, possible, smoothing=smoothing, shown=_shown(victim, seen, rng))
        rates = possible[0]
        if rates.alike and not thrown_off(slope, possible):
            shares = found.counts.to(slope) / size
            explained = rates.mean.T @ shares - (1 - smoothing) * shares - smoothing / len(shares)
            scale = float(slope @ explained / explained.square().sum())
            if scale > 0 and not 0.25 < scale < 4:  # no clipping turns a gradient round: then the answers are not known
                raise Inapplicable(
                    f"expected counts need the unscaled gradient, but this one is {scale:.2g} times as large"
                )
        return found

    def _rates(self, victim: Victim, seen: Observation, rng: torch.Generator) -> list[ClassRates]:
        if seen.auxiliary is not None:
            scores = _scores_on_the_way(victim, seen, seen.auxiliary[: self.images])
            measured = rates_from_scores(scores, temperature=_temperature(victim, seen, scores[0]))
            return measured.doubted(UNEVEN_SEEN)
        scores = _scores_on_the_way(victim, seen, _patterns(victim, 64, rng))
        as_noise = rates_from_scores(scores, temperature=math.inf)  # noise is of no class
        if as_noise.alike:
            return as_noise.doubted(UNEVEN_SEEN[:1])
        assumed = [
            one for rates in assumed_rates((scores - scores[0]).mean(1)) for one in rates.doubted(UNEVEN_ASSUMED)
        ]
        return [*as_noise.doubted(UNEVEN_SEEN), *assumed]


@dataclass(frozen=True)
class SeparatedLabels:
    """Labels of a small batch, exactly: the samples are separated at the head; see :mod:`leakgauge.inversion.head_samples`.

    It holds for trained and untrained models, in eval and train mode, with labels that repeat, and needs the plain gradient of the head's
    weight and bias.
    """

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        return self.read(victim, seen, rng=rng).labels

    def read(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> ReadLabels:
        found, size = samples_at_head(victim, seen), batch_size(seen)
        return ReadLabels(found.labels.sort().values.to(victim.device), found.seen / size)


@dataclass(frozen=True)
class CloudPrediction:
    """The classes that the cloud computes from the features, as it does for every request.

    An image matched to features does not depend on the classes; the cloud knows them anyway.
    """

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        if not isinstance(seen.channel, Features):
            raise Inapplicable("the cloud computes classes from features, but this observation has no features")
        with torch.no_grad():
            scores = seen.channel.resume(victim, seen.signal)
        if not isinstance(scores, Tensor) or scores.dim() != 2:
            return torch.zeros(batch_size(seen), dtype=torch.long, device=victim.device)
        return scores.argmax(1)


@dataclass(frozen=True)
class FirstThatApplies:
    """The first rule with preconditions that hold; if there is none, ``Inapplicable`` with every reason."""

    rules: tuple[LabelRule, ...]

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        return self.read(victim, seen, rng=rng).labels

    def read(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> ReadLabels:
        reasons: list[str] = []
        for rule in self.rules:
            try:
                return _read(rule, victim, seen, rng)
            except Inapplicable as reason:
                reasons.append(str(reason))
        raise Inapplicable("; ".join(dict.fromkeys(reasons)))


def read_labels() -> FirstThatApplies:
    """The rule for attacks that need labels: the sign rule for one sample; the samples of a small batch separated at the head; expected
    counts from the bias; if the signal is no plain gradient or has another scale, counts that do not depend on it; Yin et al. without a
    bias. ``Inapplicable`` with every reason if none applies, for example with a withheld head or a loss other than cross entropy.
    """
    return FirstThatApplies(
        (SignRule(), SeparatedLabels(), ExpectedCounts(), BiasCounts(), MinimumEntry(), BiasCounts(strict=False))
    )


def infer_labels() -> LabelRule:
    """The default rule: :func:`read_labels`, and if that does not apply, labels are optimised with the image."""
    return FirstThatApplies((*read_labels().rules, Joint()))


def labels_or_none(rule: LabelRule, victim: Victim, seen: Observation, *, seed: int) -> Tensor | None:
    """Labels for an attack whose image does not depend on them: None if they cannot be read."""
    try:
        return rule(victim, seen, rng=torch.Generator().manual_seed(seed))
    except Inapplicable:
        return None


def read_or_none(rule: LabelRule, victim: Victim, seen: Observation, *, seed: int) -> ReadLabels:
    """As :func:`read_class_labels`, without labels if they cannot be read."""
    try:
        return read_class_labels(rule, victim, seen, rng=torch.Generator().manual_seed(seed))
    except Inapplicable:
        return ReadLabels(None)


def class_labels(rule: LabelRule, victim: Victim, seen: Observation, *, rng: torch.Generator) -> Tensor | None:
    """The revealed labels, or else what the rule reads, dealt evenly to the local steps: in which step a label was is unknown."""
    return read_class_labels(rule, victim, seen, rng=rng).labels


def read_class_labels(rule: LabelRule, victim: Victim, seen: Observation, *, rng: torch.Generator) -> ReadLabels:
    """As :func:`class_labels`, with the share of labels that the rule expects to be right."""
    if seen.labels is None or isinstance(rule, OutputGradient):
        found = _read(rule, victim, seen, rng)
        parts = is_weight_update(seen.channel) and step_size(seen.channel, batch_size(seen)) < batch_size(seen)
        if parts and found.labels is not None:
            return replace(found, labels=found.labels[_evenly(found.labels)])
        return found
    if not isinstance(seen.labels, Tensor):
        raise Inapplicable("matching handles class labels only; structured targets need another attack")
    return ReadLabels(seen.labels)


def _read(rule: LabelRule, victim: Victim, seen: Observation, rng: torch.Generator) -> ReadLabels:
    if isinstance(rule, StatingRule):
        return rule.read(victim, seen, rng=rng)
    return ReadLabels(rule(victim, seen, rng=rng))


def _evenly(labels: Tensor) -> Tensor:
    """An order in which each part of the batch has about the same share of every class."""
    counts, before, places = labels.bincount().tolist(), [0] * (int(labels.max()) + 1), list[float]()
    for label in labels.tolist():
        places.append((before[label] + 0.5) / counts[label])
        before[label] += 1
    return torch.tensor(places).argsort(stable=True)


def batch_size(seen: Observation) -> int:
    """The batch size that the adversary knows; refuses an observation without it."""
    if seen.size is None:
        raise Inapplicable("not shared: batch size")
    return seen.size


MULTI_LABEL = (F.binary_cross_entropy_with_logits, F.binary_cross_entropy, F.multilabel_soft_margin_loss)
MULTI_LABEL_MODULES = (nn.BCEWithLogitsLoss, nn.BCELoss, nn.MultiLabelSoftMarginLoss, nn.MultiLabelMarginLoss)
"""Losses of several labels per image: they take class probabilities, which says nothing about what their labels are."""


def has_several_labels(loss: Loss) -> bool:
    return isinstance(loss, MULTI_LABEL_MODULES) or loss in MULTI_LABEL


def class_count(victim: Victim) -> int:
    """The number of classes of the public head, if the loss takes class probabilities; refuses any other loss."""
    count = int(_head(victim)[1].out_features)
    if count < 2:
        raise Inapplicable("the head has a single output, so there are no classes to choose from; reveal the labels")
    if has_several_labels(victim.loss):
        raise Inapplicable("an image may have several labels under this loss, which no rule reads; reveal the labels")
    if not is_cross_entropy(victim.loss):
        with torch.no_grad(), private_randomness(0, victim.device):
            probe = _probe(victim, torch.Generator().manual_seed(0))
            output, even = victim(probe), torch.full((len(probe), count), 1 / count).to(probe)
            try:
                victim.loss(output, even)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                reason = first_line(error)
                raise Inapplicable(
                    f"labels cannot be optimised because the loss takes no class probabilities ({reason}); reveal the labels"
                ) from error
    return count


def as_targets(victim: Victim, labels: Tensor) -> Tensor:
    """Class numbers as the loss takes them: themselves, or as probabilities where it takes only these."""
    if is_cross_entropy(victim.loss) or labels.is_floating_point():
        return labels
    count = class_count(victim)
    with torch.no_grad(), private_randomness(0, victim.device):
        probe = _probe(victim, torch.Generator().manual_seed(0))
        probe = probe[1:] if len(probe) == count else probe  # or numbers would be taken for one row of probabilities
        output = victim(probe)
        try:
            victim.loss(output, labels.new_zeros(len(probe)))
        except (RuntimeError, ValueError, TypeError, IndexError):
            return F.one_hot(labels, count).to(probe)
    return labels


def _probe(victim: Victim, rng: torch.Generator) -> Tensor:
    """Noise to run through the public model; more than one sample, because of batch normalisation in train mode."""
    return victim.to_input(victim.space.start(4, rng))


def _head(victim: Victim) -> tuple[str, nn.Linear]:
    name = find_roles(victim.model).head
    if name is None:
        raise Inapplicable("the model has no linear head, so labels cannot be read from its gradient")
    dense = [n for n, m in victim.model.named_modules() if isinstance(m, nn.Linear)]
    with torch.no_grad(), private_randomness(0, victim.device), capturing(victim.model, dense) as ran:
        output = victim(_probe(victim, torch.Generator().manual_seed(0)))
    if isinstance(output, Tensor) and output.dim() < 2:
        raise Inapplicable(
            "the model returns one number per sample and no class scores, so there are no labels to read; reveal them"
        )
    if ran and isinstance(output, Tensor):
        wide = [n for n in ran if victim.model.get_submodule(n).out_features == output.shape[1]]
        if not wide:
            raise Inapplicable(
                "no linear layer of the model gives a score per class, so labels cannot be read from its gradient"
            )
        if name not in wide:  # an auxiliary classifier, or a remainder of another task
            name = wide[-1]
    elif ran and name not in ran:
        name = list(ran)[-1]
    head = victim.model.get_submodule(name)
    if not isinstance(head, nn.Linear):
        raise Inapplicable(f"the label rules need a Linear head, but {name} is a {type(head).__name__}")
    return name, head


def head_gradient(victim: Victim, seen: Observation, which: str, *, smoothed: bool = False) -> Tensor:
    """Gradient of the head's ``weight`` or ``bias``, up to a positive factor, in float64. ``smoothed`` allows label smoothing."""
    smoothing = label_smoothing(victim.loss)
    if smoothing and not smoothed:
        raise Inapplicable("this label rule only holds for cross entropy on hard labels, without label smoothing")
    if lacks_clients(seen.channel):
        raise Inapplicable("clients dropped out, so fewer labels are in the update than the batch has samples")
    name = f"{_head(victim)[0]}.{which}"
    # a weight update points against the gradient; over several steps this is the first-order estimate
    factor = -1.0 if is_weight_update(seen.channel) else 1.0
    return factor * require_shared(seen.signal, name).double()


def _gradient_scale(victim: Victim, seen: Observation) -> float:
    """By what the head's gradient must be divided to be the mean over the batch and the local steps."""
    size = batch_size(seen)
    rate = summed_rate(seen.channel, size) if is_weight_update(seen.channel) else 1.0
    adds = isinstance(victim.loss, nn.CrossEntropyLoss) and victim.loss.reduction == "sum"
    return rate * (step_size(seen.channel, size) if adds else 1)


POINTS = 5
"""Models on the way of the local steps, at most, at which scores are taken."""


def _scores_on_the_way(victim: Victim, seen: Observation, images: Tensor) -> Tensor:
    """Class scores (T, N, K) of ``images`` at up to T = ``POINTS`` models between the public one and the one after local steps.

    In train mode the images pass in at most 32 batches of the client's size, because the model uses their statistics.
    """
    weights, steps = victim.parameters(), local_steps(seen.channel, batch_size(seen))
    count = min(POINTS, steps) if is_weight_update(seen.channel) else 1
    size = len(images)
    if victim.mode == "train":
        size = min(size, max(2, step_size(seen.channel, batch_size(seen))))
    batches = [b for b in victim.to_input(images).split(size) if len(b) == size][:32]
    found: list[Tensor] = []
    with torch.no_grad(), private_randomness(0, victim.device):  # for dropout
        for k in range(count):
            moved = {n: p + k / count * seen.signal[n].to(p) if n in seen.signal else p for n, p in weights.items()}
            found.append(torch.cat([victim(b, parameters=moved if k else None) for b in batches]).double())
    if not all(bool(scores.isfinite().all()) for scores in found):
        raise Inapplicable("the model's class scores are not finite")
    return torch.stack(found)


def _patterns(victim: Victim, count: int, rng: torch.Generator) -> Tensor:
    """Inputs of no class: noise, and for images also the same noise in coarse squares, which a trained model answers differently."""
    noise = victim.space.start(count, rng)
    if noise.dim() != 4 or min(noise.shape[2:]) < 8:
        return noise
    return torch.cat([noise, F.interpolate(noise[..., :4, :4], size=noise.shape[2:])])


def _temperature(victim: Victim, seen: Observation, scores: Tensor) -> float:
    """The temperature at which ``scores`` (N, K) of public images explain the head's gradient; 1 if that is not shared."""
    name, head = _head(victim)
    if f"{name}.weight" not in seen.signal:
        return 1.0
    scale = _gradient_scale(victim, seen)
    parts = [(which, value) for which, value in (("weight", head.weight), ("bias", head.bias)) if value is not None]
    slopes = [head_gradient(victim, seen, which, smoothed=True) / scale for which, _ in parts]
    margin = -sum(
        float((slope * value.detach().double()).sum()) for slope, (_, value) in zip(slopes, parts, strict=True)
    )
    return fit_temperature(scores, margin, smoothing=label_smoothing(victim.loss))


TRACE = 1e-5
"""Smallest negative entry of ∂W that shows a class, as a share of the largest entry; smaller ones may be rounding."""


def _shown(victim: Victim, seen: Observation, rng: torch.Generator) -> Tensor | None:
    """Classes (K,) that are certainly in the batch: for features h ≥ 0 only a label y_kc = 1 makes an entry of row c negative.

    None where that cannot be told: features with a sign, label smoothing, or a weight that is not shared.
    """
    name, _ = _head(victim)
    if label_smoothing(victim.loss) or f"{name}.weight" not in seen.signal:
        return None
    try:
        require_positive_features(victim, rng=rng, rule="")
    except Inapplicable:
        return None
    rows = head_gradient(victim, seen, "weight")
    return rows.min(1).values < -TRACE * rows.abs().max()


def require_positive_features(victim: Victim, *, rng: torch.Generator, rule: str) -> None:
    """Runs noise through the public model and refuses if a negative value enters the head."""
    name, _ = _head(victim)
    if float(inputs_of(victim, (name,), _probe(victim, rng))[name].min()) < 0:
        raise Inapplicable(f"{rule} needs features without negative values before the head {name}")


def _exactly(present: Tensor, size: int, *, rule: str) -> Tensor:
    if int(present.sum()) != size:
        raise Inapplicable(f"{rule} needs {size} distinct labels, {int(present.sum())} classes show one")
    return present.nonzero().flatten()
