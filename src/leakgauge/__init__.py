"""leakgauge gauges how much private data leaks from what a neural network shares.

Names are loaded on first use, so ``import leakgauge`` and ``leakgauge --help`` do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leakgauge.audit.evaluate import Result, evaluate
    from leakgauge.core import (
        Assumption,
        Attack,
        Auxiliary,
        Buffers,
        Category,
        Channel,
        Defense,
        Labels,
        NoisyCopy,
        Number,
        Observation,
        Pixels,
        Reconstruction,
        Series,
        Signal,
        Size,
        Space,
        Table,
        Targets,
        Tokens,
        Victim,
        share,
    )
    from leakgauge.errors import BadInput, Inapplicable, LeakgaugeError
    from leakgauge.integrations.in_memory import Run, run_audit

__version__ = "0.2.0"

_HOME = {
    "leakgauge.core": (
        "Assumption", "Attack", "Auxiliary", "Buffers", "Category", "Channel", "Defense", "Labels", "NoisyCopy", "Number",
        "Observation", "Pixels", "Reconstruction", "Series", "Signal", "Size", "Space", "Table", "Targets", "Tokens", "Victim", "share",
    ),
    "leakgauge.audit.evaluate": ("Result", "evaluate"),
    "leakgauge.integrations.in_memory": ("Run", "run_audit"),
    "leakgauge.errors": ("BadInput", "Inapplicable", "LeakgaugeError"),
}  # fmt: skip
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [  # noqa: RUF022 - in the order a reader meets them
    "Victim", "Pixels", "Tokens", "Series", "Table", "Number", "Category", "Space", "Signal", "Targets", "Channel", "Defense", "share",
    "Observation", "Assumption",
    "Size", "Labels", "Buffers", "Auxiliary", "NoisyCopy", "Attack", "Reconstruction", "evaluate", "Result", "run_audit", "Run",
    "LeakgaugeError", "BadInput", "Inapplicable", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'leakgauge' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
