"""What is known about the data of a run, as its records keep it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leakgauge.data.levels import EIGHT_BITS, Levels


@dataclass(frozen=True)
class DataFacts:
    """``labelled``: the images have classes of their own. Where they have none, labels are made up for the client to compute an update
    with, and nothing that depends on them is scored. ``levels``: which stored values are black and white.
    """

    labelled: bool = True
    levels: Levels = EIGHT_BITS


USUAL = DataFacts()


def facts_from(fields: Mapping[str, Any]) -> DataFacts:
    """The facts that were written down as these fields; records of older versions have none."""
    return DataFacts(bool(fields.get("labelled", True)), Levels(**fields.get("levels", {})))
