"""Changes to what leaves the device, one file each, listed in ``DEFENSES``."""

from leakgauge.core import Defense
from leakgauge.defenses.channels import MaskChannels as MaskChannels
from leakgauge.defenses.channels import PruneChannels as PruneChannels
from leakgauge.defenses.clip import Clip as Clip
from leakgauge.defenses.dropout import GradientDropout as GradientDropout
from leakgauge.defenses.exclude import ExcludeVars as ExcludeVars
from leakgauge.defenses.flower_dp import FlowerLocalDP as FlowerLocalDP
from leakgauge.defenses.layer_noise import LayerNoise as LayerNoise
from leakgauge.defenses.noise import GaussianNoise as GaussianNoise
from leakgauge.defenses.noise import LaplacianNoise as LaplacianNoise
from leakgauge.defenses.percentile import PercentilePrivacy as PercentilePrivacy
from leakgauge.defenses.prune import Prune as Prune
from leakgauge.defenses.quantize import Quantize as Quantize
from leakgauge.defenses.sign import Signs as Signs
from leakgauge.defenses.svt import SVTPrivacy as SVTPrivacy
from leakgauge.defenses.withhold import Withhold as Withhold
from leakgauge.defenses.withhold import WithholdNames as WithholdNames

DEFENSES: dict[str, type[Defense]] = {
    "gaussian_noise": GaussianNoise,
    "laplacian_noise": LaplacianNoise,
    "layer_noise": LayerNoise,
    "clip": Clip,
    "prune": Prune,
    "gradient_dropout": GradientDropout,
    "quantize": Quantize,
    "sign": Signs,
    "mask_channels": MaskChannels,
    "prune_channels": PruneChannels,
    "withhold": Withhold,
    "percentile_privacy": PercentilePrivacy,
    "svt_privacy": SVTPrivacy,
    "exclude_vars": ExcludeVars,
    "flower_local_dp": FlowerLocalDP,
}
