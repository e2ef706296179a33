"""Activations have no parameters; their rule only makes the second derivative cheaper."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from leakgauge.engine.rules import twice
from leakgauge.engine.rules.use import Recorder


def gelu(tape: Recorder, func: Any, input: Tensor, approximate: str = "none") -> Any:
    """Involves no parameter; the benefit is a cheaper second derivative."""
    if not tape.is_data(input) or approximate != "none":
        return NotImplemented
    return tape.mark_data(twice.gelu(input))
