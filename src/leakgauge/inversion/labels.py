"""Reading the labels off the gradient of the head, z = W h + b under cross entropy.

For sample k with features h_k, class probabilities p_k and one-hot label y_k, the shared (mean) gradients are
∂W_i = 1/B Σ_k (p_ki − y_ki) h_k and ∂b_i = 1/B Σ_k (p_ki − y_ki). Only y_ki makes an entry negative.
Each rule checks what it relies on and raises ``Inapplicable`` otherwise.
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
    """Labels (B,) in any order, or None when they are to be optimised together with the images."""

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None: ...


@dataclass(frozen=True)
class Joint:
    """No rule: label logits are optimised together with the image, as in DLG."""

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        return None


@dataclass(frozen=True)
class SignRule:
    """One sample: row c of ∂W points against all others, ⟨∂W_c, ∂W_j⟩ ≤ 0 for every j ≠ c.

    Rows are (p_i − y_i)·h with the same h, and only p_c − 1 is negative; features of any sign will do. A row of zeros, of a
    class whose probability is too small for the type of numbers, opposes nothing and is not looked at.

    Ref: Zhao et al. 2020, Eq. (5) — iDLG's label rule
    """

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        if batch_size(seen) != 1:
            raise Inapplicable(f"the sign rule reads one label, the batch has {seen.size}")
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
    """Distinct labels: the B classes whose row of ∂W has the smallest entry, for features h ≥ 0.

    A class outside the batch has no negative entry, so at least B rows must have one; noise may add more.

    Ref: Yin et al. 2021, batch label restoration — column-wise minimum of the head's gradient
    """

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        smallest = head_gradient(victim, seen, "weight").min(1).values
        require_positive_features(victim, rng=rng, rule="Yin et al.'s rule")
        size = batch_size(seen)
        if size > int((smallest < 0).sum()):
            raise Inapplicable(
                f"Yin et al.'s rule needs {size} distinct labels, only {int((smallest < 0).sum())} classes show one"
            )
        return smallest.argsort()[:size].sort().values


@dataclass(frozen=True)
class BiasCounts:
    """Labels that may repeat: how often each class occurs, from ∂b_i = 1/B Σ_k p_ki − n_i/B.

    Every class with ∂b_i < 0 occurs at least once. One occurrence is taken to account for
    u = 1/B Σ_{i: ∂b_i<0} |∂b_i|; the rest of the B labels goes, one by one, to the class whose −∂b_i − n_i·u is largest.
    Exact while the probabilities p_k are alike for all samples and classes (an untrained model), an estimate otherwise.
    With ``strict=False`` more than B negative entries, as noise makes them, are no obstacle: the B largest drops count.

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
    """Labels that may repeat, for a model that is far from trained: n_i = B · (p̄_i − ∂b_i), from ∂b_i = 1/B Σ_k p_ki − n_i/B.

    p̄ are the mean probabilities that the public model gives to ``probes`` samples of noise. The B labels go to the classes
    whose entry is negative, one each, and then one by one to the class that lacks most. An untrained model may favour some
    classes whatever it sees, and :class:`BiasCounts` misses those in a batch; here they are taken into account. Refused where
    the probabilities change from sample to sample, as they do after training: their deviation s must leave B · s/√B below
    ``doubt`` of a label. Refused too where ∂b is not as long as the counts say, by a factor of two: clipping, or a loss that
    sums over the batch, has changed its scale, which :class:`BiasCounts` does not need.

    Ref: Wainakh et al. 2022, attack with a shared model — offsets of the classes estimated with dummy data
    """

    probes: int = 64
    doubt: float = 0.25

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        size = batch_size(seen)
        if not is_gradient(single_client(seen.channel), victim.mode):
            raise Inapplicable("the chance rule needs the gradient of one step, whose scale is known")
        slope = head_gradient(victim, seen, "bias")
        noise = victim.to_input(victim.space.start(self.probes, rng))
        with torch.no_grad(), private_randomness(0, victim.device):  # of dropout
            chances = victim(noise).softmax(1).double()
        doubt = float(chances.std(0).max()) * size**0.5
        if not doubt < self.doubt:
            raise Inapplicable(
                f"the chance rule needs a model that gives all images alike chances; here counts are off by {doubt:.2f} labels"
            )
        expected = size * (chances.mean(0) - slope)
        counts = (slope < 0).long()  # only a label makes an entry negative
        if int(counts.sum()) > size:  # more classes than labels: something else did
            counts = torch.zeros_like(counts)
        for _ in range(size - int(counts.sum())):
            counts[(expected - counts).argmax()] += 1
        explained = chances.mean(0) - counts / size
        scale = float(slope @ explained / explained.square().sum())
        if not 0.5 < scale < 2:
            raise Inapplicable(
                f"the chance rule needs the gradient as it was computed, its scale is {scale:.2g} times that"
            )
        return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)


@dataclass(frozen=True)
class CloudPrediction:
    """The classes that the cloud computes from the features it was sent, as it does for every customer.

    An image matched to features does not depend on them; they are what the cloud knows anyway.
    """

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        if not isinstance(seen.channel, Features):
            raise Inapplicable("the cloud computes classes from features; this observation holds none")
        with torch.no_grad():
            scores = seen.channel.resume(victim, seen.signal)
        if not isinstance(scores, Tensor) or scores.dim() != 2:
            return torch.zeros(batch_size(seen), dtype=torch.long, device=victim.device)
        return scores.argmax(1)


