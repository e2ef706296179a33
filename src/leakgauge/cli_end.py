"""How the command line ends: which exit code, and what it says when something went wrong."""

from __future__ import annotations

import sys
from typing import NoReturn

import click
import typer

from leakgauge.cli_options import INTERRUPTED
from leakgauge.errors import LeakgaugeError


def run(app: typer.Typer) -> NoReturn:
    """Runs the command that was given and leaves; a user's mistake is one sentence and exit code 2, Ctrl-C is exit code 130."""
    try:
        code = app(standalone_mode=False, prog_name="leakgauge")
        if code == INTERRUPTED:  # typer turns Ctrl-C into its exit code
            raise KeyboardInterrupt
    except click.exceptions.NoArgsIsHelpError as asked:
        asked.show()  # the help itself
        sys.exit(asked.exit_code)
    except click.ClickException as mistake:
        complain(_in_one_sentence(mistake))
        sys.exit(mistake.exit_code)
    except (KeyboardInterrupt, click.Abort):
        complain("interrupted; finished cases are kept, go on with: leakgauge audit (or scan) --resume --out FOLDER")
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


def _in_one_sentence(mistake: click.ClickException) -> str:
    """What the parser refuses, as every other mistake is told, and where to look."""
    context = getattr(mistake, "ctx", None)
    path = context.command_path if context is not None else "leakgauge"
    return f"{' '.join(mistake.format_message().split()).rstrip('.')}; see {path} --help"


def complain(sentence: str) -> None:
    """Tells of what went wrong, apart from the output."""
    typer.echo(f"leakgauge: {sentence}", err=True)
