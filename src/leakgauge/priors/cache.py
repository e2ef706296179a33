"""Where trained priors are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "LEAKGAUGE_CACHE"
"""Names another folder; set to nothing, priors are only kept in memory."""


def cache_folder() -> Path | None:
    """The folder for trained priors: that of the variable LEAKGAUGE_CACHE, else ``leakgauge`` in the user's cache."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return Path(chosen) if chosen else None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leakgauge"
