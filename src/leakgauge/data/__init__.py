"""Embedded samples with clear licences, and readers for the user's own data."""

from leakgauge.data.embedded import FASHION_CLASSES, MEAN, STD, fashion, photographs
from leakgauge.data.reader import read

__all__ = ["FASHION_CLASSES", "MEAN", "STD", "fashion", "photographs", "read"]
