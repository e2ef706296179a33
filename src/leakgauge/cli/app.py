"""The command line. Nothing heavy is imported before a command runs, so ``--help`` answers at once."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from leakgauge import __version__
from leakgauge.cli.ending import SUGGESTS, complain, run
from leakgauge.cli.help import HelpfulGroup
from leakgauge.cli.more import compare, init, inspect, list_
from leakgauge.cli.options import (
    INTERRUPTED,
    AttackOption,
    BudgetOption,
    ChannelOption,
    ClassesOption,
    DataOption,
    DefenseOption,
    DeviceOption,
    EpochsOption,
    ExplainOption,
    FailOption,
    JsonOption,
    JunitOption,
    LocalLrOption,
    LocalOption,
    MarkdownOption,
    ModelArgument,
    ModeOption,
    OnlyOption,
    OptionOption,
    OutOption,
    QuietOption,
    ResizeOption,
    RevealOption,
    SeedOption,
    ServerOption,
    SizeOption,
    SkipOption,
    TrainingOption,
)  # fmt: skip
from leakgauge.errors import BadInput

app = typer.Typer(
    name="leakgauge",
    cls=HelpfulGroup,
    add_completion=False,
    suggest_commands=not SUGGESTS,
    subcommand_metavar="COMMAND [ARGS]...",
    rich_markup_mode="markdown",
    help="Gauges how much private data leaks from what a neural network shares.",
    epilog="Start with: **leakgauge audit** (no arguments: embedded models and data, a report in two to three minutes).",
)


SHOWN = {"out", "resume", "quiet", "explain", "workers", "ray", "fail_over", "json", "junit", "markdown"}
"""Options that change how a run is done, shown and judged, and not what it measures."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leakgauge {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Gauges how much private data leaks from what a neural network shares: gradients and weight updates."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command(
    epilog="Examples: **leakgauge audit** · **leakgauge audit my_model.py:make --data photos/ --mode train "
    "--batch-size 8 --budget 5m** · **leakgauge audit timm:resnet18 --classes 10 --skip training** · **leakgauge audit "
    "--resume --out leakgauge-runs/audit**"
)
def audit(
    context: typer.Context,
    model: ModelArgument = None,
    data: DataOption = None,
    only: OnlyOption = None,
    skip: SkipOption = None,
    budget: BudgetOption = None,
    mode: ModeOption = None,
    batch_size: SizeOption = None,
    local_steps: LocalOption = 1,
    local_lr: LocalLrOption = 0.01,
    channel: ChannelOption = "",
    defense: DefenseOption = None,
    attack: AttackOption = "inverting_gradients",
    option: OptionOption = None,
    reveal: RevealOption = None,
    training_steps: TrainingOption = None,
    epochs: EpochsOption = None,
    classes: ClassesOption = None,
    resize: ResizeOption = False,
    device: DeviceOption = "cpu",
    fail_over: FailOption = None,
    json: JsonOption = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    out: OutOption = None,
    seed: SeedOption = 0,
    explain: ExplainOption = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that run cases side by side.")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Run the cases as tasks of a Ray cluster.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out where it stopped.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Answer four questions about a model and write one report.

    **updates**: what could be reconstructed from updates, and what would change that? **training**: how does leakage move
    while it learns? **split**: where may it be cut? **defenses**: what do they buy? --only and --skip choose among them.

    Without MODEL: the embedded models. With MODEL: eval and train mode, batches of 1 and 4, with and without each given
    defense, and single changes of one set-up (train mode, batch of 4); --mode and --batch-size keep to one. With a plan
    file (audit.py, see leakgauge init): its cases on its victim and data; options given here win over the file.
    """
    began = time.perf_counter()
    from dataclasses import replace

    from leakgauge.audit.case import Case
    from leakgauge.audit.session import Session
    from leakgauge.audit.whole_plan import Effort
    from leakgauge.cli import attack as console
    from leakgauge.cli import audit as console_audit
    from leakgauge.cli.run_folder import refuse_changes
    from leakgauge.integrations import plan_file
    from leakgauge.integrations.setups import find

    folder = out or Path("leakgauge-runs/audit")
    written = plan_file.read(model, seed=seed) if model is not None and plan_file.is_plan(model) else None
    if written is not None:
        fail_over, budget = fail_over or written.fail_over, budget or written.budget
        only, skip = (only, skip) if only or skip else (list(written.only), list(written.skip))
    shown = console_audit.Shown(
        console.Gate(fail_over, json, junit, markdown), quiet=quiet, explain=explain, workers=workers, ray=ray
    )
    if resume:
        free = SHOWN | ({"model"} if written is not None else set())  # a plan file says which verdicts pass
        refuse_changes(folder, _asked(context, free), kind="audit")
        raise typer.Exit(console_audit.resumed(folder, shown, began=began))
    base = console.base_case(
        model, data, local_steps, local_lr, channel, attack, option, reveal, classes, resize, device, seed,
    )  # fmt: skip
    plain = model is data is mode is batch_size is None and not defense
    plain = plain and not explain and base == replace(Case(), seed=seed, device=device)
    cases, steps = None, base.options.get("steps")
    if written is not None and written.cases is not None:
        cases = plan_file.settled(
            written, base, given=_given(context), mode=mode, batch_size=batch_size, defenses=defense or ()
        )  # fmt: skip
        steps = steps or plan_file.steps_of(cases)
    load = Session(find)
    request = console_audit.request_of(
        base, load=load, plain=plain, mode=mode, batch_size=batch_size, defenses=defense or (), only=only or (), skip=skip or (),
        explain=explain, effort=Effort(steps, training_steps, epochs), budget=budget, cases=cases,
    )  # fmt: skip
    raise typer.Exit(console_audit.fresh(folder, request, shown, load=load, asked=_asked(context, SHOWN), began=began))


@app.command(
    epilog="Examples: **leakgauge attack** · **leakgauge attack vit --option steps=1000 --option restarts=4** · "
    "**leakgauge attack my_model.py:make --data photos/ --attack dlg --defense prune:0.9**"
)
def attack(
    context: typer.Context,
    model: ModelArgument = None,
    data: DataOption = None,
    mode: ModeOption = None,
    batch_size: SizeOption = None,
    local_steps: LocalOption = 1,
    local_lr: LocalLrOption = 0.01,
    channel: ChannelOption = "",
    server: ServerOption = "",
    defense: DefenseOption = None,
    attack: AttackOption = "inverting_gradients",
    option: OptionOption = None,
    reveal: RevealOption = None,
    classes: ClassesOption = None,
    resize: ResizeOption = False,
    device: DeviceOption = "cpu",
    first: Annotated[int, typer.Option(help="Index of the first private image in the data.")] = 0,
    update: Annotated[
        Path | None, typer.Option(help="A captured update (.safetensors or .pt) to attack instead of a made one.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The weights the server had sent out, for --update.")] = None,
    update_holds: Annotated[str, typer.Option(help="What --update holds: delta, gradient or weights.")] = "delta",
    fail_over: FailOption = None,
    json: JsonOption = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    out: OutOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Run one attack on one set-up and write its record, pictures and report.

    With --update: attack what a real client sent, as saved by a framework of federated learning. --channel says how it
    was made; --reveal auxiliary:64 with --data gives the server images of its own.
    """
    from dataclasses import replace

    from leakgauge.cli import attack as console
    from leakgauge.cli.run_folder import claimed
    from leakgauge.integrations.captured import refuse_in_a_file

    attack = attack if "attack" in _given(context) else console.usual_attack(server)
    base = console.base_case(
        model, data, local_steps, local_lr, channel, attack, option, reveal, classes, resize, device, seed, server,
    )  # fmt: skip
    changes: dict[str, Any] = {"mode": mode or "eval", "batch_size": 1 if batch_size is None else batch_size}
    case = replace(base, name="", first=first, defenses=tuple(defense or ()), **changes)
    case.require_fit()
    folder = out or Path("leakgauge-runs/attack")
    gate = console.Gate(fail_over, json, junit, markdown)
    if update is None and weights is not None:
        raise BadInput("--weights belongs to --update; to load weights into your model do it in its factory")
    if update is not None:
        if defense or server or first or fail_over or json or junit or markdown:
            raise BadInput(
                "--update brings what a client sent; --first, --server, defenses and verdicts have no place there"
            )
        refuse_in_a_file(case, data=data)
    refusal = "a run; choose another folder with --out"
    with claimed(folder, console.ATTACKED, replace_old=out is None, refusal=refusal, marks=console.RESULTS):
        if update is not None:
            code = console.run_captured(case, update, weights, holds=update_holds, folder=folder, quiet=quiet)
        else:
            code = console.attack(case, folder=folder, quiet=quiet, judged_by=gate)
    raise typer.Exit(code)


@app.command(
    epilog="Examples: **leakgauge scan** · **leakgauge scan my_model.py:make --data photos/ --require 'fvu>=0.5' "
    "--require 'bytes<=64KiB' --require 'flops<=1G'** · **leakgauge scan --resume --out leakgauge-runs/scan**"
)
def scan(
    context: typer.Context,
    model: ModelArgument = None,
    data: DataOption = None,
    require: Annotated[
        list[str] | None,
        typer.Option(help="fvu>=0.5, bytes<=64KiB, flops<=1G or share<=10%. Repeatable. Exit with 3 if no cut does."),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="FVU that a cut must keep: 0 is a copy, 1 is nothing learned. Default: 0.25.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Full effort of a decoder; 0 is ridge regression alone. Embedded model: 24.")
    ] = None,
    attack_budget: Annotated[
        str | None,
        typer.Option(
            help="Time for all decoders, e.g. 5m, instead of --epochs; before them ridge takes up to half as much. Own model: 10m."
        ),
    ] = None,
    numbers: Annotated[str, typer.Option(help="How numbers are sent: fp32, fp16 or int8.")] = "fp32",
    cut: Annotated[list[str] | None, typer.Option(help="Scan this cut alone. Repeatable.")] = None,
    every_cut: Annotated[
        bool, typer.Option("--every-cut", help="Scan also cuts that a neighbour makes pointless.")
    ] = False,
    defense: DefenseOption = None,
    classes: ClassesOption = None,
    resize: ResizeOption = False,
    device: DeviceOption = "cpu",
    out: OutOption = None,
    seed: SeedOption = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the scan in --out where it stopped.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Find where to cut a model between device and cloud: attack the features at every cut, recommend one.

    Without MODEL: the embedded vgg. Four fifths of the data are the adversary's, the others are attacked.
    """
    from leakgauge.cli import scan as console_scan
    from leakgauge.cli.run_folder import refuse_changes

    folder = out or Path("leakgauge-runs/scan")
    if resume:
        refuse_changes(folder, _asked(context, SHOWN), kind="scan")
        raise typer.Exit(console_scan.resumed(folder, quiet=quiet))
    code = console_scan.fresh(
        folder, model=model, data=data, cut=cut or (), every_cut=every_cut, require=require or (), threshold=threshold,
        epochs=epochs, attack_budget=attack_budget, numbers=numbers, defense=defense or (), classes=classes,
        resize=resize, device=device, seed=seed, replace_old=out is None, quiet=quiet,
        command_line=_asked(context, SHOWN),
    )  # fmt: skip
    raise typer.Exit(code)


def _given(context: typer.Context) -> set[str]:
    """Fields of a case that stand on the command line, also where they say what would hold anyway."""
    fields = {"local_steps", "local_lr", "channel", "attack", "reveal", "classes", "resize", "device", "seed"}
    return _on_command_line(context, fields)


def _asked(context: typer.Context, free: set[str]) -> dict[str, str]:
    """What the command line says, but for the options ``free``."""
    given = {name: context.params[name] for name in _on_command_line(context, set(context.params) - free)}
    return {name: ", ".join(map(str, v)) if isinstance(v, list | tuple) else str(v) for name, v in given.items()}


def _on_command_line(context: typer.Context, names: set[str]) -> set[str]:
    sources = {name: context.get_parameter_source(name) for name in names}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Examples: **leakgauge monitor** · **leakgauge monitor --watch** · **leakgauge monitor --every 20 train.py "
    "--epochs 3** (what follows the script is the script's own)",
)
def monitor(
    script: Annotated[
        Path | None,
        typer.Argument(metavar="[SCRIPT]", help="Training script, run as by python. Default: embedded training."),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Arguments of the script.", show_default=False)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Serve a live page to browsers on this machine.")] = False,
    port: Annotated[int, typer.Option(help="Port of the live page; 0 takes any that is free.")] = 8673,
    every: Annotated[int, typer.Option(help="Optimizer steps between two reports and probes.")] = 25,
    view: Annotated[str, typer.Option(help="Which gradient: raw, clipped or released.")] = "released",
    steps: Annotated[int | None, typer.Option(help="Steps of the embedded training. Default: 1500.")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Also the privacy-token paper's measure, with its controls; a minute more.")
    ] = False,
    out: OutOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Measure, while a model trains, what its gradients tell about the batches; live, with controls and an alarm.

    Without SCRIPT a small network is trained on embedded images. A script needs no change: the monitor attaches to the
    first torch optimizer that steps. Reports go to monitor.jsonl as they come, and into report.html at the end.
    """
    from leakgauge.audit import monitor_records
    from leakgauge.cli.monitor import command

    folder = out or Path("leakgauge-runs/monitor")
    code = command.run(
        script, arguments or (), folder=folder, replace_old=out is None, every=every, view=view, steps=steps, paper=paper,
        port=port if watch else None, seed=seed, quiet=quiet,
    )  # fmt: skip
    if code == INTERRUPTED:
        kept = (
            f"what was measured until then lies in {folder}"
            if monitor_records.exists(folder)
            else "nothing was measured"
        )
        complain(f"interrupted; {kept}")
        sys.exit(INTERRUPTED)
    raise typer.Exit(code)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that audit, attack, monitor or scan wrote.")],
    quiet: QuietOption = False,
) -> None:
    """Write the report of a run anew from its records."""
    from leakgauge.cli import attack as console

    path = console.write_report(run)
    if not quiet:
        typer.echo(f"report: {path}")


app.command(epilog="Examples: **leakgauge init** · **leakgauge init --for lightning --out audits/classifier.py**")(init)
app.command(
    epilog="Examples: **leakgauge compare runs/main runs/branch --fail-if-worse** · **leakgauge compare runs/v1 runs/v2 "
    "--out changes.html --markdown changes.md**"
)(compare)
app.command(epilog="Example: **leakgauge inspect received.py:make --data photos/ --batch-size 32**")(inspect)
app.command("list")(list_)


def main() -> None:
    """Runs the command line."""
    run(app)


__all__ = ["app", "main"]

if __name__ == "__main__":
    main()
