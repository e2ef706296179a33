"""Decoders that the papers compare; the product trains those of ``leakgauge.attacks.decoder``."""

from reproductions.common.decoders.enhancement import Enhanced, Fourier, Learned, Normalise
from reproductions.common.decoders.placement import AttentionAsConv, MultiHead, WeakToStrong
from reproductions.common.decoders.prediction import Logarithm, Power, PredictionVector, Unchanged
from reproductions.common.decoders.residual import Residual
from reproductions.common.decoders.reversed_ir import ReversedIR
from reproductions.common.decoders.tokens import ClassToken, Flattened

__all__ = [
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
