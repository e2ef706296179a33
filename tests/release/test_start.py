"""Nothing heavy is imported before it is needed. No clock is looked at: what is not imported takes no time.

The seconds are in ``benchmarks/start.py``.
"""

import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "scipy", "PIL", "jinja2", "safetensors"}

HELP = """
import contextlib, io, sys
from typer.main import get_command
from leakgauge import cli

commands = list(get_command(cli.app).commands)
assert len(commands) >= 8, commands
for words in (["--help"], ["--version"], *([name, "--help"] for name in commands)):
    sys.argv = ["leakgauge", *words]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            cli.main()
        except SystemExit as left:
            assert left.code == 0, (words, left.code)
    assert "leakgauge" in said.getvalue(), words
    if words == ["audit", "--help"]:
        assert "Examples: • leakgauge audit" in " ".join(said.getvalue().split())
"""


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{code}\nimport sys; print(sorted({HEAVY!r} & set(sys.modules)))"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_no_help_waits_for_torch():
    """Of all commands, those that are added later too."""
    assert run(HELP).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "code",
    [
        "import leakgauge; leakgauge.__version__, dir(leakgauge)",
        "import leakgauge; leakgauge.BadInput",
        "import leakgauge.cli, leakgauge.errors",
    ],
)
def test_the_package_waits_until_it_is_used(code):
    assert run(code).stdout.strip() == "[]"


def test_using_names_imports_torch_but_not_scipy():
    """Also the attacks and the audit: scipy is imported by the functions that call it."""
    code = "import sys, leakgauge.attacks, leakgauge.audit; leakgauge.share"
    assert "torch" in (found := run(code).stdout)
    assert "scipy" not in found


def test_python_m_leakgauge():
    import leakgauge

    done = subprocess.run(
        [sys.executable, "-m", "leakgauge", "--version"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"leakgauge {leakgauge.__version__}\n")
