"""Split inference: where a model can be cut between edge and cloud, and how much leaks there."""

from leakgauge.split.cuts import Cut, cuts
from leakgauge.split.halves import Halves, halves

__all__ = ["Cut", "Halves", "cuts", "halves"]
