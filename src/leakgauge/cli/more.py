"""The small commands around audits: plan files, comparisons, a look at a model that was sent, and what can be named."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leakgauge.cli.options import (
    ClassesOption,
    DataOption,
    DeviceOption,
    MarkdownOption,
    ModelArgument,
    QuietOption,
    ResizeOption,
    SeedOption,
    ServerOption,
)


def init(
    kind: Annotated[str, typer.Option("--for", help="pytorch, timm, huggingface or lightning.")] = "pytorch",
    out: Annotated[Path, typer.Option("--out", help="The file to write; an existing one is kept.")] = Path("audit.py"),
    quiet: QuietOption = False,
) -> None:
    """Write a commented plan file, which runs at once on a small stand-in; replace the marked lines by your own."""
    from leakgauge.cli import init as console_init

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
    from leakgauge.cli import compare as console_compare

    raise typer.Exit(
        console_compare.show(
            before, after, page=out, json_to=json, markdown_to=markdown, fail_if_worse=fail_if_worse, quiet=quiet
        )
    )


def list_() -> None:
    """Show the attacks, defenses, channels, malicious servers and embedded models that can be named."""
    from leakgauge.cli import attack as console

    console.show_registries()


def inspect(
    model: ModelArgument = None,
    data: DataOption = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=2, help="Images of your own in one update.")] = 16,
    first: Annotated[int, typer.Option(min=0, help="Index of the first image in the data.")] = 0,
    server: ServerOption = "",
    classes: ClassesOption = None,
    resize: ResizeOption = False,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Look at a model that a server sent: would single samples of your batch stand alone in the update? Exit with 3 if so.

    The gradient of every sample is computed in eval mode, on your own images; nothing is attacked. --server tries it on a
    malicious server's model.
    """
    from leakgauge.audit.case import Case
    from leakgauge.cli import inspect as console_inspect
    from leakgauge.integrations.plan_file import named

    model, data = named(model, data)
    case = Case(
        model=model, data=data, batch_size=batch_size, first=first, server=server, classes=classes, resize=resize,
        device=device, seed=seed,
    )  # fmt: skip
    case.build_server()
    raise typer.Exit(console_inspect.show(case, quiet=quiet))


__all__ = ["compare", "init", "inspect", "list_"]
