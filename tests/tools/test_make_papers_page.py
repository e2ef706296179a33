"""The page of papers: how references are read, and that the committed page is the made one."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "make_papers_page.py"


@pytest.mark.parametrize(
    ("docstring", "found"),
    [
        ("Ref: Wang 2004, Eq. (13) — the index", [("Wang 2004", "Eq. (13)", "the index")]),
        ("Words.\n\n    Ref: Zhao et al. 2020, Algorithm 1 — iDLG", [("Zhao et al. 2020", "Algorithm 1", "iDLG")]),
        ("Ref: APRIL (Lu et al. 2022), section 5 — noise\n\nMore words.", [("APRIL (Lu et al. 2022)", "section 5", "noise")]),
        ("Ref: He et al. 2015, *A*; He et al. 2016, *B*.", [("He et al. 2015", "*A*", ""), ("He et al. 2016", "*B*", "")]),
        ("Ref: Zhu, Liu, Han 2019, section 4. Strides (2, 2) follow; others do not.", [("Zhu et al. 2019", "section 4", "")]),
        ("Ref: Wang 2004, Eq. (1) — a\nRef: Wang 2004, Eq. (2) — b", [("Wang 2004", "Eq. (1)", "a"), ("Wang 2004", "Eq. (2)", "b")]),
        ("Nothing.", []),
    ],
)  # fmt: skip
def test_reads_references(tool, docstring, found):
    assert list(tool.references(docstring)) == found


@pytest.mark.parametrize("line", ["Ref: Nobody 2031, Eq. (1) — x", "Ref: no year at all"])
def test_refuses_what_it_cannot_place(tool, line):
    with pytest.raises(SystemExit, match=r"Nobody 2031|cannot read"):
        list(tool.references(line))


def test_finds_the_tests_that_name_a_function(tool, tmp_path):
    package, tests = tmp_path / "src" / "leakgauge", tmp_path / "tests"
    package.mkdir(parents=True)
    tests.mkdir()
    (package / "a.py").write_text(
        'class _Base:\n    """Ref: Wang 2004, Eq. (1) — it"""\nclass Child(_Base):\n    pass\n'
    )
    (tests / "test_one.py").write_text("from leakgauge.a import Child\n")
    (tests / "test_two.py").write_text("from elsewhere import Child\n")
    page = tool.page(tmp_path)
    assert "[`Child`](../src/leakgauge/a.py) | [test_one.py](../tests/test_one.py) |" in page


def test_check_passes_on_a_page_just_made(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    assert tool.main(["--check"]) == 1
    assert "make pages" in capsys.readouterr().out
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0


def test_runs_as_a_script():
    done = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True, check=False)
    assert "papers.md" in done.stdout
