"""What ``leakgauge monitor`` does, from the first check to the exit code."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from leakgauge.audit import monitor_records
from leakgauge.audit.recording import Recording, Settings, Show
from leakgauge.cli.monitor import embedded, script
from leakgauge.cli.monitor.screen import Screen
from leakgauge.cli.monitor.server import LivePage
from leakgauge.cli.options import INTERRUPTED
from leakgauge.cli.run_folder import claimed
from leakgauge.errors import BadInput, LeakgaugeError
from leakgauge.monitor import MonitorWarning, View
from leakgauge.monitor.leakage import VIEWS
from leakgauge.report import page

WRITTEN = (monitor_records.FILE, page.FILE)
"""What a monitored training writes into its folder."""


def run(
    training: Path | None,
    arguments: Sequence[str],
    *,
    folder: Path,
    replace_old: bool,
    every: int,
    view: str,
    steps: int | None,
    paper: bool,
    port: int | None,
    seed: int,
    quiet: bool,
) -> int:
    """Trains under the monitor, writes the report and returns the exit code. ``port`` is None without a live page."""
    if training is not None and (steps is not None or paper):
        raise BadInput("--steps and --paper belong to the embedded training; a script ends by itself")
    count = embedded.STEPS if steps is None else steps
    if count < 1:
        raise BadInput(f"--steps must be at least 1, got {count}")
    if every < 1:
        raise BadInput(f"--every counts optimizer steps between reports, at least 1; got {every}")
    chosen: View | None = next((known for known in VIEWS if known == view), None)
    if chosen is None:
        raise BadInput(f"--view must be one of {', '.join(VIEWS)}; got {view!r}")
    if training is not None and not training.is_file():
        raise BadInput(f"there is no file {training}; give a training script, or nothing for the embedded training")
    screen = Console(quiet=quiet)
    said = ["leakgauge", "monitor", "--every", str(every), "--view", chosen, "--seed", str(seed)]
    said += ["--steps", str(count), *["--paper"] * paper] if training is None else [str(training), *arguments]
    settings = Settings(
        every=every,
        view=chosen,
        seed=seed,
        command=shlex.join(said),
        about={"training": "embedded" if training is None else training.name},
    )
    with ExitStack() as stack:
        shows: list[Show] = []
        if port is not None:
            shown = stack.enter_context(LivePage(port))
            shows.append(shown.show)
            screen.print(f"live page: {shown.address}", soft_wrap=True)
        refusal = "a monitored training; choose another folder with --out"
        stack.enter_context(claimed(folder, WRITTEN, replace_old=replace_old, refusal=refusal))
        live = stack.enter_context(Screen(screen))
        recording = Recording(folder, settings, shows=(live.show, *shows))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", MonitorWarning)  # what they say stands among the notes of every report
        if training is None:
            code = _end(recording, lambda: _embedded(recording, steps=count, paper=paper, seed=seed))
        else:
            code = _end(recording, lambda: script.run(recording, training, arguments))
    if recording.monitor is not None:
        screen.print(recording.text, soft_wrap=True, highlight=False, markup=False)
        screen.print(f"report: {folder / page.FILE}", soft_wrap=True)
    return code


def _embedded(recording: Recording, *, steps: int, paper: bool, seed: int) -> None:
    embedded.train(recording, steps=steps, seed=seed)
    if paper:
        embedded.read_paper(recording, seed=seed)


def _end(recording: Recording, train: Callable[[], None]) -> int:
    """Trains; however that ends, what was measured is kept and shown in a report."""
    code, mistake = 0, None
    try:
        train()
        how, why = "finished", ""
    except KeyboardInterrupt:
        how, why, code = "interrupted", "Ctrl-C", INTERRUPTED
    except LeakgaugeError as error:
        how, why, mistake = "failed", str(error), error
    recording.finish(how, why)
    if recording.monitor is not None:
        page.write(recording.folder)
    if mistake is not None:
        raise mistake
    return code
