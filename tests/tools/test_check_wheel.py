"""The checks of the wheel, on small wheels written for it."""

import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source(tool, tmp_path):
    """A package with little more than what must be in a wheel."""
    for name in (*tool.MUST_HAVE, "core.py", "__pycache__/core.pyc"):
        path = tmp_path / "src/leakgauge" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path / "src"


@pytest.fixture
def wheel(source, tmp_path):
    def write(*, without=(), **more):
        path = tmp_path / "leakgauge-0.1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file in source.rglob("*"):
                name = file.relative_to(source).as_posix()
                if file.is_file() and "__pycache__" not in name and name not in without:
                    archive.writestr(name, file.read_bytes())
            for name, text in more.items():
                archive.writestr(name, text)
        return path

    return write


def test_a_whole_wheel(tool, wheel, source):
    assert tool.wrong_contents(wheel(), source) == []


def test_a_file_that_was_left_out(tool, wheel, source):
    found = tool.wrong_contents(wheel(without={"leakgauge/report/templates/report.html.j2"}), source)
    assert found[0] == "leakgauge/report/templates/report.html.j2 is missing; name it in package-data"


def test_files_that_do_not_belong(tool, wheel, source):
    found = tool.wrong_contents(wheel(**{"tests/test_core.py": "", "leakgauge/old.py": ""}), source)
    assert found == ["leakgauge/old.py does not belong there", "tests/test_core.py does not belong there"]


def test_files_of_a_strange_kind(tool, wheel, source):
    for name in ("notes.ipynb", "test_core.py"):
        (source / "leakgauge" / name).write_text("x")
    found = tool.wrong_contents(wheel(), source)
    assert found == [f"leakgauge/{n} is of a kind that does not travel" for n in ("notes.ipynb", "test_core.py")]


def test_too_large(tool, wheel, source, monkeypatch):
    monkeypatch.setattr(tool, "LARGEST", 1000)
    assert "at most 0 are allowed" in tool.wrong_contents(wheel(), source)[0]


METADATA = """Metadata-Version: 2.4
Name: leakgauge
Version: {version}
Summary: {description}
License-Expression: {license}
Requires-Python: {python}
Description-Content-Type: text/markdown
{extras}

text
"""


def metadata(tool, **changed):
    project = tool.tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = {
        "version": project["version"],
        "description": project["description"],
        "license": project["license"],
        "python": project["requires-python"],
        "extras": "\n".join(f"Provides-Extra: {name}" for name in project["optional-dependencies"]),
    }
    folder = "leakgauge-0.1.0.dist-info"
    return {
        f"{folder}/METADATA": METADATA.format(**said | changed),
        f"{folder}/entry_points.txt": "[console_scripts]\nleakgauge = leakgauge.cli:program\n",
        f"{folder}/licenses/LICENSE": "",
        f"{folder}/licenses/NOTICE.md": "",
    }


def test_the_metadata_as_it_should_be(tool, wheel):
    assert tool.wrong_metadata(wheel(**metadata(tool)), ROOT) == []


def test_metadata_that_differs(tool, wheel):
    files = metadata(
        tool, version="9.9", extras="Provides-Extra: new\n" + "\n".join(f"Provides-Extra: {n}" for n in tool.USES)
    )
    del files["leakgauge-0.1.0.dist-info/licenses/NOTICE.md"]
    files["leakgauge-0.1.0.dist-info/entry_points.txt"] = ""
    assert tool.wrong_metadata(wheel(**files), ROOT) == [
        f"Version is '9.9', not '{tool.version_of(ROOT / 'src/leakgauge/__init__.py')}'",
        "the licence file NOTICE.md is missing",
        "the command leakgauge is missing",
        "extra new has no line in USES",
    ]  # fmt: skip
