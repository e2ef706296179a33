"""Memory that a program frees and takes again: kept instead of given back to the system each time."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
"""Numbers of the settings in glibc's malloc.h."""
KEPT: dict[int, int] = {MMAP_MAX: 0, TRIM_THRESHOLD: (1 << 31) - 1, TOP_PAD: 1 << 26}
"""No mapping for each large tensor, and up to 2 GiB of free memory kept."""


def keep_freed_memory() -> bool:
    """Makes malloc keep what is freed, on Linux with glibc; whether it took the settings.

    Large tensors are otherwise mapped and unmapped with every operation, and the system clears each page again.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in KEPT.items())
