"""Reads the labels from the gradient of the head, z = W h + b under cross entropy.

For sample k with features h_k, class probabilities p_k and one-hot label y_k, the shared (mean) gradients are
∂W_i = 1/B Σ_k (p_ki − y_ki) h_k and ∂b_i = 1/B Σ_k (p_ki − y_ki). Only y_ki makes an entry negative.
Each rule checks its preconditions and raises ``Inapplicable`` if they do not hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.channels import Features
from leakgauge.channels.facts import is_gradient, is_weight_update, single_client
from leakgauge.core import Observation, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.engine.reference import capturing
from leakgauge.errors import Inapplicable
from leakgauge.families import find_roles


class LabelRule(Protocol):
    """Labels (B,) in any order, or None to optimise them together with the images."""

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None: ...


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
class ChanceCounts:
    """Labels that may repeat, for a barely trained model: n_i = B · (p̄_i − ∂b_i), from ∂b_i = 1/B Σ_k p_ki − n_i/B.

    p̄ are the mean probabilities that the public model gives to ``probes`` samples of noise. Each class with a negative entry gets
    one of the B labels; the others go one by one to the class that lacks most. An untrained model may favour some classes for
    any input, and :class:`BiasCounts` misses these; this rule accounts for them. Refused if the probabilities vary between
    samples, as after training: their deviation s must keep B · s/√B below ``doubt`` of a label. Also refused if the length of
    ∂b is off by a factor of two from what the counts imply: then clipping, or a loss that sums over the batch, has changed
    the scale, which :class:`BiasCounts` does not need.

    Ref: Wainakh et al. 2022, attack with a shared model — offsets of the classes estimated with dummy data
    """

    probes: int = 64
    doubt: float = 0.25

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        size = batch_size(seen)
        if not is_gradient(single_client(seen.channel), victim.mode):
            raise Inapplicable("the chance rule needs the gradient of a single step")
        slope = head_gradient(victim, seen, "bias")
        noise = victim.to_input(victim.space.start(self.probes, rng))
        with torch.no_grad(), private_randomness(0, victim.device):  # for dropout
            chances = victim(noise).softmax(1).double()
        doubt = float(chances.std(0).max()) * size**0.5
        if not doubt < self.doubt:
            raise Inapplicable(
                f"the chance rule needs a model with similar probabilities for all images; here counts are off by {doubt:.2f} labels"
            )
        expected = size * (chances.mean(0) - slope)
        counts = (slope < 0).long()  # only a label can make an entry negative
        if int(counts.sum()) > size:  # more classes than labels: not all are due to labels
            counts = torch.zeros_like(counts)
        for _ in range(size - int(counts.sum())):
            counts[(expected - counts).argmax()] += 1
        explained = chances.mean(0) - counts / size
        scale = float(slope @ explained / explained.square().sum())
        if not 0.5 < scale < 2:
            raise Inapplicable(
                f"the chance rule needs the unscaled gradient, but this one is {scale:.2g} times as large"
            )
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


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
        reasons: list[str] = []
        for rule in self.rules:
            try:
                return rule(victim, seen, rng=rng)
            except Inapplicable as reason:
                reasons.append(str(reason))
        raise Inapplicable("; ".join(dict.fromkeys(reasons)))


def read_labels() -> FirstThatApplies:
    """The rule for attacks that need labels: the sign rule for one sample; counts from the bias, corrected by an untrained
    model's probabilities for noise; Yin et al.; if noise breaks all preconditions, the best guess from the bias. ``Inapplicable``
    with every reason if none applies, for example with a withheld head or a loss other than cross entropy.
    """
    return FirstThatApplies((SignRule(), ChanceCounts(), BiasCounts(), MinimumEntry(), BiasCounts(strict=False)))


def infer_labels() -> LabelRule:
    """The default rule: :func:`read_labels`, and if that does not apply, labels are optimised with the image."""
    return FirstThatApplies((*read_labels().rules, Joint()))


def labels_or_none(rule: LabelRule, victim: Victim, seen: Observation, *, seed: int) -> Tensor | None:
    """Labels for an attack whose image does not depend on them: None if they cannot be read."""
    try:
        return rule(victim, seen, rng=torch.Generator().manual_seed(seed))
    except Inapplicable:
        return None


def class_labels(rule: LabelRule, victim: Victim, seen: Observation, *, rng: torch.Generator) -> Tensor | None:
    """The revealed labels, or else what the rule reads."""
    known = rule(victim, seen, rng=rng) if seen.labels is None else seen.labels
    if known is not None and not isinstance(known, Tensor):
        raise Inapplicable("matching handles class labels only; structured targets need another attack")
    return known


def batch_size(seen: Observation) -> int:
    """The batch size that the adversary knows; refuses an observation without it."""
    if seen.size is None:
        raise Inapplicable("not shared: batch size")
    return seen.size


def class_count(victim: Victim) -> int:
    """The number of classes of the public head, if the loss takes class probabilities; refuses any other loss."""
    count = int(_head(victim)[1].out_features)
    if count < 2:
        raise Inapplicable("the head has a single output, so there are no classes to choose from; reveal the labels")
    if not is_cross_entropy(victim.loss):
        with torch.no_grad(), private_randomness(0, victim.device):
            probe = _probe(victim, torch.Generator().manual_seed(0))
            output, even = victim(probe), torch.full((len(probe), count), 1 / count).to(probe)
            try:
                victim.loss(output, even)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                raise Inapplicable(
                    f"labels cannot be optimised because the loss takes no class probabilities ({reason}); reveal the labels"
                ) from error
    return count


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


def head_gradient(victim: Victim, seen: Observation, which: str) -> Tensor:
    """Gradient of the head's ``weight`` or ``bias``, up to a positive factor, in float64."""
    if not is_cross_entropy(victim.loss):
        raise Inapplicable("the label rules only hold for cross entropy on hard labels")
    name = f"{_head(victim)[0]}.{which}"
    if name not in seen.signal:
        raise Inapplicable(f"not shared: {name}")
    # a weight update points against the gradient; over several steps this is the first-order estimate
    factor = -1.0 if is_weight_update(seen.channel) else 1.0
    return factor * seen.signal[name].double()


def is_cross_entropy(loss: object) -> bool:
    """Whether the loss is plain cross entropy: label smoothing changes the signs of the gradient."""
    if isinstance(loss, nn.CrossEntropyLoss):
        return loss.label_smoothing == 0 and loss.weight is None
    return loss is F.cross_entropy


def require_positive_features(victim: Victim, *, rng: torch.Generator, rule: str) -> None:
    """Runs noise through the public model and refuses if a negative value enters the head."""
    name, _ = _head(victim)
    with torch.no_grad(), private_randomness(0, victim.device), capturing(victim.model, (name,)) as seen:
        victim(_probe(victim, rng))
    if float(seen[name].min()) < 0:
        raise Inapplicable(f"{rule} needs features without negative values before the head {name}")


def _exactly(present: Tensor, size: int, *, rule: str) -> Tensor:
    if int(present.sum()) != size:
        raise Inapplicable(f"{rule} needs {size} distinct labels, {int(present.sum())} classes show one")
    return present.nonzero().flatten()
