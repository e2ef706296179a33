"""Freed memory is kept: the system does not clear the same pages over and over."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from leakgauge.cli.memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def work():
    for _ in range(50):
        blocks = [np.ones(1 << 20) for _ in range(4)]  # 32 MiB together: more than malloc keeps by itself
        del blocks
work()  # the first pages are new in either case
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    ran = subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True)
    return int(ran.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_pages_are_used_again():
    # transparent huge pages make a fault 512 times as large, so only the ratio is compared
    assert faults("kept") < 0.5 * faults("given back")
