"""What ``leakgauge scan`` does and shows: progress while cuts are attacked, a table by depth, the recommendation."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from leakgauge.audit import scan_records as store
from leakgauge.audit.case import Case, restored
from leakgauge.audit.gate import EXIT_CODE
from leakgauge.audit.scan_conclusion import strongest
from leakgauge.audit.scan_records import DECODER, RIDGE, Conclusion, CutRecord, ScanPlan
from leakgauge.audit.scan_run import EPOCHS, FEATURES, Asked, ScanRun, plan_scan
from leakgauge.audit.step_time import seconds_of
from leakgauge.cli.options import DEFAULT_BUDGET
from leakgauge.cli.run_folder import ASKED, claimed, remember
from leakgauge.integrations.plan_file import named
from leakgauge.integrations.setups import find
from leakgauge.models.pretrained import PRETRAINED
from leakgauge.report import page

SCANNED = (store.PLAN, store.FILE, store.CONCLUSION, page.FILE, FEATURES, ASKED)
"""What a scan writes into its folder, pictures aside."""


def fresh(
    folder: Path,
    *,
    model: str | None,
    data: str | None,
    cut: Sequence[str],
    every_cut: bool,
    require: Sequence[str],
    threshold: float | None,
    epochs: int | None,
    attack_budget: str | None,
    numbers: str,
    defense: Sequence[str],
    classes: int | None,
    resize: bool,
    device: str,
    seed: int,
    replace_old: bool,
    quiet: bool,
    command_line: Mapping[str, str],
) -> int:
    """Plans a scan from options, runs it and shows what it found. Returns the exit code."""
    name, data = named(model, data, default="vgg")
    case = Case(
        model=name,
        data=data,
        defenses=tuple(defense),
        classes=classes,
        resize=resize,
        device=device,
        seed=seed,
    )
    case.build_defenses()
    budget = None if attack_budget is None else seconds_of(attack_budget)
    if epochs is None and budget is None:
        epochs, budget = (EPOCHS, None) if name in PRETRAINED else (None, seconds_of(DEFAULT_BUDGET))
    asked = Asked(
        threshold=threshold,
        epochs=epochs,
        budget=budget,
        require=", ".join(require),
        numbers=numbers,
        names=tuple(cut),
        every=every_cut,
    )
    refusal = "a scan; go on with it by --resume, or choose another folder with --out"
    with claimed(folder, SCANNED, replace_old=replace_old, refusal=refusal):
        setup = find(replace(case, mode="eval"))
        plan = plan_scan(setup, case, asked, folder, command=_command(case, asked))
        remember(folder, command_line)
        return _run(ScanRun(setup, plan, folder), quiet=quiet)


def resumed(folder: Path, *, quiet: bool) -> int:
    """Goes on with the scan in ``folder``; its own plan decides everything."""
    plan = store.read_plan(folder)
    return _run(ScanRun(find(restored(dict(plan.case))), plan, folder), quiet=quiet)


def _run(run: ScanRun, *, quiet: bool) -> int:
    screen = Console(quiet=quiet)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=screen.quiet or not screen.is_terminal,
    ) as progress:
        bar = progress.add_task("ridge", total=len(run.names), completed=sum(k[1] == RIDGE for k in run.known))

        def on_record(record: CutRecord) -> None:
            progress.update(bar, total=len(run.names), advance=record.attack == RIDGE, description=escape(record.said))
            if progress.disable:
                screen.print(escape(record.said), soft_wrap=True, highlight=False)

        run.on_record = on_record
        found = run()
    path = page.write(run.folder)
    screen.print(_table(run.plan, list(run.known.values()), found))
    screen.print(escape(found.sentence), soft_wrap=True, highlight=False)
    for note in found.notes:
        screen.print(f"- {escape(note)}", soft_wrap=True, highlight=False)
    screen.print(f"report: {path}", soft_wrap=True)
    return EXIT_CODE if run.plan.require and not found.met else 0


def _table(plan: ScanPlan, records: Sequence[CutRecord], found: Conclusion) -> Table:
    table = Table(
        title="What the cloud could reconstruct at each cut",
        caption=f"FVU: 0 is a copy, 1 is nothing learned; bytes as {plan.numbers}, * more than the raw image; edge: share of parameters",
    )
    table.add_column("cut", overflow="fold")
    for column in ("bytes", "MFLOPs", "edge", "ridge FVU", "decoder FVU", "re-id", "accuracy"):
        table.add_column(column, justify="right")
    for cut in plan.cuts:
        name = str(cut["name"])
        ridge = next((r for r in records if (r.cut, r.attack) == (name, RIDGE)), None)
        decoded = [r for r in records if (r.cut, r.attack) == (name, DECODER)]
        risk = ridge.risk if ridge is not None else {}
        if risk.get("refusal"):
            table.add_row(escape(name), *[""] * 3, "refused", *[""] * 3)
            continue
        larger = "*" if cut["bytes"] > plan.raw_bytes else ""
        table.add_row(
            escape(name),
            f"{cut['bytes']}{larger}",
            f"{cut['edge_flops'] / 1e6:.2f}",
            f"{cut['edge_share']:.0%}",
            "" if ridge is None else f"{ridge.fvu:.3f}",
            f"{strongest(decoded, name):.3f}" if decoded else "",
            f"{risk.get('reidentified', 0):.0%}",
            "" if risk.get("accuracy") is None else f"{risk['accuracy']:.3f}",
            style="bold green" if name == found.recommended else None,
        )
    return table


def _command(case: Case, asked: Asked) -> str:
    """The command line that runs this scan again."""
    words = ["leakgauge", "scan", case.model, "--seed", str(case.seed), *case.options_of_setup()]
    words += [] if asked.threshold is None else ["--threshold", f"{asked.threshold:g}"]
    words += [] if asked.epochs is None else ["--epochs", str(asked.epochs)]
    words += [] if asked.budget is None else ["--attack-budget", f"{asked.budget:g}s"]
    words += [] if not asked.require else ["--require", asked.require]
    words += [] if asked.numbers == Asked.numbers else ["--numbers", asked.numbers]
    words += ["--every-cut"] if asked.every else []
    for name in asked.names:
        words += ["--cut", name]
    for spec in case.defenses:
        words += ["--defense", spec]
    return shlex.join(words)


__all__ = ["fresh", "resumed"]
