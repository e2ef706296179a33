"""Malicious servers: each sends a changed model, so the update reveals more than training needs.

    sent = ImprintServer(bins=256)(victim)    # the model that the client gets
    seen = share(sent, Gradient(), x, y)      # the client trains it as agreed
    attacks.imprint()(sent, seen)             # the server reads the images from the update

Everything else in leakgauge assumes an honest but curious server. Results obtained with a malicious one say so (``Assumption.kind``).
"""

from collections.abc import Callable

from leakgauge.servers.fishing import FishingServer
from leakgauge.servers.imprint import ImprintBlock, ImprintServer
from leakgauge.servers.isolation import Isolated, find_isolated
from leakgauge.servers.server import Server
from leakgauge.servers.trap_weights import TrapWeightServer

SERVERS: dict[str, Callable[..., Server]] = {
    "imprint": ImprintServer,
    "trap_weights": TrapWeightServer,
    "fishing": FishingServer,
}

__all__ = [
    "SERVERS",
    "FishingServer",
    "ImprintBlock",
    "ImprintServer",
    "Isolated",
    "Server",
    "TrapWeightServer",
    "find_isolated",
]
