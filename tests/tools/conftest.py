"""The scripts of ``tools/``, which are no package, as modules."""

import importlib
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def tools_can_be_imported():
    sys.path.insert(0, str(TOOLS))
    yield
    sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module")
def tool(request, tools_can_be_imported):
    """The script that a file of tests is named after."""
    return importlib.import_module(request.path.stem.removeprefix("test_"))
