"""Helpers of other tests."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture
def recordable():
    """Helpers of the engine's tests: what a CUDA graph may record, and a graph that is played back on the CPU."""
    path = Path(__file__).parents[1] / "engine" / "recordable.py"
    spec = importlib.util.spec_from_file_location("recordable", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
