"""The parts of optimisation attacks, and the one loop that runs them."""

from leakgauge.inversion.distances import (
    L1,
    L2,
    BalancedCosine,
    ByName,
    Cosine,
    Decaying,
    Equal,
    LayerCosine,
    LayerNorms,
    RelativeL2,
)
from leakgauge.inversion.epochs import EpochsAgree, OverEpochs
from leakgauge.inversion.guided import Guided
from leakgauge.inversion.knowledge import ExactStatistics, ProxyStatistics, RunningStatistics, Strongest
from leakgauge.inversion.labels import (
    BiasCounts,
    CloudPrediction,
    ExpectedCounts,
    FirstThatApplies,
    Joint,
    MinimumEntry,
    RowSum,
    SignRule,
    infer_labels,
    read_labels,
)
from leakgauge.inversion.latent import Latent
from leakgauge.inversion.matching import Halving, Matching
from leakgauge.inversion.output_gradient import HeadFeatures, OutputGradient
from leakgauge.inversion.priors import (
    BatchNormStatistics,
    GroupConsistency,
    Norm,
    Registration,
    Shift,
    Smoothness,
    Spectrum,
    TotalVariation,
)
from leakgauge.inversion.progress import watching
from leakgauge.inversion.sampling import Annealing, FixedLength, Sampling, Spherical
from leakgauge.inversion.solvers import LBFGS, Adam, AdamW, CosineDecay, Descent, Sign, Steady, StepDecay
from leakgauge.inversion.staged import Staged
from leakgauge.inversion.starts import Constant, FromSpace, Given, NearTruth, Normal, Revealed, Uniform
from leakgauge.inversion.statistics import Moments, NormStatistics

__all__ = [
    "L1",
    "L2",
    "LBFGS",
    "Adam",
    "AdamW",
    "Annealing",
    "BalancedCosine",
    "BatchNormStatistics",
    "BiasCounts",
    "ByName",
    "CloudPrediction",
    "Constant",
    "Cosine",
    "CosineDecay",
    "Decaying",
    "Descent",
    "EpochsAgree",
    "Equal",
    "ExactStatistics",
    "ExpectedCounts",
    "FirstThatApplies",
    "FixedLength",
    "FromSpace",
    "Given",
    "GroupConsistency",
    "Guided",
    "Halving",
    "HeadFeatures",
    "Joint",
    "Latent",
    "LayerCosine",
    "LayerNorms",
    "Matching",
    "MinimumEntry",
    "Moments",
    "NearTruth",
    "Norm",
    "NormStatistics",
    "Normal",
    "OutputGradient",
    "OverEpochs",
    "ProxyStatistics",
    "Registration",
    "RelativeL2",
    "Revealed",
    "RowSum",
    "RunningStatistics",
    "Sampling",
    "Shift",
    "Sign",
    "SignRule",
    "Smoothness",
    "Spectrum",
    "Spherical",
    "Staged",
    "Steady",
    "StepDecay",
    "Strongest",
    "TotalVariation",
    "Uniform",
    "infer_labels",
    "read_labels",
    "watching",
]
