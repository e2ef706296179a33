"""Scripts of the studies and helpers of other tests."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

GOLDEN_SCRIPTS = (
    "splits", "targets", "leaks", "study", "parts", "decoder_tables", "zone_part", "plan", "run", "published", "lookup", "reasons",
    "tables", "claims", "claims_of_data", "figures", "make_tables", "decoders_quick",
)  # fmt: skip


@pytest.fixture
def scripts():
    """The scripts of the split-inference study by name."""
    return {name: importlib.import_module(f"reproductions.golden_partition_zone.{name}") for name in GOLDEN_SCRIPTS}


@pytest.fixture
def golden_run():
    """A made-up run of that study at full size, see ``golden_run.py``."""
    return _loaded("golden_run", Path(__file__).with_name("golden_run.py"))


@pytest.fixture
def recordable():
    """Helpers of the engine's tests: what a CUDA graph may record, and a graph that is played back on the CPU."""
    return _loaded("recordable", Path(__file__).parents[1] / "engine" / "recordable.py")


def _loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
