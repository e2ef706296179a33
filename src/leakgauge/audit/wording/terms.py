"""What numbers and adversaries are called, and what no audit says."""

from __future__ import annotations

from collections.abc import Mapping

from leakgauge.audit.findings import Measured
from leakgauge.audit.phrasing import number
from leakgauge.audit.verdict import Evidence, Unit

METRICS: Mapping[str, tuple[str, str]] = {
    "psnr": ("PSNR", "higher = closer to the original"),
    "ssim": ("SSIM", "higher = closer to the original"),
    "ssim_reduced": ("SSIM at reduced size", "averaged down to 64 pixels a side; higher = closer to the original"),
    "psnr_reduced": ("PSNR at reduced size", "averaged down to 64 pixels a side; higher = closer to the original"),
    "lpips": ("LPIPS", "lower = closer to the original"),
    "mse": ("MSE", "lower = closer to the original"),
    "reid": ("Re-identification rank", "1 = the original is the closest image"),
    "layout": ("Layout correlation", "1 = everything is where it is in the original"),
    "layout_rank": ("Re-identification rank by layout", "1 = no other image has a more similar layout"),
    "pieces": ("Patch correlation", "1 = every patch is there, in any order"),
    "pieces_lead": ("Patch lead", "above 0 = the patches fit no other image as well"),
    "correlation": ("Correlation", "1 = the shape of the original, whatever its scale"),
    "smape": ("sMAPE", "0 to 200 %; lower = closer to the original"),
    "labels": ("Labels recovered", "higher = more labels read"),
}
"""Name of each metric and how to read it."""
CERTAIN_LABEL = 0.995
"""Expected accuracy from which labels count as certain."""
OPTIONAL = ("ssim_reduced", "psnr_reduced", "pieces", "pieces_lead", "correlation", "smape")
"""Metrics of large images, of models that cut images into patches, and of series; elsewhere they are not missed."""
OF_IMAGES = ("lpips", "layout", "layout_rank")
"""Metrics that series do not have."""
SEEN: Mapping[Evidence, str] = {
    "ssim": "SSIM",
    "layout": "layout correlation",
    "pieces_lead": "patch lead",
    "correlation": "correlation",
}
"""The evidence inside a sentence."""
SERVER, MALICIOUS = "an honest-but-curious server", "a malicious server"

LIMITS = (
    "A negative verdict does not prove safety. Infeasible says that the attack works on this architecture and that what was sent, or what "
    "the adversary knew, did not single out these images; another prior may. Inconclusive says nothing. A reconstruction is "
    "proof.",
    "Diagnostic results are upper bounds: the adversary was given something that an ordinary server does not have.",
    "Results are about a server that follows the protocol and looks, except where they name a malicious one.",
    "Every verdict is about this model with these weights, these images and this set-up. Another checkpoint, larger images or other "
    "people's data can leak more.",
    "An adversary who knows a defense may see more than one who does not; the stated knowledge says which of the two attacked. Noise "
    "without an accountant bounds nothing.",
)
"""What no audit says, whatever it found."""


def interval(measured: Measured, *, brackets: bool = True) -> str:
    """
    >>> interval(Measured(5, 0.346, 0.2, 0.487)), interval(Measured(5, 1.0))
    ('0.35 (95 % CI 0.20 to 0.49)', '1.00')
    >>> interval(Measured(5, 0.346, 0.2, 0.487), brackets=False)
    '0.35, 95 % CI 0.20 to 0.49'
    """
    value = number(measured.value, 2)
    if measured.low is None or measured.high is None:
        return value
    spread = f"95 % CI {number(measured.low, 2)} to {number(measured.high, 2)}"
    return f"{value} ({spread})" if brackets else f"{value}, {spread}"


TEXT_METRICS: Mapping[str, str] = {
    "exact": "exact sentences",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "tokens": "tokens in their places",
}
"""Scores of sentences, from 0 to 1, in the order in which they are shown."""

UNITS: Mapping[Unit, str] = {"image": "images", "sentence": "sentences", "series": "series", "row": "rows"}
"""What several samples of a kind are called."""
