"""Networks that turn a transmitted feature back into an image, built from the two shapes; ``DECODERS`` names them all."""

from collections.abc import Callable

from leakgauge.attacks.decoders.by_shape import ByShape
from leakgauge.attacks.decoders.deconvolution import Deconvolution
from leakgauge.attacks.decoders.enhancement import Enhanced, Enhancement, Fourier, Join, Learned, Normalise
from leakgauge.attacks.decoders.placement import AttentionAsConv, MultiHead, Placement, WeakToStrong
from leakgauge.attacks.decoders.prediction import Logarithm, Power, PredictionVector, Transform, Unchanged
from leakgauge.attacks.decoders.residual import Residual
from leakgauge.attacks.decoders.reversed_ir import ReversedIR
from leakgauge.attacks.decoders.shapes import Activation, Calibrated, Decoder, Shape
from leakgauge.attacks.decoders.tokens import ClassToken, Flattened, TokenGrid
from leakgauge.attacks.decoders.vector import Narrowed, Vector

DECODERS: dict[str, Callable[..., Decoder]] = {
    "by_shape": ByShape,
    "deconvolution": Deconvolution,
    "residual": Residual,
    "reversed_ir": ReversedIR,
    "enhanced": Enhanced,
    "token_grid": TokenGrid,
    "flattened": Flattened,
    "class_token": ClassToken,
    "vector": Vector,
    "narrowed": Narrowed,
    "prediction_vector": PredictionVector,
}

__all__ = [
    "DECODERS",
    "Activation",
    "AttentionAsConv",
    "ByShape",
    "Calibrated",
    "ClassToken",
    "Decoder",
    "Deconvolution",
    "Enhanced",
    "Enhancement",
    "Flattened",
    "Fourier",
    "Join",
    "Learned",
    "Logarithm",
    "MultiHead",
    "Narrowed",
    "Normalise",
    "Placement",
    "Power",
    "PredictionVector",
    "Residual",
    "ReversedIR",
    "Shape",
    "TokenGrid",
    "Transform",
    "Unchanged",
    "Vector",
    "WeakToStrong",
]
