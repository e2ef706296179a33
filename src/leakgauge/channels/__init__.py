"""What leaves the device."""

from leakgauge.channels.aggregate import Aggregate as Aggregate
from leakgauge.channels.dpsgd import DPSGD as DPSGD
from leakgauge.channels.epochs import ShuffledFedAvg as ShuffledFedAvg
from leakgauge.channels.features import Features as Features
from leakgauge.channels.fedavg import FedAvg as FedAvg
from leakgauge.channels.gradient import Gradient as Gradient
from leakgauge.channels.mixup import InstaHide as InstaHide
from leakgauge.channels.mixup import MixUp as MixUp
from leakgauge.channels.optimizers import SGD as SGD
from leakgauge.channels.optimizers import Adam as Adam
from leakgauge.channels.optimizers import AdamW as AdamW
from leakgauge.channels.precode import Precode as Precode
from leakgauge.channels.rounds import AllRounds as AllRounds
from leakgauge.channels.rounds import Rounds as Rounds
from leakgauge.channels.rounds import share_rounds as share_rounds
from leakgauge.channels.soteria import Soteria as Soteria
from leakgauge.channels.transformed import Transformed as Transformed
from leakgauge.channels.twice import twice_differentiable as twice_differentiable
from leakgauge.core import Channel

CHANNELS: dict[str, type[Channel]] = {
    "gradient": Gradient,
    "fedavg": FedAvg,
    "shuffled_fedavg": ShuffledFedAvg,
    "features": Features,
    "dpsgd": DPSGD,
    "aggregate": Aggregate,
    "soteria": Soteria,
    "precode": Precode,
    "transformed": Transformed,
    "mixup": MixUp,
    "instahide": InstaHide,
}
