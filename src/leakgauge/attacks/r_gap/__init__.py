"""R-GAP: the image from the gradient of one sample, layer by layer from the head to the first, in closed form."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.attacks.certificate import certify
from leakgauge.attacks.found_images import valid_range
from leakgauge.attacks.r_gap.chain import Layer, read_chain
from leakgauge.attacks.r_gap.head import Start, starts
from leakgauge.attacks.r_gap.system import Judgement, RankAnalysis, system_of_convolution, system_of_linear
from leakgauge.channels.facts import local_steps, require_gradients, require_shared
from leakgauge.core import Observation, Reconstruction, Signal, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.engine import Observed
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import LabelRule, batch_size, infer_labels, labels_or_none


@dataclass(frozen=True)
class RGap:
    """The attack made by :func:`r_gap`."""

    labels: LabelRule
    unknowns: int = 4096

    def __post_init__(self) -> None:
        if not isinstance(self.unknowns, int) or isinstance(self.unknowns, bool) or self.unknowns < 1:
            raise BadInput(
                f"unknowns must be at least 1, the largest number of inputs of a layer; got {self.unknowns!r}"
            )

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        if batch_size(seen) != 1:
            raise Inapplicable(f"R-GAP solves for one sample, but the shared gradient mixes {seen.size}")
        steps = local_steps(seen.channel, 1)
        if steps > 1:
            raise Inapplicable(f"R-GAP needs the gradient of one step, but the update sums {steps}")
        require_gradients(seen.channel)
        signal = Observed.check(seen.signal, victim).signal
        chain = read_chain(victim)
        for layer in chain:
            require_shared(signal, layer.weight)
            self._require_size(layer)
        rounding = torch.finfo(signal[chain[0].weight].dtype).eps
        possible = starts(victim, seen.channel, signal, chain[-1])
        results = [_walk_back(victim, signal, chain, start, rounding=rounding) for start in possible]
        worst = [max(layer.noise for layer in judged) for _, judged in results]
        best = min(range(len(results)), key=lambda i: worst[i])
        flat, judged = results[best]
        stated = RankAnalysis(judged, span=float(_box(victim).diff(dim=0).min()), rounding=rounding)
        twins = f"{len(possible)} inputs of the head have this gradient; the one that fits the layers before it best is used"
        x = torch.nan_to_num(flat).view(1, *victim.space.shape).to(victim.device, victim.dtype)
        labels, error = labels_or_none(self.labels, victim, seen, seed=seed), stated.pixel_error
        return Reconstruction.single(
            victim.space.project(x),
            labels,
            loss=worst[best],
            made_by=repr(self),
            began=began,
            notes=tuple(
                note for note in (str(stated), possible[best].note, twins if len(possible) > 1 else "") if note
            ),
            stated=stated.rows(),
            certified=certify(victim, seen, x, labels, error=None if stated.lost() else error, seed=seed),
        )

    def _require_size(self, layer: Layer) -> None:
        if not layer.convolves or layer.unknowns <= self.unknowns:
            return
        memory = 8 * layer.unknowns * (layer.unknowns + math.prod(layer.leaves)) / 2**30
        raise Inapplicable(
            f"{layer.unknowns} values enter {layer.name}, which would need a dense system of {memory:.1f} GiB; "
            f"R-GAP stops at {self.unknowns} (option unknowns)"
        )


def _walk_back(
    victim: Victim, signal: Signal, chain: tuple[Layer, ...], start: Start, *, rounding: float
) -> tuple[Tensor, tuple[Judgement, ...]]:
    """The image, and what was known about each layer's equations before they were solved, first layer first.

    δ = ∂L/∂z of a layer and its input x give those of the layer before: z' = σ⁻¹(x) and δ' = Wᵀδ ⊙ σ'(z'). An undetermined value
    of x gives no equation for z'. That is harmless if no gradient passes it (a stride that skips the border) or its slope is
    known (no activation). Otherwise it is a guess, and so is everything that follows.
    """

    def own(name: str) -> Tensor:
        return victim.model.get_parameter(name).detach().double().cpu()

    gradients = {layer.weight: signal[layer.weight].double().cpu() / start.factor for layer in chain}
    grey = _box(victim).sum(0).flatten() / 2
    delta, known = start.delta, system_of_linear(start.delta, gradients[chain[-1].weight])
    found = known.solve(chain[-1].name, rounding=rounding, guess=grey if len(chain) == 1 else None)
    judged = [found.judged]
    for layer, following in zip(reversed(chain[:-1]), reversed(chain[1:]), strict=True):
        after = layer.undo(found.x, off=found.off)
        sent = following.slope_of_input(delta.view(following.leaves), own(following.weight)).flatten()
        open_ones = ~found.determined & (sent.abs() > rounding * sent.abs().max())
        guessed = int(open_ones.sum()) if layer.after else 0
        judged[0] = replace(judged[0], guessed=guessed)
        delta = (sent * after.slope).view(layer.leaves)
        if not delta.any():
            raise Inapplicable(f"the gradient that reaches {layer.name} is zero, so nothing can be computed from it")
        if layer.convolves:
            z, passed = after.z.view(layer.leaves), after.known if guessed else after.known & found.determined
            if layer.bias is not None:
                z = z - own(layer.bias).view(-1, *[1] * (z.dim() - 1))
            known = system_of_convolution(layer, own(layer.weight), delta, gradients[layer.weight], z, passed)
        else:
            known = system_of_linear(delta, gradients[layer.weight])
        found = known.solve(layer.name, rounding=rounding, guess=grey if layer is chain[0] else None)
        judged.insert(0, found.judged)
    return found.x, tuple(judged)


def _box(victim: Victim) -> Tensor:
    """The lowest and highest values of an image in model space, (2, *shape)."""
    return torch.cat(valid_range(victim, torch.empty(0, dtype=torch.float64)))


@example("lenet")
@checked
def r_gap(*, unknowns: int = 4096) -> RGap:
    """Zhu and Blaschko 2021: the image of one sample in closed form, through a plain chain of layers backwards from the head.

        ∂L/∂W_d = δ_d x_dᵀ                                          x_d and δ_d = p − y of the head
        W_i x_i = z_i,   ∂L/∂W_i = δ_i ∗ x_i                         linear equations for the input of layer i
        z_{i−1} = σ⁻¹(x_i),   δ_{i−1} = W_iᵀ δ_i ⊙ σ'(z_{i−1})        and on to the layer before

    Needs one sample, one step, and a model with only convolutions and linear layers, each followed by leaky ReLU, ReLU, ELU,
    sigmoid, tanh or nothing, with the gradients of all weights shared. Pooling, normalisation and residual connections are
    refused by name. Each layer's equations are analysed before they are solved, and the result says what they leave open
    (:class:`leakgauge.attacks.r_gap.system.RankAnalysis`): if a layer has too few of them (large strides, few channels), the
    solution nearest to zero is used; for the image, the one nearest to grey. ``unknowns`` is the largest number of inputs of a
    convolution; the time grows with its cube.

    Deviations: cross entropy with any number of classes besides the paper's logistic loss, and biases, which the paper leaves
    out: if the head's bias is shared, no equation for the loss is needed, and a factor on the gradient (clipping, learning rate)
    is found and undone. Both kinds of equations are scaled to the same length, padding is not an unknown, and everything is
    solved in float64 by singular values. ReLU drops the equations of values it clipped. Linear layers use only their gradient, as
    in the paper's code. Constraints on a layer's input from the layers before it are not used.

    Ref: R-GAP (Zhu and Blaschko 2021), Algorithm 1 — recursive attack
    """
    return RGap(labels=infer_labels(), unknowns=unknowns)
