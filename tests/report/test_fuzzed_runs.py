"""No file of a run folder, whatever one of its values is, ends in a traceback, takes all memory or gets markup onto a page."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from .fuzzing import drawn, every_try, make_run, outcome


def clean(tmp_path: Path, count: int, seed: int) -> Counter[str]:
    """How many tries were made and refused; any other outcome fails."""
    folder = make_run(tmp_path / "run")
    other, found, unclean = Path(shutil.copytree(folder, tmp_path / "other")), Counter[str](), list[str]()
    for one in drawn(folder, count, seed=seed):
        ended = outcome(folder, other, one)
        found[ended] += 1
        if ended not in ("made", "refused"):
            unclean.append(f"{one}: {ended}")
    assert not unclean, "\n".join(unclean)
    return found


def test_fuzzed_files_are_shown_or_refused(tmp_path):
    found = clean(tmp_path, 400, seed=20)
    assert min(found["made"], found["refused"]) > 50  # both ways are tried
    assert len(every_try(tmp_path / "run")) > 100_000


@pytest.mark.slow
def test_thousands_of_fuzzed_files(tmp_path):
    print(clean(tmp_path, 7600, seed=21))
