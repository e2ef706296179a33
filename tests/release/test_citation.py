"""What a release says about itself: one version everywhere, a citation that tools can read, a note on all that is embedded.

``cff-1.2.0.schema.json`` is the schema of the Citation File Format 1.2.0 (CC BY 4.0, its authors), unchanged.
"""

import copy
import fnmatch
import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

import leakgauge

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def citation():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def schema():
    return jsonschema.Draft7Validator(json.loads(Path(__file__).with_name("cff-1.2.0.schema.json").read_text()))


def test_one_version_everywhere(citation):
    newest = re.search(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert newest is not None
    assert citation["version"] == PROJECT["version"] == leakgauge.__version__ == newest[1]


def test_the_citation_fits_the_schema(citation, schema):
    assert not [error.message for error in schema.iter_errors(citation)]


@pytest.mark.parametrize("lacking", ["authors", "title", "message"])
def test_the_schema_would_see_a_mistake(lacking, citation, schema):
    damaged = copy.deepcopy(citation)
    del damaged[lacking]
    assert not schema.is_valid(damaged)


def test_the_quick_start_lists_every_extra_of_a_user():
    page = (ROOT / "docs/quick_start.md").read_text(encoding="utf-8")
    table = page[page.index("| extra | for |") :].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(PROJECT["optional-dependencies"]) - {"dev", "bench", "docs"}


def test_the_notice_names_every_embedded_file():
    notice = (ROOT / "NOTICE.md").read_text(encoding="utf-8")
    named = re.findall(r"`([^`]+)`", notice)
    package = ROOT / "src/leakgauge"
    for folder in ("data/embedded", "models/weights"):
        for file in sorted((package / folder).iterdir()):
            if file.suffix != ".md":
                known = [n for n in named if fnmatch.fnmatch(f"{folder}/{file.name}", n) or n == file.name]
                assert known, f"NOTICE.md does not say where {folder}/{file.name} comes from"
    assert {"LICENSE", "NOTICE.md"} <= set(PROJECT["license-files"])


def test_the_licences_of_photographs_agree():
    """The short note and the long one say the same of every picture."""
    notice = (ROOT / "NOTICE.md").read_text(encoding="utf-8")
    long = (ROOT / "src/leakgauge/data/embedded/LICENSES.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(photo-[^`]+)` .*\| ([^|]+) \|$", long, flags=re.MULTILINE)
    assert len(rows) == 8
    for picture, licence in rows:
        (line,) = (line for line in notice.splitlines() if picture in line)
        assert ("CC0" in line) == ("CC0" in licence)
        assert ("public domain" in line) == ("public domain" in licence)
