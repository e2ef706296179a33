"""The gradient at the model's output, read from the head: an attack that knows it need not replay the loss."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from leakgauge.channels.dpsgd import DPSGD
from leakgauge.channels.facts import is_gradient, require_shared
from leakgauge.channels.output import Along
from leakgauge.core import Loss, Observation, Signal, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.engine.reference import inputs_of, outputs_of
from leakgauge.errors import Inapplicable
from leakgauge.families import find_roles
from leakgauge.inversion.beneath_head import Link, links_beneath, walk_down
from leakgauge.inversion.cross_entropy import label_smoothing
from leakgauge.inversion.defended import useful
from leakgauge.inversion.head_samples import HeadSamples, refuse_many_classes, separate_at_head
from leakgauge.inversion.mismatch import layer_mismatch
from leakgauge.inversion.terms import Candidate, Term


@dataclass(frozen=True)
class OutputGradient:
    """A rule for labels that gives (d, a): d = ∂loss/∂z (B, C) at the output z = W h + b, scaled to length 1, and a (B, D), what enters the
    lowest fully connected layer whose inputs are known, for most networks the head: a = h.

    It does so even where labels are revealed. For one sample ∂loss/∂b = d, and a is left 0: matching it helps some networks and
    harms others. The samples of a small batch are separated (:mod:`leakgauge.inversion.head_samples`), in an order of its own.

    With :class:`~leakgauge.channels.output.Along` in place of the loss, the replay of the truth then points where the observed gradient
    does, even where the network is so sure of its class that p − y is rounded: the client's own rounding is in d.
    """

    loss: Loss | None = None
    """The client's, where the victim has another one."""

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor:
        return output_gradients(victim if self.loss is None else replace(victim, loss=self.loss), seen)


def output_gradients(victim: Victim, seen: Observation) -> Tensor:
    """(d, a), of shape (B, C + D); ``Inapplicable`` where d cannot be read."""
    if seen.size == 1:
        d = output_gradient(victim, seen)[None]
        return torch.cat((d, d.new_zeros(1, _layer(victim, _last_layer(victim)).in_features)), 1)
    return _towards(victim, samples_at_head(victim, seen))


def _towards(victim: Victim, found: ReachedSamples) -> Tensor:
    """(d, a) of a batch."""
    scaled, unseen = found.outputs / found.outputs.abs().max(), len(found.outputs) - len(found.inputs)
    inputs = nn.functional.pad(found.inputs, (0, 0, 0, unseen))
    return torch.cat((scaled / scaled.norm(), inputs), 1).float().to(victim.device)


def _layer(victim: Victim, name: str) -> nn.Linear:
    layer = victim.model.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise Inapplicable(f"the output of {name} is not that of a linear layer")
    return layer


@dataclass(frozen=True)
class HeadFeatures(Term):
    """1/n Σ_k ‖a(x_k) − a_k‖² / ‖a_k‖² over the n samples of a batch with inputs a_k that :class:`OutputGradient` read; 0 if none.

    In the gradient of a batch the samples with small d hardly count. Here each counts as much.
    """

    reads_signal: ClassVar[bool] = True

    def captures(self, victim: Victim) -> tuple[str, ...]:
        return (victim.loss.layer,) if isinstance(victim.loss, Along) else ()

    def __call__(self, at: Candidate, /) -> Tensor:
        loss = at.victim.loss
        if not isinstance(loss, Along) or at.targets is None:
            return at.x.new_zeros(len(at.x))
        found = at.require_replay().inputs(loss.layer)
        wanted = at.targets[..., -found.shape[-1] :].to(at.x)
        size = wanted.square().sum(-1)
        known = (size > 0).to(at.x)
        apart = (found - wanted).square().sum(-1) / size.clamp_min(_TINY)
        return (known * apart).sum(-1) / known.sum(-1).clamp_min(1)


FEATURES = 0.1
"""Weight of the features beside a cosine, in searches without a prior. With 0 the samples with small d are not found, with 1 others are
found less well on deep networks."""
_TINY = 1e-20


@dataclass(frozen=True, eq=False)
class ReachedSamples(HeadSamples):
    """Samples separated at the head, what enters the lowest fully connected ``layer`` that can be reached from there, (n, D), for those
    that were separated, and about how far it is off, relative to its length."""

    layer: str
    inputs: Tensor
    error: Tensor


