"""PRECODE: a layer that samples stands before the head, so the gradient depends on noise that only the client knows."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakgauge.channels.gradient import Gradient, gradient
from leakgauge.channels.soteria import head_of, input_of
from leakgauge.core import Channel, Defense, Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked

ONE_SAMPLE = 1e-3
"""The gradients of the bottleneck's layers are outer products up to this share of their length if they are of one sample."""


class Bottleneck(nn.Module):
    """(μ, log σ²) = encode(r), z = μ + σ·ε, decode(z). The buffer ``noise`` is ε: 0 unless a client draws it."""

    noise: Tensor

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(features, 2 * width), nn.Linear(width, features)
        self.register_buffer("noise", torch.zeros(1, width))

    def forward(self, r: Tensor) -> Tensor:
        mean, log_variance = self.encode(r).chunk(2, -1)
        return self.decode(mean + (log_variance / 2).exp() * self.noise)


def _precoded(victim: Victim) -> Victim:
    return Precode(width=8).changed(victim)


@example("mlp", server=_precoded, width=8)
@example("cnn", server=_precoded, width=8)
@checked
@dataclass(frozen=True)
class Precode:
    """The gradient of a model with a variational bottleneck before its head, each sample with ε ~ N(0, I) of ``width`` numbers.

    Client and server agree on the changed model (:meth:`changed`). ε comes from ``seed``, which only the client knows. An adversary who
    does not know the defense replays ε = 0. One who does reads ε from the update of one sample: the gradients of both linear layers are
    outer products δ·rᵀ and δ'·zᵀ, their biases' are δ and δ', hence r and z, and ε = (z − μ(r)) / σ(r). That is ``noise``. Of a batch
    it searches ε with the samples.

    Deviations: without the paper's Kullback-Leibler term, whose weight is 0.001. The bottleneck is untrained unless the model holds one.

    Ref: Scheliga et al. 2022, PRECODE — a variational bottleneck between features and classifier
    Ref: Balunović et al. 2022, breaking existing defenses — the adversary solves for what was sampled, or searches it
    """

    width: int = 64
    seed: int | None = 0
    noise: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.width < 1:
            raise BadInput(f"Precode needs a width of at least 1, got {self.width}")

    def changed(self, victim: Victim, /) -> Victim:
        """The victim with a bottleneck before its head; its first weights come from a fixed seed."""
        if _bottleneck(victim.model) is not None:
            return victim
        name, model = head_of(victim), copy.deepcopy(victim.model)
        still = replace(victim, mode="eval")
        with torch.no_grad():
            probe = still.to_input(still.space.start(1, torch.Generator().manual_seed(0)))
            features = input_of(still, name, probe).shape[1]
        with private_randomness(0, victim.device):
            made = Bottleneck(features, self.width).to(victim.device, victim.dtype)
        parent, _, last = name.rpartition(".")
        model.get_submodule(parent).add_module(last, nn.Sequential(made, model.get_submodule(name)))
        return replace(victim, model=model)

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        name = _bottleneck(victim.model)
        if name is None:
            raise BadInput("Precode needs a model with its bottleneck; give it Precode(…).changed(victim)")
        buffers = victim.buffers()
        drawn = self._drawn(buffers[f"{name}.noise"], len(x))
        if self.unknowns and isinstance(y, Tensor) and y.dim() == 2 and y.shape[1] == _classes(victim) + self.unknowns:
            y, drawn = y[:, : -self.unknowns], y[:, -self.unknowns :]
        return gradient(victim, x, y, parameters=victim.parameters(), buffers={**buffers, f"{name}.noise": drawn})

    def _drawn(self, like: Tensor, samples: int) -> Tensor:
        """ε, (samples or 1, width)."""
        if self.noise:
            return torch.tensor([self.noise]).to(like)
        if self.seed is None:
            return like
        rng = torch.Generator().manual_seed(self.seed)
        return torch.randn(samples, like.shape[1], generator=rng).to(like)

    @property
    def unknowns(self) -> int:
        """Numbers per sample that an adversary has to search: ε, unless it was drawn or read."""
        return self.width if self.seed is None and not self.noise else 0

    def reseed(self, number: int, /) -> Precode:
        """The same with its own noise."""
        return self if self.seed is None else replace(self, seed=self.seed + number)

    def simulated(self, number: int, /) -> Precode:
        """The channel with noise that an adversary draws itself."""
        return replace(self, seed=number, noise=())

    def unprotected(self) -> Gradient:
        """The gradient with ε = 0."""
        return Gradient()

    def known(self, victim: Victim, sent: Signal, /) -> tuple[Channel, tuple[Defense, ...]]:
        """The same with ε as it can be read from ``sent``; where it holds several samples, ε is searched with them.
        Its width is that of the model's bottleneck."""
        width = victim.buffers()[f"{_bottleneck(victim.model)}.noise"].shape[1]
        return replace(self, width=width, seed=None, noise=tuple(_solved(victim, sent))), ()


def _bottleneck(model: nn.Module) -> str | None:
    return next((name for name, module in model.named_modules() if isinstance(module, Bottleneck)), None)


def _classes(victim: Victim) -> int:
    return victim.model.get_parameter(f"{head_of(victim)}.weight").shape[0]


def _solved(victim: Victim, sent: Signal) -> list[float]:
    """ε of one sample; empty where the update does not show it."""
    place = _bottleneck(victim.model)
    try:
        r, z = (_given(sent, f"{place}.{layer}") for layer in ("encode", "decode"))
    except Inapplicable:
        return []
    weights = {name: p.double() for name, p in victim.parameters().items()}
    mean, log_variance = (weights[f"{place}.encode.weight"] @ r + weights[f"{place}.encode.bias"]).chunk(2)
    return ((z - mean) / (log_variance / 2).exp()).tolist()


def _given(sent: Signal, layer: str) -> Tensor:
    """What a linear layer was given, from the gradients of its weight and bias, if these are of one sample."""
    weight, bias = (sent.get(f"{layer}.{part}") for part in ("weight", "bias"))
    if weight is None or bias is None or not bool(bias.any()):
        raise Inapplicable(f"not shared: {layer}")
    weight, bias = weight.double(), bias.double()
    given = weight.T @ bias / bias.square().sum()
    if float((weight - torch.outer(bias, given)).norm()) > ONE_SAMPLE * float(weight.norm()):
        raise Inapplicable(f"the gradient of {layer} is of several samples, or was changed")
    return given
