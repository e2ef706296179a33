"""Estimators of mutual information, one file each, listed in ``ESTIMATORS``.

Each takes paired rows and returns a *held-out* value with an interval, and the in-sample value.
"""

from collections.abc import Callable

from leakgauge.measures.mutual_information.cca import CCA
from leakgauge.measures.mutual_information.club import CLUB
from leakgauge.measures.mutual_information.critic import CriticFit
from leakgauge.measures.mutual_information.dv import DV
from leakgauge.measures.mutual_information.estimate import Estimate, Estimator
from leakgauge.measures.mutual_information.infonce import InfoNCE
from leakgauge.measures.mutual_information.ksg import KSG
from leakgauge.measures.mutual_information.mine import MINE
from leakgauge.measures.mutual_information.nwj import NWJ
from leakgauge.measures.mutual_information.smile import SMILE

ESTIMATORS: dict[str, Callable[..., Estimator]] = {
    "dv": DV,
    "mine": MINE,
    "nwj": NWJ,
    "infonce": InfoNCE,
    "smile": SMILE,
    "club": CLUB,
    "ksg": KSG,
    "cca": CCA,
}

__all__ = [
    "CCA",
    "CLUB",
    "DV",
    "ESTIMATORS",
    "KSG",
    "MINE",
    "NWJ",
    "SMILE",
    "CriticFit",
    "Estimate",
    "Estimator",
    "InfoNCE",
]
