"""``leakgauge inspect``: would a model that a server sent isolate samples in the update?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console
from rich.table import Table

from leakgauge.cli.options import ModelAndData, Served, opt, within
from leakgauge.cli.terminal import shown
from leakgauge.errors import BadInput, Inapplicable

if TYPE_CHECKING:
    from leakgauge.servers.isolation import Isolated

FOUND = 3
"""Exit code if a sample is isolated."""


@dataclass(frozen=True, kw_only=True)
class InspectOptions(ModelAndData, Served):
    PANEL: ClassVar[str] = "Model and data"
    EXAMPLES: ClassVar[Sequence[str]] = ("leakgauge inspect received.py:make --data photos/ --batch-size 32",)

    batch_size: int = opt(16, "How many of your images go into one update.", check=within(2))
    first: int = opt(0, "Index of the first image in the data.")


def inspect(options: InspectOptions) -> int:
    """Check a model that a server sent: would it isolate single samples of your batch in the update? Exit with 3 if so.

    The gradient of every sample is computed in eval mode on your own images; nothing is attacked. Use --server to see how a
    malicious server's model looks.
    """
    from leakgauge.audit.session import check_fits, set_up
    from leakgauge.integrations.setups import find
    from leakgauge.servers.isolation import find_isolated

    case = options.case(batch_size=options.batch_size, first=options.first, server=options.server)
    case.build_server()
    try:
        setup = set_up(case, find)
        check_fits(setup)
        found = find_isolated(setup.victim, *setup.private(case))
    except Inapplicable as refusal:
        raise BadInput(f"this model cannot be inspected: {refusal}") from refusal
    screen = Console(quiet=options.quiet)
    count, size = len(found.samples), case.batch_size
    if not count:
        screen.print(
            f"None of the {size} samples is isolated in the update. This does not prove that none can be reconstructed."
        )
        return 0
    screen.print(_table(found, case.first))
    screen.print(
        f"[bold red]{count} of {size} samples are isolated in the update[/]: whoever receives it can read them as if each had been "
        "sent alone. Do not train on this model before you know why."
    )
    return FOUND


def _table(found: Isolated, first: int) -> Table:
    table = Table(title="Samples that are isolated in the update")
    for column in ("image", "tensor", "rows"):
        table.add_column(column, overflow="fold")
    for i in found.samples:
        most = max(found.places[i], key=lambda place: place.rows / place.of)
        table.add_row(str(first + i), shown(most.tensor), f"{most.rows} of {most.of}")
    return table
