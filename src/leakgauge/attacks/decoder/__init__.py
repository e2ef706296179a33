"""The learned inverter of split inference: a network that the adversary trains on images of its own to undo the edge half.

:func:`fit_decoder` trains one and returns it as an attack; ``DECODERS`` names the networks it can train.
"""

from collections.abc import Callable

from leakgauge.attacks.decoder.fitting import (
    FEW,
    DecoderInverter,
    FittedDecoder,
    PublicData,
    Weights,
    fit_decoder,
    fit_on,
    public_features,
)
from leakgauge.priors.decoders import (
    FEWEST,
    ByShape,
    Decoder,
    Deconvolution,
    History,
    Narrowed,
    OneCycle,
    Plateau,
    Recipe,
    Shape,
    TokenGrid,
    Vector,
    train_decoder,
)

DECODERS: dict[str, Callable[..., Decoder]] = {
    "by_shape": ByShape,
    "deconvolution": Deconvolution,
    "token_grid": TokenGrid,
    "vector": Vector,
    "narrowed": Narrowed,
}

__all__ = [
    "DECODERS",
    "FEW",
    "FEWEST",
    "ByShape",
    "Decoder",
    "DecoderInverter",
    "Deconvolution",
    "FittedDecoder",
    "History",
    "Narrowed",
    "OneCycle",
    "Plateau",
    "PublicData",
    "Recipe",
    "Shape",
    "TokenGrid",
    "Vector",
    "Weights",
    "fit_decoder",
    "fit_on",
    "public_features",
    "train_decoder",
]
