"""``leakgauge withdraw``: says after the fact that a record does not count, and who says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import typer

from leakgauge.cli.options import Quiet, arg, opt
from leakgauge.errors import BadInput, harmless


@dataclass(frozen=True, kw_only=True)
class WithdrawOptions(Quiet):
    EXAMPLES: ClassVar[Sequence[str]] = (
        'leakgauge withdraw runs/first 1 --author "Ada" --reason "wrong weights were loaded"',
    )

    run: Path = arg("RUN", "Folder that audit or attack wrote.")
    record: str = arg("SET-UP", "Number of the set-up in the report, or the key of its record.")
    author: str = opt("", "Who withdraws it.")
    reason: str = opt("", "Why it does not count.")


def withdraw(options: WithdrawOptions) -> int:
    """Withdraw a record of a run: it no longer counts, the gate fails until it is run again, and the page shows who said so and why.

    The record itself stays in the folder. `leakgauge audit --resume` runs the case again.
    """
    from leakgauge.audit import evidence, records
    from leakgauge.audit.files import sole_writer
    from leakgauge.report import page

    every = records.latest(records.read(options.run))
    found = next((r for number, r in enumerate(every, start=1) if options.record in (str(number), r.key)), None)
    if found is None:
        raise BadInput(
            f"{options.run} has no set-up {options.record!r}; give its number in the report (1 to {len(every)}) or the key of its record"
        )
    with sole_writer(options.run):
        evidence.withdraw(options.run, found.key, author=options.author, reason=options.reason)
        path = page.write(options.run)
    if not options.quiet:
        typer.echo(harmless(f"withdrawn: {found.case.name}"))
        typer.echo(harmless(f"report: {path}"))
    return 0
