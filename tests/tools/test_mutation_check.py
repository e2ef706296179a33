"""The mutation check itself: what it calls trouble. The tests it would run are replaced by their exit codes."""

import pytest


@pytest.fixture
def tool(tool, monkeypatch):
    monkeypatch.setattr(tool, "copy_to", lambda folder: _one_file(folder))
    return tool


def _one_file(folder):
    file = folder / "src" / "leakgauge" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1 + 2\n")


@pytest.mark.parametrize(
    ("code", "right", "trouble"),
    [
        (1, "1 + 2", None),
        (0, "1 + 2", "survived"),
        (2, "1 + 2", "could not run"),
        (1, "1 * 2", "found 0 times"),
        (1, " ", "found 4 times"),
    ],
)
def test_fates(tool, monkeypatch, code, right, trouble):
    monkeypatch.setattr(tool, "run_tests", lambda folder, selection="": (code, "said"))
    said = tool.trouble_with(tool.Mutant("it", "a.py", right, "1 - 2", "TestIt"))
    assert said is None if trouble is None else trouble in said


def test_the_mutant_is_what_the_tests_see(tool, monkeypatch):
    seen = []
    monkeypatch.setattr(
        tool,
        "run_tests",
        lambda folder, selection="": seen.append((folder / "src/leakgauge/a.py").read_text()) or (1, ""),
    )
    tool.trouble_with(tool.Mutant("it", "a.py", "1 + 2", "1 - 2", "TestIt"))
    assert seen == ["x = 1 - 2\n"]


def test_tests_that_fail_unbroken_are_trouble(tool, monkeypatch):
    monkeypatch.setattr(tool, "run_tests", lambda folder, selection="": (1, "said"))
    assert "before anything is broken" in tool.trouble_with(None)


def test_there_are_at_least_ten_and_names_differ(tool):
    assert len({mutant.name for mutant in tool.MUTANTS}) == len(tool.MUTANTS) >= 10