def samples_at_head(victim: Victim, seen: Observation) -> ReachedSamples:
    """The samples of a small batch, separated by the gradient of the head. What was found last is kept."""
    if seen.size is None or label_smoothing(victim.loss) or not is_gradient(seen.channel, victim.mode):
        raise Inapplicable("samples are separated in the plain gradient of cross entropy, for a known batch size")
    name = _last_layer(victim)
    layer = _layer(victim, name)
    refuse_many_classes(layer.out_features)
    shared = [require_shared(seen.signal, f"{name}.{part}") for part in ("weight", "bias")]
    weight, bias = (value.detach().double().cpu() for value in shared)
    slope = torch.cat((weight, bias[:, None]), 1)
    adds = isinstance(victim.loss, nn.CrossEntropyLoss) and victim.loss.reduction == "sum"
    head = torch.cat((layer.weight.detach(), layer.bias.detach()[:, None]), 1).double().cpu()
    slope = slope / seen.size if adds else slope
    links = links_beneath(victim, name)
    key = _key(victim, seen, name, links, adds=adds)
    if key not in _KEPT:
        while len(_KEPT) >= KEPT:
            _KEPT.pop(next(iter(_KEPT)))
        try:
            likely = _features(victim, name, victim.space.start(STARTING, torch.Generator().manual_seed(0)))
            likely = torch.cat((likely, likely.new_ones(len(likely), 1)), 1)
            found = separate_at_head(slope, head, likely, size=seen.size)
            _KEPT[key] = _walked(victim, name, links, seen.signal, found, scale=1 if adds else seen.size)
        except Inapplicable as reason:
            _KEPT[key] = str(reason)
    kept = _KEPT[key]
    if isinstance(kept, str):
        raise Inapplicable(kept)
    return kept


def _key(victim: Victim, seen: Observation, head: str, links: Sequence[Link], *, adds: bool) -> str:
    """Hash of all that the answer depends on: weights and gradients of the head and of the layers beneath it, shared or not."""
    beneath = [(link.name, link.activation.__name__) for link in links]
    digest = hashlib.sha256(repr((seen.size, adds, victim.space, victim.mode, head, beneath)).encode())
    for name in (f"{layer}.{part}" for layer in (head, *(link.name for link in links)) for part in ("weight", "bias")):
        for value in (victim.model.get_parameter(name), seen.signal.get(name)):
            digest.update(
                b"-" if value is None else value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
            )
    return digest.hexdigest()


def _walked(
    victim: Victim, head: str, links: Sequence[Link], signal: Signal, found: HeadSamples, *, scale: int
) -> ReachedSamples:
    n, layers = found.seen, (head, *(link.name for link in links))
    names = [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]
    shared = {name: signal[name] for name in names if name in signal}
    lowest = walk_down(victim, head, links, shared, found.outputs[:n], found.features[:n], scale=scale)
    facts = {field.name: getattr(found, field.name) for field in fields(found)}
    return ReachedSamples(**facts, layer=lowest.layer, inputs=lowest.values, error=lowest.error)


def order_at_head(victim: Victim, seen: Observation, x: Tensor) -> Tensor:
    """The order of the samples x (B, ...) in which their features are nearest to the separated ones."""
    return _order(victim, samples_at_head(victim, seen), x)


def _order(victim: Victim, found: ReachedSamples, x: Tensor) -> Tensor:
    own = _features(victim, _last_layer(victim), x)
    if not bool(own.isfinite().all()):  # nothing to go by
        return torch.arange(len(x), device=x.device)
    from scipy.optimize import linear_sum_assignment  # here, because it takes longer to import than this whole package

    return torch.as_tensor(linear_sum_assignment(torch.cdist(found.features, own).numpy())[1], device=x.device)


def of_separated(victim: Victim, seen: Observation) -> str:
    """How many samples of a batch the replay follows, for a note; empty for one sample."""
    if seen.size == 1:
        return ""
    found = samples_at_head(victim, seen)
    if found.seen == seen.size:
        return ", where all samples were separated"
    held = f"{found.seen} of {seen.size} samples were separated, which leave {100 * found.left:.2g}% of it unexplained"
    return f", where {held}; the others are not searched"


def mismatch_along(
    victim: Victim, seen: Observation, x: Tensor, *, on: Observation | None = None, seed: int = 0
) -> float | None:
    """:func:`layer_mismatch` of the samples ``x`` of a batch, replayed along the gradient at the output instead of with labels; None where
    that cannot be read. Samples that left no trace in the head's gradient need no label there. ``on`` is the part of ``seen`` that counts.
    """
    if seen.size is None or seen.size < 2 or useful(seen.defenses):
        return None
    try:
        found = samples_at_head(victim, seen)
    except Inapplicable:
        return None
    followed, d = replace(victim, loss=Along(found.layer)), _towards(victim, found).to(x.device)
    orders = (slice(None), _order(victim, found, x))
    return min(layer_mismatch(followed, on or seen, x[order], d, seed=seed) for order in orders)


