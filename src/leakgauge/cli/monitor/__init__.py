"""``leakgauge monitor``: trains something while the monitor measures, and shows what it finds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console

from leakgauge.cli.options import Recorded, arg, opt
from leakgauge.cli.terminal import shown
from leakgauge.errors import BadInput, LeakgaugeError

if TYPE_CHECKING:
    from leakgauge.audit.questions.training import Recording


@dataclass(frozen=True, kw_only=True)
class MonitorOptions(Recorded):
    PANEL: ClassVar[str] = "Options"
    EXAMPLES: ClassVar[Sequence[str]] = (
        "leakgauge monitor",
        "leakgauge monitor --watch",
        "leakgauge monitor --every 20 train.py --epochs 3",
    )
    INTERSPERSED: ClassVar[bool] = False  # what follows the script is the script's own

    script: Path | None = arg(
        "[SCRIPT]", "Training script, run as python would run it. Default: embedded training.", default=None
    )
    arguments: Sequence[str] = arg("[ARGS]...", "Arguments of the script.", default=())
    every: int = opt(25, "Optimizer steps from one report to the next.")
    view: str = opt("released", "Which gradient to measure: raw, clipped or released.")
    loss: str | None = opt(
        None,
        "Loss of the script, for the white-box probe: cross_entropy, CrossEntropyLoss, file.py:name or package:name. "
        "Default: the loss module that the script calls, or else cross entropy.",
    )
    steps: int | None = opt(None, "Steps of the embedded training. Default: 1500.")
    paper: bool = opt(False, "Also run the privacy-token paper's measure with its controls; takes a minute more.")
    watch: bool = opt(False, "Serve a live page to browsers on this machine.")
    port: int = opt(8673, "Port of the live page; 0 takes any free one.")


def monitor(options: MonitorOptions) -> int:
    """Measure what the gradients reveal about the batches while a model trains; live, with controls and an alarm.

    Without SCRIPT a small network is trained on embedded images. Your script needs no change: the monitor attaches to the
    first torch optimizer that steps. Reports are appended to monitor.jsonl as they come; report.html is written at the end.
    """
    from leakgauge.audit.questions import training as monitor_records
    from leakgauge.audit.questions.training import Recording, Settings, Show
    from leakgauge.cli.monitor import training
    from leakgauge.cli.monitor.live import LivePage, Screen
    from leakgauge.cli.run_folder import claimed
    from leakgauge.monitor import MonitorWarning, View
    from leakgauge.monitor.leakage import VIEWS
    from leakgauge.report import page

    folder, script, every, seed = options.folder, options.script, options.every, options.seed
    if script is not None and (options.steps is not None or options.paper):
        raise BadInput("--steps and --paper belong to the embedded training; a script ends by itself")
    if script is None and options.loss is not None:
        raise BadInput("--loss belongs to a script; the embedded training has its own")
    loss = None if options.loss is None else training.named_loss(options.loss)
    steps = training.STEPS if options.steps is None else options.steps
    if steps < 1:
        raise BadInput(f"--steps must be at least 1, got {steps}")
    if every < 1:
        raise BadInput(f"--every counts optimizer steps between reports, at least 1; got {every}")
    view: View | None = next((known for known in VIEWS if known == options.view), None)
    if view is None:
        raise BadInput(f"--view must be one of {', '.join(VIEWS)}; got {options.view!r}")
    about = {"training": "embedded" if script is None else script.name}
    settings = Settings(every=every, view=view, seed=seed, command=options.command(), about=about)

    def train() -> None:
        if script is not None:
            training.run_script(recording, script, options.arguments, loss=loss)
        else:
            training.train(recording, steps=steps, seed=seed)
            if options.paper:
                training.read_paper(recording, seed=seed)

    screen = Console(quiet=options.quiet)
    with ExitStack() as stack:
        shows: list[Show] = []
        if options.watch:
            live = stack.enter_context(LivePage(options.port))
            shows.append(live.show)
            screen.print(f"live page: {live.address}", soft_wrap=True)
        refusal = "a monitored training; choose another folder with --out"
        files = (monitor_records.FILE, page.FILE)
        stack.enter_context(claimed(folder, files, replace_old=options.out is None, refusal=refusal))
        terminal = stack.enter_context(Screen(screen))
        recording = Recording(folder, settings, shows=(terminal.show, *shows))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", MonitorWarning)  # the notes of every report say the same
        stopped = _train(recording, train)
    if recording.monitor is not None:
        screen.print(recording.text, soft_wrap=True, highlight=False, markup=False)
        screen.print(f"report: {shown(folder / page.FILE)}", soft_wrap=True)
    if stopped:
        kept = monitor_records.exists(folder)
        raise KeyboardInterrupt(f"the measurements so far are in {folder}" if kept else "nothing was measured")
    return 0


def _train(recording: Recording, train: Callable[[], None]) -> bool:
    """Trains. However that ends, what was measured is kept and shown in a report. Returns whether Ctrl-C ended it."""
    from leakgauge.audit.questions import training as monitor_records
    from leakgauge.report import page

    mistake = None
    try:
        train()
        how, why = "finished", ""
    except KeyboardInterrupt:
        how, why = "interrupted", "Ctrl-C"
    except LeakgaugeError as error:
        how, why, mistake = "failed", str(error), error
    try:
        recording.finish(how, why)
    finally:
        if recording.monitor is not None and monitor_records.exists(recording.folder):
            page.write(recording.folder)
    if mistake is not None:
        raise mistake
    return how == "interrupted"
