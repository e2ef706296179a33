"""What attacks that read a signal without replaying it must know of its channel."""

from __future__ import annotations

from leakgauge.channels.aggregate import Aggregate
from leakgauge.channels.epochs import ShuffledFedAvg
from leakgauge.channels.fedavg import FedAvg
from leakgauge.channels.gradient import Gradient
from leakgauge.core import Channel, KeepsSecrets


def of_a_client(channel: Channel) -> Channel:
    """What a single client would have sent: the channel itself, unless it adds up several clients."""
    return of_a_client(channel.of) if isinstance(channel, Aggregate) else channel


def public(channel: Channel) -> Channel:
    """The channel as the adversary knows it."""
    return channel.public() if isinstance(channel, KeepsSecrets) else channel


def is_weight_update(channel: Channel) -> bool:
    """Whether the signal points against the gradient, as a change of weights does."""
    return isinstance(of_a_client(channel), FedAvg | ShuffledFedAvg)


def local_steps(channel: Channel, size: int) -> int:
    """Steps that each client took, with ``size`` samples in all."""
    one = of_a_client(channel)
    if isinstance(one, ShuffledFedAvg):
        one = one.unrolled(size // clients(channel))
    return one.steps if isinstance(one, FedAvg) else 1


def clients(channel: Channel) -> int:
    """How many clients the signal adds up."""
    return channel.clients * clients(channel.of) if isinstance(channel, Aggregate) else 1


def on_all_samples(channel: Channel, size: int) -> bool:
    """Whether every step of the channel is taken on all ``size`` samples together, as they stand."""
    if isinstance(channel, FedAvg):
        return channel.order is None and (channel.minibatch or size) >= size
    return isinstance(channel, Gradient)