def _features(victim: Victim, head: str, x: Tensor) -> Tensor:
    """What enters the ``head`` for inputs x in model space."""
    return inputs_of(victim, (head,), victim.to_input(x))[head].double().cpu()


_KEPT: dict[str, ReachedSamples | str] = {}
KEPT = 64
"""Batches of which the samples, or the reason why they cannot be separated, are kept: every stage of an attack asks again."""
STARTING = 64
"""Noise inputs of which the features are where the search for samples starts."""


def output_gradient(victim: Victim, seen: Observation) -> Tensor:
    """d (C,) of length 1 for an observation of one sample; ``Inapplicable`` where it cannot be read."""
    if seen.size != 1:
        raise Inapplicable("the gradient at the output is the bias's gradient only for one sample")
    if not (
        is_gradient(seen.channel, victim.mode) or isinstance(seen.channel, DPSGD)
    ):  # clipping one sample only scales
        raise Inapplicable("the gradient at the output is read from a gradient, but the client sends something else")
    name = f"{_last_layer(victim)}.bias"
    found = require_shared(seen.signal, name).detach().float()
    if found.dim() != 1 or not bool(found.any()):
        raise Inapplicable(f"the gradient of {name} is zero")
    scaled = found / found.abs().max()  # squares of p − y may be too small for float32
    return scaled / scaled.norm()


def read_targets(victim: Victim, seen: Observation, x: Tensor) -> Tensor | None:
    """y with ∂loss(z, y)/∂z = ∂loss/∂b at the output z of the one sample ``x``; None where the loss does not determine it, or where
    the gradient was clipped, so its length is not the client's.

    The gradient of a squared error or a binary cross entropy is affine in the targets, g(y) = g(0) + J y, so y is the solution of a linear
    system: y = z − K/2 · ∂b for the mean squared error of K outputs, y = σ(z) − K · ∂b for the binary cross entropy.
    """
    if seen.size != 1 or not is_gradient(seen.channel, victim.mode):
        return None
    with torch.no_grad(), private_randomness(0, victim.device):
        output = victim(x)
    sent = seen.signal[f"{_last_layer(victim)}.bias"].to(output)

    def slope(y: Tensor) -> Tensor:
        with torch.enable_grad():
            z = output.detach().requires_grad_()
            return torch.autograd.grad(victim.loss(z, y.view_as(z)), z, create_graph=True)[0].flatten()

    zero = torch.zeros(output.numel(), device=output.device, dtype=output.dtype)
    jacobian = torch.autograd.functional.jacobian(slope, zero)
    assert isinstance(jacobian, Tensor)
    system = jacobian.double().cpu()
    if int(torch.linalg.matrix_rank(system)) < len(zero):  # as of an absolute error, which only shows the side
        return None
    found = torch.linalg.solve(system, (sent - slope(zero).detach()).double().cpu()).to(zero)
    left = slope(found).detach() - sent
    return found.view_as(output) if float(left.norm()) <= AGREES * float(sent.norm()) else None


AGREES = 1e-3
"""How far the gradient at the targets that were read may be from the one that was sent, relative to its length."""


def _last_layer(victim: Victim) -> str:
    """The linear layer whose output is the model's output."""
    name = find_roles(victim.model).head
    if name is None:
        raise Inapplicable("the model has no linear head")
    still = replace(victim, mode="eval")
    with torch.no_grad(), outputs_of(still.model, name) as made:
        output = still(still.to_input(still.space.start(1, torch.Generator().manual_seed(0))))
    own = made[0] if len(made) == 1 else None
    if (
        not isinstance(own, Tensor)
        or not isinstance(output, Tensor)
        or output.dim() != 2
        or not torch.equal(own, output)
    ):
        raise Inapplicable(f"the output of {name} is not the output of the model")
    return name


def along_output(victim: Victim, seen: Sequence[Observation]) -> Victim | None:
    """The victim with a loss along the gradient at the output; None where that cannot be read from all observations."""
    if any(useful(one.defenses) for one in seen):  # the bias is not what the client computed
        return None
    try:
        for one in seen:
            output_gradients(victim, one)
    except Inapplicable:
        return None
    layers = {samples_at_head(victim, one).layer for one in seen if one.size != 1}
    if len(layers) > 1:  # a replay captures one
        return None
    return replace(victim, loss=Along(next(iter(layers), _last_layer(victim))))
