"""Changes to what leaves the device, one file each; ``DEFENSES`` names them all."""

from collections.abc import Callable

from leakgauge.core import Defense
from leakgauge.defenses.clip import Clip
from leakgauge.defenses.noise import GaussianNoise, LaplacianNoise
from leakgauge.defenses.prune import Prune
from leakgauge.defenses.quantize import Quantize
from leakgauge.defenses.withhold import Withhold, WithholdNames

DEFENSES: dict[str, Callable[..., Defense]] = {
    "gaussian_noise": GaussianNoise,
    "laplacian_noise": LaplacianNoise,
    "clip": Clip,
    "prune": Prune,
    "quantize": Quantize,
    "withhold": Withhold,
}

__all__ = ["DEFENSES", "Clip", "GaussianNoise", "LaplacianNoise", "Prune", "Quantize", "Withhold", "WithholdNames"]
