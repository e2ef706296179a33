"""``leakgauge inspect``: would a model that a server sent isolate samples in the update?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console
from rich.table import Table

from leakgauge.cli.options import ModelAndData, Served, opt, within
from leakgauge.cli.terminal import shown
from leakgauge.errors import BadInput, Inapplicable

if TYPE_CHECKING:
    from leakgauge.core import Mode
    from leakgauge.servers.isolation import Isolated

MODES: tuple[Mode, ...] = ("eval", "train")
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

    The gradient of every sample is computed on your own images, in eval and in train mode where they differ; nothing is attacked. If its
    gradient cannot be computed, the model is not cleared. Use --server to see how a malicious server's model looks.
    """
    from leakgauge.audit.session import check_fits, modes_differ, set_up
    from leakgauge.channels import Gradient
    from leakgauge.core import share
    from leakgauge.integrations.setups import find
    from leakgauge.servers.isolation import find_isolated

    case = options.case(batch_size=options.batch_size, first=options.first, server=options.server)
    case.build_server()
    found: list[tuple[str, Isolated]] = []
    refusals: list[Inapplicable] = []
    try:
        setup = set_up(case, find)
        check_fits(setup)
    except Inapplicable as refusal:
        raise BadInput(f"this model cannot be inspected: {refusal}") from refusal
    for mode in MODES if modes_differ(setup) else MODES[:1]:
        try:
            seen = replace(setup, victim=replace(setup.victim, mode=mode))
            share(seen.victim, Gradient(), *seen.private(case))  # refuses what shares no gradient, with the reason
            found.append((mode, find_isolated(seen.victim, *seen.private(case))))
        except Inapplicable as refusal:
            refusals.append(refusal)
    screen = Console(quiet=options.quiet)
    isolated = {i for _, one in found for i in one.samples}
    count, size = len(isolated), case.batch_size
    if not count and refusals:
        raise BadInput(f"this model is not cleared: {refusals[0]}") from refusals[0]
    if not count:
        looked = " and ".join(mode for mode, _ in found)
        screen.print(
            f"None of the {size} samples is isolated in the update ({looked} mode). This does not prove that none can be reconstructed."
        )
        return 0
    for mode, one in found:
        if one.samples:
            screen.print(_table(one, case.first, mode))
    screen.print(
        f"[bold red]{count} of {size} samples are isolated in the update[/]: whoever receives it can read them as if each had been "
        "sent alone. Do not train on this model before you know why."
    )
    return FOUND


def _table(found: Isolated, first: int, mode: str) -> Table:
    table = Table(title=f"Samples that are isolated in the update, {mode} mode")
    for column in ("image", "tensor", "rows"):
        table.add_column(column, overflow="fold")
    for i in found.samples:
        most = max(found.places[i], key=lambda place: place.rows / place.of)
        table.add_row(str(first + i), shown(most.tensor), f"{most.rows} of {most.of}")
    return table
