"""The parts that optimisation attacks are made of, and the one loop that runs them."""

from leakgauge.inversion.consistency import GroupConsistency, Registration, Shift
from leakgauge.inversion.distances import L1, L2, Cosine, Decaying, Equal, LayerNorms, Named, RelativeL2
from leakgauge.inversion.halving import Halving
from leakgauge.inversion.labels import (
    BiasCounts,
    CloudPrediction,
    FirstThatApplies,
    Joint,
    MinimumEntry,
    RowSum,
    SignRule,
    inferred,
)
from leakgauge.inversion.matching import Matching
from leakgauge.inversion.priors import BatchNormStatistics, Norm, TotalVariation
from leakgauge.inversion.progress import watching
from leakgauge.inversion.solvers import LBFGS, Adam, AdamW, CosineDecay, Descent, Sign, Steady, StepDecay
from leakgauge.inversion.starts import Constant, FromSpace, Given, NearTruth, Normal, Uniform

__all__ = [
    "L1",
    "L2",
    "LBFGS",
    "Adam",
    "AdamW",
    "BatchNormStatistics",
    "BiasCounts",
    "CloudPrediction",
    "Constant",
    "Cosine",
    "CosineDecay",
    "Decaying",
    "Descent",
    "Equal",
    "FirstThatApplies",
    "FromSpace",
    "Given",
    "GroupConsistency",
    "Halving",
    "Joint",
    "LayerNorms",
    "Matching",
    "MinimumEntry",
    "Named",
    "NearTruth",
    "Norm",
    "Normal",
    "Registration",
    "RelativeL2",
    "RowSum",
    "Shift",
    "Sign",
    "SignRule",
    "Steady",
    "StepDecay",
    "TotalVariation",
    "Uniform",
    "inferred",
    "watching",
]
