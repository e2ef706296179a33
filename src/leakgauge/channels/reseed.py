"""New random draws for the secret part of a channel."""

from __future__ import annotations

from dataclasses import replace

from leakgauge.channels.dpsgd import DPSGD
from leakgauge.channels.epochs import ShuffledFedAvg
from leakgauge.core import Channel


def reseed(channel: Channel, number: int) -> Channel:
    """The channel of another client or round: its noise or its orders come from another seed."""
    if isinstance(channel, DPSGD | ShuffledFedAvg) and channel.seed is not None:
        return replace(channel, seed=channel.seed + number)
    return channel
