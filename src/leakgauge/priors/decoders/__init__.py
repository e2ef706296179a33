"""Networks that make an image from a code (features, or a few latents), and how they are trained on pairs of both."""

from leakgauge.priors.decoders.networks import ByShape, Decoder, Deconvolution, Narrowed, Shape, TokenGrid, Vector
from leakgauge.priors.decoders.recipes import OneCycle, Plateau, Recipe
from leakgauge.priors.decoders.training import FEWEST, History, train_decoder

__all__ = [
    "FEWEST",
    "ByShape",
    "Decoder",
    "Deconvolution",
    "History",
    "Narrowed",
    "OneCycle",
    "Plateau",
    "Recipe",
    "Shape",
    "TokenGrid",
    "Vector",
    "train_decoder",
]
