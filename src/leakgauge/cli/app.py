"""The command line. Nothing heavy is imported before a command runs, so ``--help`` answers at once."""

from __future__ import annotations

import errno
import inspect
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand

from leakgauge import __version__
from leakgauge.cli.attack import attack
from leakgauge.cli.audit import audit
from leakgauge.cli.compare import compare
from leakgauge.cli.init import init
from leakgauge.cli.inspect import inspect as inspect_
from leakgauge.cli.list import list_
from leakgauge.cli.memory import keep_freed_memory
from leakgauge.cli.monitor import monitor
from leakgauge.cli.options import Options
from leakgauge.cli.report import report
from leakgauge.cli.scan import scan
from leakgauge.cli.supervised import run_supervised, wording
from leakgauge.cli.terminal import complain
from leakgauge.cli.withdraw import withdraw
from leakgauge.errors import BadInput, CannotWrite, LeakgaugeError, harmless, one_line, trace_without_values

COMMANDS: Mapping[str, Sequence[Callable[[Any], int]]] = {
    "Measure": (audit, attack, scan, monitor),
    "Read runs": (report, compare, withdraw),
    "Prepare": (init, inspect_, list_),
}
"""What each command does, a function of its options, by the heading in ``--help``."""
PANELS = ("Model and data", "Threat", "Captured update", "Cuts", "Effort", "Options", "CI", "Run")
"""Headings in the help of a command, in this order."""
INTERRUPTED, CLOSED_PIPE = 130, 141
"""Exit codes after Ctrl-C, and where nobody reads what is printed any more, as after ``leakgauge list | head``."""
UsageError: Any = typer.BadParameter.__base__
"""What the parser raises: click's own class, or that of the copy of click inside newer versions of typer."""
SUGGESTS = not UsageError.__module__.startswith("typer.")
"""Whether the parser suggests a command by itself, as click's own does; the copy inside typer leaves it to typer."""


class HelpfulCommand(TyperCommand):
    """A command with its arguments described (typer 0.20 does that, and click 8.5 undoes it) and --help among the last options."""

    callback: Any

    def format_help(self, ctx: Any, formatter: Any) -> None:
        declared = self.callback.options.declared()
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                parameter.help = declared[parameter.name].help
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Refuses an empty word, which is what a shell makes of a variable that is not set; it never means "not given"."""
        refuse_empty(args, self.params, ends_with_arguments=not self.callback.options.INTERSPERSED)
        return super().parse_args(ctx, args)

    def get_help_option(self, ctx: Any) -> Any:
        option: Any = super().get_help_option(ctx)
        panels = [one.panel for one in self.callback.options.declared().values()]
        option.rich_help_panel = max(panels, key=PANELS.index)
        return option


app = typer.Typer(
    name="leakgauge",
    add_completion=False,
    suggest_commands=not SUGGESTS,
    subcommand_metavar="COMMAND [ARGS]...",
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,  # they print local variables: private pixels and labels
    epilog="Start with: **leakgauge audit** (no arguments: embedded models and data, a report in two to three minutes).",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leakgauge {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Gauges how much private data leaks from what a neural network shares: gradients, weight updates, features."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def refuse_empty(args: Sequence[str], parameters: Sequence[Any], *, ends_with_arguments: bool) -> None:
    """A mistake if one of the command's own words is empty. What follows a script is the script's affair (``ends_with_arguments``)."""
    takes_value = {flag for one in parameters if not getattr(one, "is_flag", True) for flag in one.opts}
    words = iter(args)
    for word in words:
        if word in takes_value:
            if next(words, None) == "":
                raise BadInput(f"{word} was given an empty text; leave it out, or give a value")
        elif word.endswith("=") and word[:-1] in takes_value:
            raise BadInput(f"{word[:-1]} was given an empty text; leave it out, or give a value")
        elif not word:
            raise BadInput("an argument is an empty text; leave it out, or give a value (is a shell variable not set?)")
        elif ends_with_arguments and not word.startswith("-"):
            return


def _add(function: Callable[[Any], int], panel: str) -> None:
    """Makes a command of a function of options: the options give the parameters, the docstring gives the help."""
    kind: type[Options] = next(iter(get_type_hints(function).values()))

    def run(context: typer.Context, **values: Any) -> NoReturn:
        sources = {name: context.get_parameter_source(name) for name in values}
        given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        options = kind(given=frozenset(given), **plain)
        try:
            raise typer.Exit(function(options))
        except KeyboardInterrupt as stop:
            complain(f"interrupted; {str(stop) or options.interrupted()}")
            raise typer.Exit(INTERRUPTED) from None

    parameters = _parameters(kind)
    call: Any = run
    call.__signature__ = inspect.Signature(parameters)
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    call.__doc__, call.options = function.__doc__, kind
    app.command(
        kind.name(),
        cls=HelpfulCommand,
        epilog="\n\n".join(["Examples:", *(f"- **{words}**" for words in kind.EXAMPLES)]) if kind.EXAMPLES else None,
        context_settings={"allow_interspersed_args": kind.INTERSPERSED},
        rich_help_panel=panel,
    )(call)


def _parameters(kind: type[Options]) -> list[inspect.Parameter]:
    """The parameters of a typer command with these options."""
    made = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    types, defaults = get_type_hints(kind), {one.name: one.default for one in fields(kind)}
    for name, one in sorted(kind.declared().items(), key=lambda item: PANELS.index(item[1].panel)):
        taken = list[str] if types[name] == Sequence[str] else types[name]
        default = inspect.Parameter.empty if defaults[name] is MISSING else defaults[name]
        shown: dict[str, Any] = {"help": one.help, "show_default": not one.metavar and default not in ("", ())}
        if one.metavar:
            mark = typer.Argument(metavar=one.metavar, **shown)
        else:
            mark = typer.Option(*one.flags, callback=one.check, rich_help_panel=one.panel, **shown)
        kept: dict[str, Any] = {"default": default, "annotation": Annotated[taken, mark]}
        made.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **kept))
    return made


for _panel, _functions in COMMANDS.items():
    for _function in _functions:
        _add(_function, _panel)


def program() -> NoReturn:
    """The program ``leakgauge``: :func:`main`, in a child process if the command runs a user's code."""
    say = wording(sys.argv[1:])
    if say is not None:
        run_supervised(main, say, complain=complain)
    main()


