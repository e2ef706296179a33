"""The privacy-token paper's own measurement, as published (Algorithm 1), with controls that show what its number means.

The command ``leakgauge monitor --paper`` runs :func:`paper_mode` next to the monitor.
"""

from leakgauge.monitor.paper.algorithm import CriticPlan, PaperSchedule, paper_mode, paper_modes
from leakgauge.monitor.paper.critic import Gap, TokenCriticFit
from leakgauge.monitor.paper.result import LABEL, Checkpoint, PaperControls, PaperCost, PaperResult, Reading, Shuffle
from leakgauge.monitor.paper.tokens import AutoencoderToken, Token, TransformerToken

__all__ = [
    "LABEL",
    "AutoencoderToken",
    "Checkpoint",
    "CriticPlan",
    "Gap",
    "PaperControls",
    "PaperCost",
    "PaperResult",
    "PaperSchedule",
    "Reading",
    "Shuffle",
    "Token",
    "TokenCriticFit",
    "TransformerToken",
    "paper_mode",
    "paper_modes",
]
