"""Helpers of other tests, and rows of a study with a fault in them."""

import importlib.util
import json
import shutil
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


@pytest.fixture
def faulty(tmp_path):
    """Copies the rows of a study and gives the rows of a part another content: ``faulty(folder, part, change)``."""

    def copied(folder, part, change):
        if not list(tmp_path.iterdir()):
            for path in folder.glob("*.jsonl"):
                shutil.copy(path, tmp_path)
        path = tmp_path / f"{part}.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        path.write_text("".join(json.dumps(row | change(row)) + "\n" for row in rows), encoding="utf-8")
        return tmp_path

    return copied
