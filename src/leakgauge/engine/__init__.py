"""Replays a channel for many candidates and compares with what was observed."""

from leakgauge.engine.observed import Observed
from leakgauge.engine.reference import Reference, Replay

__all__ = ["Observed", "Reference", "Replay"]
