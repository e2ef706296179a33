"""The commands around audits: ``init`` writes a plan file, ``compare`` shows what changed between two runs, ``list`` what can be named."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakgauge.cli_options import MarkdownOption, QuietOption


def init(
    kind: Annotated[str, typer.Option("--for", help="pytorch, timm, huggingface or lightning.")] = "pytorch",
    out: Annotated[Path, typer.Option("--out", help="The file to write; an existing one is kept.")] = Path("audit.py"),
    quiet: QuietOption = False,
) -> None:
    """Write a commented plan file, which runs at once on a small stand-in; replace the marked lines by your own."""
    from leakgauge import console_init

    said = console_init.write(kind, out)
    if not quiet:
        typer.echo(said)


def compare(
    before: Annotated[Path, typer.Argument(metavar="RUN_A", help="Folder of the earlier run.")],
    after: Annotated[Path, typer.Argument(metavar="RUN_B", help="Folder of the later run.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the comparison as a page to this .html file.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the comparison as JSON to this file.")] = None,
    markdown: MarkdownOption = None,
    fail_if_worse: Annotated[
        bool,
        typer.Option(
            "--fail-if-worse", help="Exit with 3 if a verdict is worse or lost, or if nothing could be compared."
        ),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Show what changed between two runs, e.g. of two versions of a model: verdicts first, then figures with their spread.

    Set-ups are paired by mode, batch, local steps, attack, defenses and knowledge, whatever the models are called.
    """
    from leakgauge import console_compare

    raise typer.Exit(
        console_compare.show(
            before, after, page=out, json_to=json, markdown_to=markdown, fail_if_worse=fail_if_worse, quiet=quiet
        )
    )


__all__ = ["compare", "init"]


def list_() -> None:
    """Show the attacks, defenses, channels, malicious servers and embedded models that can be named."""
    from leakgauge import console

    console.show_registries()
