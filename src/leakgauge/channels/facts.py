"""Facts about a channel, for attacks that read a signal without replaying it."""

from __future__ import annotations

from leakgauge.core import AddsClients, Channel, KeepsSecrets, Mode, Reseeds, SendsGradient, TrainsLocally
from leakgauge.errors import BadInput


def single_client(channel: Channel) -> Channel:
    """The channel of a single client: the channel itself, unless it sums several clients."""
    return single_client(channel.of) if isinstance(channel, AddsClients) else channel


def clients(channel: Channel) -> int:
    """How many clients the signal sums."""
    return channel.clients * clients(channel.of) if isinstance(channel, AddsClients) else 1


def public(channel: Channel) -> Channel:
    """The channel as the adversary knows it."""
    return channel.public() if isinstance(channel, KeepsSecrets) else channel


def reseed(channel: Channel, number: int) -> Channel:
    """The channel of another client or round, with its own random draws."""
    return channel.reseed(number) if isinstance(channel, Reseeds) else channel


def is_gradient(channel: Channel, mode: Mode) -> bool:
    """Whether the signal is the plain gradient of the whole batch for a victim in ``mode``."""
    return isinstance(channel, SendsGradient) and channel.is_gradient(mode)


def is_weight_update(channel: Channel) -> bool:
    """Whether the signal points against the gradient, as a change of weights does."""
    return isinstance(single_client(channel), TrainsLocally)


def local_steps(channel: Channel, size: int) -> int:
    """Local steps of each client, for ``size`` samples in total."""
    one = single_client(channel)
    return len(one.batches(max(1, size // clients(channel)))) if isinstance(one, TrainsLocally) else 1


def step_size(channel: Channel, size: int) -> int:
    """Samples of one client's first step, for ``size`` samples in total."""
    own, one = max(1, size // clients(channel)), single_client(channel)
    return len(one.batches(own)[0]) if isinstance(one, TrainsLocally) else own


def summed_rate(channel: Channel, size: int) -> float:
    """Σ of the learning rates by which the gradients of all local steps enter a change of weights; momentum counts early ones
    again: η Σ_k (1 − μ^k)/(1 − μ) for k = 1 … K."""
    one = single_client(channel)
    if not isinstance(one, TrainsLocally):
        raise BadInput(f"{channel!r} takes no local steps")
    momentum = float(getattr(one, "momentum", 0.0))
    return one.lr * sum((1 - momentum**k) / (1 - momentum) for k in range(1, local_steps(channel, size) + 1))


def uses_whole_batch(channel: Channel, size: int) -> bool:
    """Whether every step of the channel uses all ``size`` samples at once, in the given order."""
    if isinstance(channel, TrainsLocally):
        return all(list(step) == list(range(size)) for step in channel.batches(size))
    return is_gradient(channel, "train")
