"""Changes to what leaves the device, one file each; ``DEFENSES`` names them all."""

from leakgauge.core import Defense
from leakgauge.defenses.channels import MaskChannels, PruneChannels
from leakgauge.defenses.clip import Clip
from leakgauge.defenses.noise import GaussianNoise, LaplacianNoise
from leakgauge.defenses.prune import Prune
from leakgauge.defenses.quantize import Quantize
from leakgauge.defenses.withhold import Withhold, WithholdNames

DEFENSES: dict[str, type[Defense]] = {
    "gaussian_noise": GaussianNoise,
    "laplacian_noise": LaplacianNoise,
    "clip": Clip,
    "prune": Prune,
    "quantize": Quantize,
    "mask_channels": MaskChannels,
    "prune_channels": PruneChannels,
    "withhold": Withhold,
}

__all__ = [
    "DEFENSES",
    "Clip",
    "GaussianNoise",
    "LaplacianNoise",
    "MaskChannels",
    "Prune",
    "PruneChannels",
    "Quantize",
    "Withhold",
    "WithholdNames",
]
