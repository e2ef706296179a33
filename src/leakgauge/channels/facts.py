"""Facts about a channel, for attacks that read a signal without replaying it."""

from __future__ import annotations

from leakgauge.channels.aggregate import Aggregate
from leakgauge.channels.epochs import ShuffledFedAvg
from leakgauge.channels.fedavg import FedAvg
from leakgauge.channels.gradient import Gradient
from leakgauge.core import Channel, KeepsSecrets


def single_client(channel: Channel) -> Channel:
    """The channel of a single client: the channel itself, unless it sums several clients."""
    return single_client(channel.of) if isinstance(channel, Aggregate) else channel


def public(channel: Channel) -> Channel:
    """The channel as the adversary knows it."""
    return channel.public() if isinstance(channel, KeepsSecrets) else channel


def is_weight_update(channel: Channel) -> bool:
    """Whether the signal points against the gradient, as a change of weights does."""
    return isinstance(single_client(channel), FedAvg | ShuffledFedAvg)


def local_steps(channel: Channel, size: int) -> int:
    """Local steps of each client, for ``size`` samples in total."""
    one = single_client(channel)
    if isinstance(one, ShuffledFedAvg):
        one = one.unroll(size // clients(channel))
    return one.steps if isinstance(one, FedAvg) else 1


def clients(channel: Channel) -> int:
    """How many clients the signal sums."""
    return channel.clients * clients(channel.of) if isinstance(channel, Aggregate) else 1


def uses_whole_batch(channel: Channel, size: int) -> bool:
    """Whether every step of the channel uses all ``size`` samples at once, in the given order."""
    if isinstance(channel, FedAvg):
        return channel.order is None and (channel.minibatch or size) >= size
    return isinstance(channel, Gradient)
