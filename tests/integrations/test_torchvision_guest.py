from __future__ import annotations

import subprocess
import sys

import pytest

from leakgauge.integrations import torchvision_guest
from leakgauge.integrations.torchvision_guest import invite_torchvision


def test_it_can_be_called_twice_and_torchvision_works():
    invite_torchvision()
    invite_torchvision()
    import torchvision

    assert torchvision.models.resnet18 is not None


def test_it_works_in_a_fresh_interpreter():
    code = "from leakgauge.integrations.torchvision_guest import invite_torchvision as i; i(); import torchvision; i()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_a_torchvision_that_imports_is_left_alone(monkeypatch):
    monkeypatch.setattr(torchvision_guest.importlib, "import_module", lambda name: None)
    monkeypatch.setattr(torchvision_guest, "_declared_operators", lambda: pytest.fail("declared operators needlessly"))
    invite_torchvision()


def test_no_torchvision_is_no_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    invite_torchvision()


@pytest.mark.parametrize("error", [RuntimeError("something else"), ModuleNotFoundError("no module", name="numpy")])
def test_other_errors_pass_through(monkeypatch, error):
    def fail(name):
        raise error

    monkeypatch.setattr(torchvision_guest.importlib, "import_module", fail)
    with pytest.raises(type(error)):
        invite_torchvision()
