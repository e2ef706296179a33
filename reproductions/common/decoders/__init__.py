"""Decoders that the papers compare; the product trains those of ``leakgauge.attacks.decoder``."""

from collections.abc import Callable

from leakgauge.attacks.decoder import Decoder
from reproductions.common.decoders.enhancement import Enhanced, Fourier, Learned, Normalise
from reproductions.common.decoders.placement import AttentionAsConv, MultiHead, WeakToStrong
from reproductions.common.decoders.prediction import Logarithm, Power, PredictionVector, Unchanged
from reproductions.common.decoders.residual import Residual
from reproductions.common.decoders.reversed_ir import ReversedIR
from reproductions.common.decoders.tokens import ClassToken, Flattened

DECODERS: dict[str, Callable[..., Decoder]] = {
    "residual": Residual,
    "reversed_ir": ReversedIR,
    "enhanced": Enhanced,
    "flattened": Flattened,
    "class_token": ClassToken,
    "prediction_vector": PredictionVector,
}

__all__ = [
    "DECODERS",
    "AttentionAsConv",
    "ClassToken",
    "Enhanced",
    "Flattened",
    "Fourier",
    "Learned",
    "Logarithm",
    "MultiHead",
    "Normalise",
    "Power",
    "PredictionVector",
    "Residual",
    "ReversedIR",
    "Unchanged",
    "WeakToStrong",
]
