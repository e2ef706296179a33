"""The scripts of the studies import each other by plain names."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "reproductions" / "practical_feasibility"
HELPERS = tuple(path.stem for folder in (FOLDER, FOLDER.parent / "april") for path in folder.glob("*.py"))
"""Its scripts, and those of the study whose readers and drawings it uses."""


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


GOLDEN = FOLDER.parent / "golden_partition_zone"
GOLDEN_SCRIPTS = (
    "splits", "targets", "leaks", "study", "parts", "decoder_tables", "zone_part", "plan", "run", "published", "lookup", "reasons",
    "tables", "claims", "claims_of_data", "figures", "make_tables", "decoders_quick",
)  # fmt: skip


@pytest.fixture
def scripts(monkeypatch):
    """The scripts of the split-inference study by name; they import each other by plain names, which must not stay behind."""
    own = (*GOLDEN_SCRIPTS, "drawing")
    monkeypatch.setattr(sys, "path", [str(GOLDEN), *sys.path])
    for name in own:
        sys.modules.pop(name, None)
    yield {name: importlib.import_module(name) for name in GOLDEN_SCRIPTS}
    for name in own:
        sys.modules.pop(name, None)


@pytest.fixture
def golden_run():
    """A made-up run of that study at full size, see ``golden_run.py``."""
    return _loaded("golden_run", Path(__file__).with_name("golden_run.py"))


@pytest.fixture
def recordable():
    """Helpers of the engine's tests: what a CUDA graph may record, and a graph that is played back on the CPU."""
    return _loaded("recordable", FOLDER.parents[1] / "tests" / "engine" / "recordable.py")


def _loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
