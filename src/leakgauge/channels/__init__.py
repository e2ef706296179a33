"""What leaves the device."""

from leakgauge.channels.aggregate import Aggregate
from leakgauge.channels.dpsgd import DPSGD
from leakgauge.channels.epochs import ShuffledFedAvg
from leakgauge.channels.features import Features
from leakgauge.channels.fedavg import FedAvg
from leakgauge.channels.gradient import Gradient
from leakgauge.channels.twice import twice_differentiable
from leakgauge.core import Channel

CHANNELS: dict[str, type[Channel]] = {
    "gradient": Gradient,
    "fedavg": FedAvg,
    "shuffled_fedavg": ShuffledFedAvg,
    "features": Features,
    "dpsgd": DPSGD,
    "aggregate": Aggregate,
}

__all__ = [
    "CHANNELS",
    "DPSGD",
    "Aggregate",
    "Features",
    "FedAvg",
    "Gradient",
    "ShuffledFedAvg",
    "twice_differentiable",
]
