"""The walk of CONTRIBUTING.md, "Add an attack", followed to the letter on a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = "calm_cosine"


def with_patch(text: str, patch: str) -> str:
    """``text`` with the added lines of ``patch`` after their context; an empty line of the patch leaves a gap."""
    lines, at = text.splitlines(), 0
    for line in patch.splitlines():
        if line.startswith("+"):
            lines.insert(at, line[1:])
            at += 1
        elif line.strip():
            assert line[1:] in lines[at:], f"CONTRIBUTING.md shows a line that is not there: {line[1:]!r}"
            at = lines.index(line[1:], at) + 1
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """A copy of what the walk touches, after it."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"<!-- file: {NAME}\.py -->\n```python\n(.+?)```", page, re.DOTALL)
    (patch,) = re.findall(r"```diff\n(.+?)```", page, re.DOTALL)
    target, _, patch = patch.partition("\n")
    copy = tmp_path_factory.mktemp("walk")
    for folder in ("src/leakgauge", "tests/laws", "tools", "docs/api"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("tests/conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, copy / file)
    (copy / f"src/leakgauge/attacks/{NAME}.py").write_text(code, encoding="utf-8")
    registry = copy / target.removeprefix(" # ")
    registry.write_text(with_patch(registry.read_text(encoding="utf-8"), patch), encoding="utf-8")
    return copy


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_laws_try_the_new_attack(walked):
    said = run(
        walked,
        "-m",
        "pytest",
        "-vv",
        "-p",
        "no:cacheprovider",
        "tests/laws/test_laws.py",
        "-k",
        f"{NAME} or registered",
    )
    for test in ("test_attack", "test_attack_refuses_the_other_kind_of_data"):
        assert re.search(rf"::{test}\[{NAME}\] PASSED", said), said


def test_the_command_line_names_the_new_attack(walked):
    assert f"  {NAME}" in run(walked, "-m", "leakgauge", "list")


def test_the_pages_name_the_new_attack(walked):
    code = "from pathlib import Path; import site_hooks, make_papers_page; root = Path('..');"
    code += "print(site_hooks.more_names((root / 'docs/api/attacks.md').read_text(), 'docs/api/attacks.md', root));"
    code += "print([e.name for e in make_papers_page.entries(root / 'src/leakgauge/attacks')])"
    said = run(walked / "tools", "-c", code)
    assert f"::: leakgauge.attacks.{NAME}.{NAME}" in said
    assert f"'{NAME}'" in said


def test_the_new_code_is_written_as_ours(walked):
    run(walked, "-m", "ruff", "check", "src/leakgauge/attacks")
    run(walked, "-m", "ruff", "format", "--check", "src/leakgauge/attacks")


def test_a_walk_that_no_longer_fits_is_noticed():
    with pytest.raises(AssertionError, match="a line that is not there: 'gone'"):
        with_patch("a\nb\n", " a\n+new\n gone\n")
    assert with_patch("a\nb\nc\n", " a\n+new\n\n+more\n c\n") == "a\nnew\nmore\nb\nc\n"
