"""What ``--help`` shows of a command's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from typer.core import TyperGroup
from typer.models import ArgumentInfo


class HelpfulGroup(TyperGroup):
    """Commands whose arguments keep their help: typer 0.20 sets it, and from 8.5 on click overwrites it with nothing."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        for parameter in getattr(command, "params", ()):
            if parameter.param_type_name == "argument" and parameter.help is None:
                parameter.help = _written_help(command.callback, parameter.name)
        return command


def _written_help(callback: Callable[..., Any], name: str) -> str | None:
    """The help of an argument as it stands in the signature of the command."""
    marks = getattr(get_type_hints(callback, include_extras=True).get(name), "__metadata__", ())
    return next((mark.help for mark in marks if isinstance(mark, ArgumentInfo)), None)


__all__ = ["HelpfulGroup"]
