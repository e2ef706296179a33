"""Facts about a channel, for attacks that read a signal without replaying it."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass

from torch import Tensor

from leakgauge.channels.optimizers import SGD, Optimizer
from leakgauge.core import (
    AddsClients,
    Channel,
    Encodes,
    HidesDraws,
    KeepsSecrets,
    Mode,
    Reseeds,
    SendsGradient,
    Signal,
    Smooths,
    TrainsLocally,
)
from leakgauge.errors import BadInput, Inapplicable


def single_client(channel: Channel) -> Channel:
    """The channel of a single client: the channel itself, unless it sums several clients."""
    return single_client(channel.of) if isinstance(channel, AddsClients) else channel


def clients(channel: Channel) -> int:
    """How many clients the signal sums."""
    return channel.clients * clients(channel.of) if isinstance(channel, AddsClients) else 1


def lacks_clients(channel: Channel) -> bool:
    """Whether some clients dropped out, so the signal holds fewer samples than the batch."""
    return isinstance(channel, AddsClients) and (bool(getattr(channel, "dropped", ())) or lacks_clients(channel.of))


def public(channel: Channel) -> Channel:
    """The channel as the adversary knows it."""
    return channel.public() if isinstance(channel, KeepsSecrets) else channel


def smooth(channel: Channel) -> Channel:
    """The channel as an attack replays it: with a derivative that a search can follow."""
    return channel.smooth() if isinstance(channel, Smooths) else channel


def reseed(channel: Channel, number: int) -> Channel:
    """The channel of another client or round, with its own random draws."""
    return channel.reseed(number) if isinstance(channel, Reseeds) else channel


def searches_draws(channel: Channel) -> bool:
    """Whether an adversary who replays the channel has to search what the client drew, too."""
    return isinstance(channel, Encodes) or (isinstance(channel, HidesDraws) and channel.unknowns > 0)


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


def optimizer_of(channel: Channel) -> Optimizer:
    """How each client turns gradients into steps; plain SGD where the channel does not say."""
    return getattr(single_client(channel), "optimizer", SGD())


def require_shared(signal: Signal, name: str) -> Tensor:
    """The tensor of this name; refuses a signal that lacks it."""
    if name not in signal:
        raise Inapplicable(f"not shared: {name}")
    return signal[name]


def require_gradients(channel: Channel) -> None:
    """Refuses a signal that is no weighted sum of gradients, for attacks that read it as one."""
    optimizer = optimizer_of(channel)
    if is_weight_update(channel) and not isinstance(optimizer, SGD):
        name = type(optimizer).__name__
        raise Inapplicable(
            f"the client uses {name}, which divides each entry by its own size, so gradients cannot be read"
        )


def require_no_decay(channel: Channel) -> None:
    """Refuses a signal in which weight decay moved every weight, for attacks that ask which weights moved."""
    if is_weight_update(channel) and getattr(optimizer_of(channel), "weight_decay", 0.0):
        raise Inapplicable(
            "weight decay moved every weight, so the rows that the data moved cannot be distinguished from the others"
        )


def summed_rate(channel: Channel, size: int) -> float:
    """Σ of the learning rates by which the gradients of all local steps enter a change of weights; momentum counts early ones
    again."""
    one, optimizer = single_client(channel), optimizer_of(channel)
    if not isinstance(one, TrainsLocally):
        raise BadInput(f"{channel!r} takes no local steps")
    require_gradients(channel)
    assert isinstance(optimizer, SGD)
    return one.lr * optimizer.summed_rate(local_steps(channel, size))


@dataclass(frozen=True)
class LocalTraining:
    """The local training of one client: ``steps`` in all, each on ``minibatch`` of its ``images`` (the last of an epoch may have
    fewer), so many ``epochs`` over them. ``secret_order``: they are shuffled in every epoch, and only the client knows how.
    """

    steps: int
    minibatch: int
    images: int
    epochs: float
    lr: float
    optimizer: str
    secret_order: bool = False


def local_training(channel: Channel, size: int) -> LocalTraining | None:
    """What each client does with its part of ``size`` samples; None where it sends a gradient or features."""
    one, own = single_client(channel), max(1, size // clients(channel))
    if not isinstance(one, TrainsLocally):
        return None
    steps = one.batches(own)
    epochs = sum(map(len, steps)) / own
    secret = isinstance(one, KeepsSecrets) and len(steps) > epochs > 1
    return LocalTraining(len(steps), len(steps[0]), own, epochs, one.lr, _short(optimizer_of(channel)), secret)


def _short(optimizer: Optimizer) -> str:
    """Its name with the options that differ from their defaults.

    >>> _short(SGD()), _short(SGD(momentum=0.9))
    ('SGD', 'SGD(momentum=0.9)')
    """
    if not is_dataclass(optimizer):
        return repr(optimizer)
    given = {one.name: getattr(optimizer, one.name) for one in fields(optimizer)}
    said = [f"{one.name}={given[one.name]!r}" for one in fields(optimizer) if given[one.name] != one.default]
    return type(optimizer).__name__ + (f"({', '.join(said)})" if said else "")


def uses_whole_batch(channel: Channel, size: int) -> bool:
    """Whether every step of the channel uses all ``size`` samples at once, in the given order."""
    if isinstance(channel, TrainsLocally):
        return all(list(step) == list(range(size)) for step in channel.batches(size))
    return is_gradient(channel, "train")
