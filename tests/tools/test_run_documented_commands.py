"""The runner of documented commands, on a page written for it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "run_documented_commands.py"


@pytest.fixture
def run(tmp_path):
    def page(text):
        path = tmp_path / "page.md"
        path.write_text(text)
        done = subprocess.run([sys.executable, TOOL, path], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    return page


def fenced(language, text, comment=""):
    return f"{comment}\n```{language}\n{text}\n```\n\nsome words\n\n"


def test_runs_all_kinds_in_order_and_in_one_folder(run):
    code, said = run(
        fenced("bash", "echo 3 > number")
        + fenced("console", "$ test \\\n  -f number\nwhat it prints")
        + fenced("python", "number = int(open('number').read())")
        + fenced("python", ">>> number + 1\n4")
        + fenced("python", "VALUE = 5", "<!-- file: mine.py -->")
        + fenced("python", "import mine\nassert mine.VALUE == 5")
        + fenced("text", "not code at all")
    )
    assert code == 0, said
    assert said.count(" run ") == 5
    assert " written (mine.py) " in said


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("bash", "false\necho never"),
        ("console", "$ exit 3"),
        ("python", "raise ValueError('no')"),
        ("python", "raise SystemExit(0)"),
        ("python", ">>> 1 + 1\n3"),
    ],
)
def test_a_failing_block_fails(run, language, text):
    code, said = run(fenced(language, text))
    assert code == 1
    assert "page.md:3" in said


def test_a_marked_block_is_not_run(run):
    code, said = run(fenced("bash", "false", "<!-- not run: takes an hour -->"))
    assert code == 0
    assert "not run (takes an hour)" in said


def test_a_mark_counts_for_the_next_block_only(run):
    code, _ = run("<!-- not run: takes an hour -->\n\nother words\n\n```bash\nfalse\n```\n")
    assert code == 1


def test_pages_run_side_by_side_each_in_a_folder_of_its_own(tmp_path):
    pages = [tmp_path / f"{name}.md" for name in "ab"]
    for page in pages:
        page.write_text(
            fenced("bash", "ls > seen; test $(wc -l < seen) = 1; echo 3 > number")
            + fenced("python", "names = 1\nimport nothing_of_that_name")
        )
    done = subprocess.run([sys.executable, TOOL, "--jobs", "2", *pages], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "2 failed" in done.stdout
    assert done.stdout.count(" run ") == 2
    assert all(f"{page} (python)" in re.sub(r":\d+ ", " ", done.stdout) for page in pages)
