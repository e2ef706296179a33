"""What must be known about the data."""

from __future__ import annotations

from leakgauge.data.facts import DataFacts
from leakgauge.data.levels import BITS, Levels

MADE_UP = "The images have no classes, so their labels are made up (0, 1, 2, …) and not scored."
NO_CLASSES = "The images have no classes, so accuracy and measures by class are left out."


def data_notes(data: DataFacts, *, labels: str = MADE_UP) -> list[str]:
    """What must be known about the data; nothing for images of 8 bits with labels of their own.

    >>> data_notes(DataFacts(levels=Levels(0, 4095, "values")))
    ['The images are read at 12 bits (black is 0, white is 4095), because their largest value fits in that.']
    """
    return [
        *([] if data.labelled else [labels]),
        *([f"The images are read {how}."] if (how := read_at(data.levels)) else []),
    ]


def read_at(levels: Levels) -> str:
    """At which depth or window images are read, and why; empty for the usual one.

    >>> read_at(Levels(-160, 239, "file"))
    'at a window (black is -160, white is 239), as the files say'
    """
    if levels.known_by == "type":
        return ""
    bits = next((f"{n} bits" for n in BITS if (levels.black, levels.white) == (0, 2**n - 1)), "")
    why = {
        "file": "as the files say",
        "values": "because their largest value fits in that" if bits else "their lowest and highest value",
        "window": "as asked",
    }[levels.known_by]
    return f"at {bits or 'a window'} (black is {levels.black:g}, white is {levels.white:g}), {why}"