@dataclass(frozen=True)
class FirstThatApplies:
    """The first rule whose precondition holds; if none does, ``Inapplicable`` with every reason."""

    rules: tuple[LabelRule, ...]

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor | None:
        reasons: list[str] = []
        for rule in self.rules:
            try:
                return rule(victim, seen, rng=rng)
            except Inapplicable as reason:
                reasons.append(str(reason))
        raise Inapplicable("; ".join(dict.fromkeys(reasons)))


def read_off() -> FirstThatApplies:
    """Labels that must be read: the sign rule for one sample; counts from the bias, less the chances that an untrained
    model gives to noise; Yin et al.; where noise breaks their preconditions, the best guess from the bias. ``Inapplicable``
    with every reason where none applies, as for a withheld head or another loss than cross entropy.
    """
    return FirstThatApplies((SignRule(), ChanceCounts(), BiasCounts(), MinimumEntry(), BiasCounts(strict=False)))


def inferred() -> LabelRule:
    """What attacks use by default: what :func:`read_off` reads, and where it cannot, the label as one more unknown."""
    return FirstThatApplies((*read_off().rules, Joint()))


def readable(rule: LabelRule, victim: Victim, seen: Observation, *, seed: int) -> Tensor | None:
    """Labels for an attack whose image does not depend on them: where they cannot be read, not knowing them is no obstacle."""
    try:
        return rule(victim, seen, rng=torch.Generator().manual_seed(seed))
    except Inapplicable:
        return None


def class_labels(rule: LabelRule, victim: Victim, seen: Observation, *, rng: torch.Generator) -> Tensor | None:
    """The labels that were revealed, else what the rule reads."""
    known = rule(victim, seen, rng=rng) if seen.labels is None else seen.labels
    if known is not None and not isinstance(known, Tensor):
        raise Inapplicable("matching handles class labels; structured targets need an attack of their own")
    return known


def batch_size(seen: Observation) -> int:
    """The size the adversary was told."""
    if seen.size is None:
        raise Inapplicable("not shared: batch size")
    return seen.size


def optimised_classes(victim: Victim) -> int:
    """Number of classes of the public head, for a loss that takes probabilities of them; refuses any other loss."""
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
                said = next(iter(str(error).splitlines()), type(error).__name__)
                raise Inapplicable(
                    f"labels cannot be optimised, the loss takes no class probabilities ({said}); reveal the labels"
                ) from error
    return count


def _probe(victim: Victim, rng: torch.Generator) -> Tensor:
    """Noise to run through the public model; more than one sample, for batch normalisation in train mode."""
    return victim.to_input(victim.space.start(4, rng))


def _head(victim: Victim) -> tuple[str, nn.Linear]:
    name = find_roles(victim.model).head
    if name is None:
        raise Inapplicable("the model has no linear head, so labels cannot be read off its gradient")
    dense = [n for n, m in victim.model.named_modules() if isinstance(m, nn.Linear)]
    with torch.no_grad(), private_randomness(0, victim.device), capturing(victim.model, dense) as ran:
        output = victim(_probe(victim, torch.Generator().manual_seed(0)))
    if isinstance(output, Tensor) and output.dim() < 2:
        raise Inapplicable(
            "the model gives one number per sample and no scores of classes, so there are no labels to read; reveal them"
        )
    if ran and isinstance(output, Tensor):
        wide = [n for n in ran if victim.model.get_submodule(n).out_features == output.shape[1]]
        if not wide:
            raise Inapplicable(
                "no linear layer of the model gives a score per class, so labels cannot be read off its gradient"
            )
        if name not in wide:  # an auxiliary classifier, or what is left of another task
            name = wide[-1]
    elif ran and name not in ran:
        name = list(ran)[-1]
    head = victim.model.get_submodule(name)
    if not isinstance(head, nn.Linear):
        raise Inapplicable(f"the head {name} is a {type(head).__name__}, the label rules need a Linear")
    return name, head


def head_gradient(victim: Victim, seen: Observation, which: str) -> Tensor:
    """Gradient of the head's ``weight`` or ``bias``, up to a positive factor, in float64."""
    if not is_cross_entropy(victim.loss):
        raise Inapplicable("the label rules hold for cross entropy on hard labels only")
    name = f"{_head(victim)[0]}.{which}"
    if name not in seen.signal:
        raise Inapplicable(f"not shared: {name}")
    # a weight update points against the gradient; over several steps this is the first-order estimate
    factor = -1.0 if is_weight_update(seen.channel) else 1.0
    return factor * seen.signal[name].double()


def is_cross_entropy(loss: object) -> bool:
    """Plain cross entropy: label smoothing moves the sign of the gradient's entries."""
    if isinstance(loss, nn.CrossEntropyLoss):
        return loss.label_smoothing == 0 and loss.weight is None
    return loss is F.cross_entropy


def require_positive_features(victim: Victim, *, rng: torch.Generator, rule: str) -> None:
    """Runs noise through the public model and refuses if anything negative enters the head."""
    name, _ = _head(victim)
    with torch.no_grad(), private_randomness(0, victim.device), capturing(victim.model, (name,)) as seen:
        victim(_probe(victim, rng))
    if float(seen[name].min()) < 0:
        raise Inapplicable(f"{rule} needs features without negative values before the head {name}")


def _exactly(present: Tensor, size: int, *, rule: str) -> Tensor:
    if int(present.sum()) != size:
        raise Inapplicable(f"{rule} needs {size} distinct labels, {int(present.sum())} classes show one")
    return present.nonzero().flatten()