def main() -> NoReturn:
    """Runs the command and exits: a user's mistake is one sentence and exit code 2, Ctrl-C is exit code 130."""
    keep_freed_memory()
    try:
        code = app(standalone_mode=False, prog_name="leakgauge")
    except UsageError as mistake:
        path = mistake.ctx.command_path if mistake.ctx is not None else "leakgauge"
        complain(f"{' '.join(mistake.format_message().split()).rstrip('.')}; see {path} --help")
        sys.exit(mistake.exit_code)
    except LeakgaugeError as mistake:
        complain(str(mistake))
        sys.exit(2)
    except CannotWrite as trouble:
        complain(f"cannot write {trouble.filename} ({trouble.strerror}); finished work is kept, {_remedy(trouble)}")
        sys.exit(2)
    except OSError as trouble:  # a file that is not ours: the model's or the data's
        if isinstance(trouble, BrokenPipeError) and _output_is_closed():
            _end_quietly()
        complain(
            f"cannot use {trouble.filename or 'a file or a connection'} ({trouble.strerror or trouble}); make it available"
        )
        sys.exit(2)
    except Exception as crash:  # noqa: BLE001 - a defect of ours; printed here, because other printers of tracebacks show local variables
        typer.echo(harmless(trace_without_values(crash)), err=True)
        complain("this is a defect of leakgauge; please report it with the lines above, which hold no data")
        sys.exit(1)
    except BaseException as ended:  # noqa: BLE001 - not ours: a command ends with a code
        if isinstance(
            ended.__context__, BrokenPipeError
        ):  # what rich makes of a closed output, which it has replaced by then
            _end_quietly()
        complain(f"the model's code ended the program ({one_line(ended)}) before there was a verdict; remove that call")
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _output_is_closed() -> bool:
    """Whether nobody reads our output any more: a broken pipe may also be one of the model's or the data's."""
    hung_up = select.poll()
    hung_up.register(1, select.POLLERR)
    return any(event & select.POLLERR for _, event in hung_up.poll(0))


def _end_quietly() -> NoReturn:
    """Ends a command whose output nobody reads; what Python still has to write at its end goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(CLOSED_PIPE)


def _remedy(trouble: OSError) -> str:
    full = trouble.errno in (errno.ENOSPC, errno.EDQUOT)
    return "free some space or choose another place" if full else "choose another place that can be written to"


__all__ = ["app", "main", "program"]
