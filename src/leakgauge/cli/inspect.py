"""What ``leakgauge inspect`` shows: whether a model that was sent singles samples out."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from leakgauge.audit.case import Case
from leakgauge.audit.session import check_fits, set_up
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.integrations.setups import find
from leakgauge.servers.isolation import Isolated, find_isolated

FOUND = 3
"""Exit code where a sample stands alone."""


def show(case: Case, *, quiet: bool) -> int:
    """Looks at the case's batch and prints which samples stand alone. Returns the exit code."""
    try:
        setup = set_up(case, find)
        check_fits(setup)
        found = find_isolated(setup.victim, *setup.private(case))
    except Inapplicable as refusal:
        raise BadInput(f"this model cannot be inspected: {refusal}") from refusal
    screen = Console(quiet=quiet)
    count, size = len(found.samples), case.batch_size
    if not count:
        screen.print(
            f"None of {size} samples stands alone in the update. This does not prove that none can be reconstructed."
        )
        return 0
    screen.print(_table(found, case.first))
    screen.print(
        f"[bold red]{count} of {size} samples stand alone[/] in the update: whoever gets it can read them as if each had been sent by "
        "itself. Do not train on this model before you know why."
    )
    return FOUND


def _table(found: Isolated, first: int) -> Table:
    table = Table(title="Samples that stand alone in the update")
    for column in ("image", "tensor", "rows"):
        table.add_column(column, overflow="fold")
    for i in found.samples:
        most = max(found.places[i], key=lambda place: place.rows / place.of)
        table.add_row(str(first + i), escape(most.tensor), f"{most.rows} of {most.of}")
    return table
