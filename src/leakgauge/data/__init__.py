"""Embedded samples with clear licences, and readers for the user's own data."""

from leakgauge.data.embedded import MEAN, STD, fashion, photographs
from leakgauge.data.reader import read
from leakgauge.data.tables import TableData, read_table

__all__ = ["MEAN", "STD", "TableData", "fashion", "photographs", "read", "read_table"]
