"""Malicious servers: what one sends in place of the agreed model, so that more comes back than training needs.

    sent = imprint(bins=256)(victim)          # the model that the client gets
    seen = share(sent, Gradient(), x, y)      # the client works as agreed, on that model
    attacks.imprint()(sent, seen)             # the server reads the images off

Everything else in this package is about a server that is curious but honest. Results of these say so (``Assumption.kind``).
"""

from collections.abc import Callable

from leakgauge.servers.alone import Alone, alone
from leakgauge.servers.fishing import Fishing, fishing
from leakgauge.servers.imprint import Imprint, ImprintBlock, imprint
from leakgauge.servers.server import Server
from leakgauge.servers.trap_weights import TrapWeights, trap_weights

SERVERS: dict[str, Callable[..., Server]] = {
    "imprint": imprint,
    "trap_weights": trap_weights,
    "fishing": fishing,
}

__all__ = [
    "SERVERS",
    "Alone",
    "Fishing",
    "Imprint",
    "ImprintBlock",
    "Server",
    "TrapWeights",
    "alone",
    "fishing",
    "imprint",
    "trap_weights",
]
