"""How the command line ends: which exit code, and what it says when something went wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from leakgauge.cli.options import INTERRUPTED
from leakgauge.errors import LeakgaugeError

UsageError: Any = typer.BadParameter.__base__
"""What the parser refuses is of this class: click's own, or that of the copy of click which newer versions of typer hold."""
SUGGESTS = not UsageError.__module__.startswith("typer.")
"""Whether the parser suggests a command by itself, as click's own does; the copy inside typer leaves it to typer."""


def run(app: typer.Typer) -> NoReturn:
    """Runs the command that was given and leaves; a user's mistake is one sentence and exit code 2, Ctrl-C is exit code 130."""
    try:
        code = app(standalone_mode=False, prog_name="leakgauge")
        if code == INTERRUPTED:  # typer turns Ctrl-C into its exit code
            raise KeyboardInterrupt
    except UsageError as mistake:
        complain(_in_one_sentence(mistake))
        sys.exit(mistake.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        complain(_interrupted(sys.argv[1:]))
        sys.exit(INTERRUPTED)
    except LeakgaugeError as mistake:
        complain(str(mistake))
        sys.exit(2)
    except OSError as trouble:
        complain(
            f"{trouble.strerror or trouble}: {trouble.filename or 'output'}; finished cases are kept, free space or choose another --out"
        )
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _interrupted(words: Sequence[str]) -> str:
    """What Ctrl-C leaves behind. An audit and a monitor tell it themselves, as soon as they have something to keep."""
    if "scan" in words[:1]:
        return "interrupted; finished cuts are kept, go on with: leakgauge scan --resume --out FOLDER"
    return "interrupted; nothing is kept that could be gone on with, so run it again"


def _in_one_sentence(mistake: Any) -> str:
    """What the parser refuses, as every other mistake is told, and where to look."""
    path = mistake.ctx.command_path if mistake.ctx is not None else "leakgauge"
    return f"{' '.join(mistake.format_message().split()).rstrip('.')}; see {path} --help"


def complain(sentence: str) -> None:
    """Tells of what went wrong, apart from the output."""
    typer.echo(f"leakgauge: {sentence}", err=True)
