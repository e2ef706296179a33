"""``leakgauge init``: writes a plan file and says what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import typer

from leakgauge.cli.options import Quiet, opt
from leakgauge.errors import BadInput, harmless, install

HIDING = ("leakgauge", "lightning", "timm", "torch", "transformers")
"""A file finds its neighbours first, so Python would import a file of this name instead of the package."""


@dataclass(frozen=True, kw_only=True)
class InitOptions(Quiet):
    PANEL: ClassVar[str] = "Options"
    EXAMPLES: ClassVar[Sequence[str]] = ("leakgauge init", "leakgauge init --for lightning --out audits/classifier.py")

    kind: str = opt("pytorch", "pytorch, timm, huggingface or lightning.", "--for")
    out: Path = opt(Path("audit.py"), "The file to write; an existing file is never overwritten.")


def init(options: InitOptions) -> int:
    """Write a commented plan file. It runs at once on a small stand-in model; replace the marked lines with your own."""
    from leakgauge.integrations.plan_templates import MARK, TEMPLATES, plan_text

    kind, path = options.kind, options.out
    if kind not in TEMPLATES:
        raise BadInput(f"--for takes {', '.join(TEMPLATES)}, got {kind!r}")
    if path.suffix != ".py":
        raise BadInput(f"a plan file is Python and must end in .py, got {path}")
    if path.stem in HIDING:
        raise BadInput(f"{path.name} would hide the package {path.stem} from Python; choose another name with --out")
    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {path.parent} to write {path.name} into; make it first")
    text = plan_text(kind, name=path.name)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise BadInput(f"{path} already exists and was not changed; choose another name with --out") from error
    except OSError as trouble:
        raise BadInput(f"cannot write {path} ({trouble.strerror}); choose another place with --out") from trouble
    if not options.quiet:
        marked = [str(number) for number, line in enumerate(text.splitlines(), 1) if MARK in line]
        plan, extra = harmless(shlex.quote(str(path))), TEMPLATES[kind].extra
        typer.echo(
            f"wrote {harmless(str(path))}: it runs at once on a small stand-in; replace lines {', '.join(marked)} with your own"
        )
        if extra:
            typer.echo(f"  {install(extra)}, if it is not installed yet")
        typer.echo(f"  leakgauge attack {plan} --option steps=50   # a first look in seconds")
        typer.echo(f"  leakgauge audit {plan} --out runs/first     # the whole audit and its report")
        typer.echo("  leakgauge compare runs/first runs/second   # later, after you changed the model")
    return 0
