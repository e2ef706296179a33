"""Replays a channel for many candidates at once and compares them with the observation."""

from leakgauge.engine.capture import RecordedStep
from leakgauge.engine.choose import Choice, Replayer, choose
from leakgauge.engine.fast import ByRules
from leakgauge.engine.fused import Fused
from leakgauge.engine.memory import rows_that_fit, saved_bytes
from leakgauge.engine.observed import Observed
from leakgauge.engine.precision import TF32, BFloat16, Exact, Precision
from leakgauge.engine.reference import Reference, Replay
from leakgauge.engine.vmapped import VmapReplay

__all__ = [
    "TF32",
    "BFloat16",
    "ByRules",
    "Choice",
    "Exact",
    "Fused",
    "Observed",
    "Precision",
    "RecordedStep",
    "Reference",
    "Replay",
    "Replayer",
    "VmapReplay",
    "choose",
    "rows_that_fit",
    "saved_bytes",
]
