"""The import checker, on small packages written for it."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "check_imports.py"


@pytest.fixture
def check(tmp_path):
    def run(**files):
        package = tmp_path / "leakgauge"
        for name, text in {"core": "", "errors": "", **files}.items():
            path = package / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, TOOL, package], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    return run


def test_the_package_itself_is_in_order():
    done = subprocess.run([sys.executable, TOOL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("attacks__new", "from leakgauge.inversion import Matching"),
        ("cli__scan", "from leakgauge.cli import screen"),
        ("cli__report", "from leakgauge.report import page"),
        ("report__html", "from leakgauge.audit import records\nfrom leakgauge.audit.records import Record"),
        ("audit__run", "from leakgauge.models import CNN\nimport leakgauge"),
        ("integrations__timm", "def load():\n    import timm\n    return timm"),
        ("measures__image", "import math, torch, numpy, scipy\nfrom leakgauge.errors import BadInput"),
        ("testing", "from leakgauge.audit import run"),
    ],
)
def test_allowed(check, place, text):
    code, said = check(**{place: text})
    assert code == 0, said


@pytest.mark.parametrize(
    ("place", "text", "line", "why"),
    [
        ("inversion__new", "import math\nfrom leakgauge.attacks import dlg", 2, "stands above it"),
        ("inversion__new", "from leakgauge.defenses import Clip", 1, "neighbour"),
        ("channels__new", "def f():\n    from leakgauge.measures import image", 2, "neighbour"),
        ("attacks__new", "from ..audit import run", 1, "stands above it"),
        ("core", "from leakgauge.channels import Gradient", 1, "stands above it"),
        ("errors", "import leakgauge.core", 1, "stands above it"),
        ("audit__new", "from leakgauge import cli", 1, "stands above it"),
        ("report__html", "from leakgauge.audit import run", 1, "audit.records"),
        ("measures__image", "from leakgauge.core import Signal", 1, "errors alone"),
        ("measures__image", "import PIL", 1, "may use"),
        ("models__new", "from leakgauge.families import find_roles", 1, "core, errors alone"),
        ("attacks__new", "from leakgauge.data import fashion", 1, "attacks imports data"),
        ("testing", "from leakgauge.cli import main", 1, "testing imports cli"),
        ("core", "from leakgauge.testing import laws", 1, "for tests"),
        ("novelty", "from leakgauge.core import Victim", 1, "no place"),
        ("integrations__timm", "import timm", 1, "inside the function"),
        (
            "integrations__x",
            "def f():\n    import_module('timm')\ndef g():\n    return 1\nimport ray",
            5,
            "ray is optional",
        ),
    ],
)
def test_forbidden(check, tmp_path, place, text, line, why):
    code, said = check(**{place: text})
    assert code == 1
    assert f"{tmp_path / 'leakgauge' / place.replace('__', '/')}.py:{line}: " in said
    assert why in said


def test_an_optional_package_has_one_home(check):
    lazy = "def load():\n    import timm\n    return timm"
    code, said = check(integrations__one=lazy, integrations__two=lazy)
    assert code == 1
    assert "two.py:2: timm is optional and belongs to one.py alone" in said
