"""``leakgauge report``: writes the page of a run from its records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from leakgauge.cli.options import Quiet, arg
from leakgauge.errors import harmless


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Quiet):
    run: Path = arg("RUN", "Folder that audit, attack, monitor or scan wrote.")


def report(options: ReportOptions) -> int:
    """Write the report of a run again from its records."""
    from leakgauge.report import page

    path = page.write(options.run)
    if not options.quiet:
        typer.echo(f"report: {harmless(str(path))}")
    return 0
