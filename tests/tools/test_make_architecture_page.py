"""The page on who imports whom: from a tiny package; ``make docs`` checks that the committed page is up to date."""

import pytest


@pytest.fixture
def package(tmp_path):
    files = {
        "__init__.py": '"""All."""\nfrom leakgauge.core import share\n',
        "errors.py": '"""What goes wrong."""\n',
        "core.py": '"""The ``words``.\n\nMore.\n"""\nfrom leakgauge.errors import Bad\n',
        "channels/__init__.py": '"""What leaves."""\n',
        "channels/one.py": "from leakgauge import errors\nfrom ..core import x\n",
        "audit/__init__.py": '"""Verdicts."""\ndef f():\n    import leakgauge.channels.one\n',
        "cli/__init__.py": '"""Commands."""\nfrom leakgauge.cli.attack import show\n',
        "cli/attack.py": '"""Shows."""\nfrom leakgauge.audit import f\n',
        "data/__init__.py": '"""Samples."""\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_imports_are_the_real_ones_with_the_command_line_as_one(tool, package):
    assert tool.imports(package) == {
        ("core", "errors"), ("channels", "errors"), ("channels", "core"), ("audit", "channels"), ("cli", "audit"),
    }  # fmt: skip


def test_the_table_says_purpose_size_and_imports(tool, package):
    made = tool.page(package)
    assert "| `cli` | Commands. | 2 | 4 | `audit` |" in made
    assert "| `channels` | What leaves. | 2 | 3 | `core`, `errors` |" in made
    assert "| `core` | The `words`. | 1 | 5 | `errors` |" in made
    assert "| `errors` | What goes wrong. | 1 | 1 | nothing of ours |" in made
    assert "`monitor` |" not in made  # a level that this package does not have


def test_the_picture_has_a_box_for_each_and_lines_without_detours(tool, package):
    drawn = tool.drawing(package)
    assert [name for name in ("cli", "audit", "channels", "core", "errors", "data", "split") if f">{name}</text>" in drawn] == [
        "cli", "audit", "channels", "core", "errors", "data",
    ]  # fmt: skip
    assert drawn.count('class="line"') == 4  # channels → errors is left out: channels → core → errors


def test_a_part_without_docstring_is_refused(tool, package):
    (package / "core.py").write_text("x = 1\n")
    with pytest.raises(SystemExit, match="has no docstring"):
        tool.page(package)


@pytest.mark.parametrize(
    ("old", "stale"),
    [
        ("| `a` | Words. | 10 | 1,000 | `b` |", False),
        ("| `a` | Words. | 11 | 1,150 | `b` |", False),
        ("| `a` | Words. | 10 | 1,250 | `b` |", True),
        ("| `a` | Words. | 10 | 1,000 | `c` |", True),
        ("| `a` | Other words. | 10 | 1,000 | `b` |", True),
    ],
)
def test_sizes_may_drift_and_words_may_not(tool, old, stale):
    assert tool.stale(old, "| `a` | Words. | 10 | 1,000 | `b` |") is stale
