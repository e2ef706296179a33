"""``leakgauge report``: writes the page of a run from its records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from leakgauge.cli.options import Quiet, arg
from leakgauge.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Quiet):
    run: Path = arg("RUN", "Folder that audit, attack, monitor or scan wrote.")


def report(options: ReportOptions) -> int:
    """Write the report of a run again from its records."""
    from leakgauge.audit import records
    from leakgauge.audit.questions import defenses, split, training
    from leakgauge.audit.run import CAPTURED
    from leakgauge.report import page

    on_a_page = (records.FILE, training.FILE, split.FILE, defenses.FILE)
    if (options.run / CAPTURED).is_file() and not any((options.run / name).is_file() for name in on_a_page):
        raise BadInput(
            f"{options.run} holds an attack on a captured update, which has no true images to score and so no report; see "
            f"{CAPTURED} and the pictures"
        )
    path = page.write(options.run)
    if not options.quiet:
        typer.echo(f"report: {path}")
    return 0
