"""What several commands share: arguments and options, how they are written and what their help says; an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="cnn | vit | vgg (embedded), file.py:factory, package:factory, timm:NAME, timm32:NAME or hf:NAME; "
        "or a plan file (audit.py). "
        "attention_first: before it rearranges a vision transformer.",
        show_default=False,
    ),
]
DataOption = Annotated[
    str | None, typer.Option("--data", help="Folder of images, .npz, idx or CIFAR-10 .bin file. Default: embedded.")
]
ModeOption = Annotated[str | None, typer.Option("--mode", help="eval or train: how the client runs the model.")]
SizeOption = Annotated[int | None, typer.Option("--batch-size", help="Private images in one update.")]
LocalOption = Annotated[int, typer.Option("--local-steps", help="Local SGD steps; more than 1 shares a weight update.")]
LocalLrOption = Annotated[float, typer.Option("--local-lr", help="Learning rate of the local steps.")]
ChannelOption = Annotated[
    str,
    typer.Option(
        "--channel",
        help="How the update is made: dpsgd:clip=1,noise=1, aggregate:clients=4, shuffled_fedavg:epochs=2, features:CUT. "
        "Default: gradient, or weight update of several local steps.",
        show_default=False,
    ),
]
DefenseOption = Annotated[
    list[str] | None,
    typer.Option("--defense", help="e.g. gaussian_noise:relative=1, prune:0.9, withhold:head. Repeatable."),
]
AttackOption = Annotated[str, typer.Option("--attack", help="See `leakgauge list`.")]
OptionOption = Annotated[
    list[str] | None, typer.Option("--option", help="Option of the attack, e.g. steps=1000 or restarts=4. Repeatable.")
]
RevealOption = Annotated[
    list[str] | None,
    typer.Option("--reveal", help="Give the adversary labels, buffers, auxiliary:64 or noisy_copy:0.5. Repeatable."),
]
ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        help="A malicious server, which sends another model than the agreed one: imprint:bins=256, trap_weights, fishing:target=3. "
        "Read by its own attack unless --attack names one. Default: honest but curious.",
        show_default=False,
    ),
]
ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain", help="Only try single changes of one set-up (train mode, batch of 4) that flip its verdict."
    ),
]
DEFAULT_BUDGET = "10m"
"""For a user's own model, where nobody knows yet how long a step takes."""
BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget", help=f"Time for the whole audit, e.g. 5m; planned into steps. Own model: {DEFAULT_BUDGET}."
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", help="Answer this question: updates, training, split or defenses. Repeatable."),
]
SkipOption = Annotated[list[str] | None, typer.Option("--skip", help="Leave this question out. Repeatable.")]
TrainingOption = Annotated[
    int | None, typer.Option("--training-steps", help="Steps of every training, instead of what the budget allows.")
]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", help="Full effort of a decoder at a cut, instead of what the budget allows.")
]
ClassesOption = Annotated[
    int | None, typer.Option("--classes", help="Number of classes to build a timm or hf model for.")
]
ResizeOption = Annotated[bool, typer.Option("--resize", help="Resize the data to what the model takes.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Folder of the run. Default: leakgauge-runs/COMMAND.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Fixes every random number of the run.")]
FailOption = Annotated[
    str | None,
    typer.Option("--fail-over", help="Exit with 3 if a verdict is worse than this: infeasible or partial."),
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the verdicts as JSON to this file.")]
JunitOption = Annotated[Path | None, typer.Option("--junit", help="Write the verdicts as JUnit XML to this file.")]
MarkdownOption = Annotated[
    Path | None, typer.Option("--markdown", help="Write a short summary for a pull request to this file.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
