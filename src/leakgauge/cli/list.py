"""``leakgauge list``: every name that the commands accept."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from leakgauge.cli.options import Options, opt
from leakgauge.cli.terminal import shown

PLAIN = (bool, int, float, str, tuple, type(None))
"""Values that an option on the command line can have."""


@dataclass(frozen=True, kw_only=True)
class ListOptions(Options):
    long: bool = opt(False, "Show the options of each name and their defaults too.")


def list_(options: ListOptions) -> int:
    """Show the attacks, defenses, channels, malicious servers and embedded models that you can name."""
    from leakgauge.attacks import ATTACKS
    from leakgauge.audit.case import BY_FIELDS, REVEALS
    from leakgauge.channels import CHANNELS
    from leakgauge.channels.optimizers import OPTIMIZERS
    from leakgauge.defenses import DEFENSES
    from leakgauge.models.pretrained import PRETRAINED
    from leakgauge.servers import SERVERS

    screen = Console()
    groups: Mapping[str, tuple[str, Mapping[str, Callable[..., object]]]] = {
        "Attacks": ("--attack NAME, --option NAME=VALUE", ATTACKS),
        "Defenses": ("--defense NAME:OPTION=VALUE,…", DEFENSES),
        "Optimizers of a client's local steps": ("--optimizer NAME:OPTION=VALUE,…", OPTIMIZERS),
        "Channels other than local training": (
            "--channel NAME:OPTION=VALUE,…",
            {name: made for name, made in CHANNELS.items() if made not in BY_FIELDS},
        ),
        "Malicious servers": ("--server NAME:OPTION=VALUE,…", SERVERS),
        "Knowledge to reveal": ("--reveal NAME:OPTION=VALUE,…", REVEALS),
        "Embedded models": ("MODEL", PRETRAINED),
    }
    for title, (usage, registry) in groups.items():
        if options.long:
            screen.print(_panel(title, usage, registry, with_options=registry is not PRETRAINED))
        else:
            screen.print(f"[bold]{title}[/]")
            for name, thing in registry.items():
                screen.print(f"  {name:<22} {shown(_summary(thing))}", soft_wrap=True, highlight=False)
    if not options.long:
        screen.print("\nTheir options and defaults: leakgauge list --long", highlight=False)
    return 0


def _panel(title: str, usage: str, registry: Mapping[str, Callable[..., object]], *, with_options: bool) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    for name, thing in registry.items():
        table.add_row(name, shown(_summary(thing)))
        if with_options and (taken := _options_of(thing)):
            table.add_row("", f"[dim]{shown(taken)}[/]")
    return Panel(table, title=title, title_align="left", subtitle=f"[dim]{usage}[/]", subtitle_align="left")


def _summary(thing: Callable[..., object]) -> str:
    """The first paragraph of the docstring, without its markup."""
    line = (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", line).replace("``", "")


def _options_of(thing: Callable[..., Any]) -> str:
    """
    >>> def attack(norm, *, lr: float = 0.1, steps: int = 300, labels: object = object()): ...
    >>> _options_of(attack)
    'norm (required), lr=0.1, steps=300'
    """
    found = []
    for name, parameter in inspect.signature(thing).parameters.items():
        if parameter.default is inspect.Parameter.empty:
            found.append(f"{name} (required)")
        elif isinstance(parameter.default, PLAIN):
            found.append(f"{name}={parameter.default}")
    return ", ".join(found)
