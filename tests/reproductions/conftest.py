"""The scripts of the feasibility study import each other by plain names."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "reproductions" / "practical_feasibility"
PARTS = ("accuracy", "small", "large", "shared_statistics", "controlled", "detection", "freeze_thresholds")
HELPERS = (
    *PARTS, "attacking", "claims", "confusion", "drawing", "figures", "ledger", "make_tables", "networks", "pack", "reasons", "rehearsal",
    "setting", "study", "training",
)  # fmt: skip


@pytest.fixture
def folder_on_path(monkeypatch):
    """The scripts import each other by plain names, which must not stay behind for other tests."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in HELPERS:
        sys.modules.pop(name, None)
    yield
    for name in HELPERS:
        sys.modules.pop(name, None)
    april = str(FOLDER.parent / "april")
    sys.path[:] = [path for path in sys.path if path != april]


@pytest.fixture
def recordable():
    """Helpers of the engine's tests: what a CUDA graph may record, and a graph that is played back on the CPU."""
    path = FOLDER.parents[1] / "tests" / "engine" / "recordable.py"
    spec = importlib.util.spec_from_file_location("recordable", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
