"""``leakgauge scan``: attacks the features at every cut of a model and recommends one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from leakgauge.cli.options import ASKED, DEFAULT_BUDGET, Defended, ModelAndData, Resumable, opt
from leakgauge.cli.terminal import shown
from leakgauge.errors import BadInput, Inapplicable

if TYPE_CHECKING:
    from leakgauge.audit.questions.split import ScanRun
    from leakgauge.audit.questions.split_records import Conclusion, CutRecord, ScanPlan
    from leakgauge.core import Victim


@dataclass(frozen=True, kw_only=True)
class ScanOptions(ModelAndData, Defended, Resumable):
    PANEL: ClassVar[str] = "Cuts"
    EXAMPLES: ClassVar[Sequence[str]] = (
        "leakgauge scan",
        "leakgauge scan my_model.py:make --data photos/ --require 'fvu>=0.5' --require 'bytes<=64KiB' --require 'flops<=1G'",
        "leakgauge scan --resume --out leakgauge-runs/scan",
        "leakgauge scan timm:resnet18 --weights resnet18.safetensors --size 128 --data photos/ --resize --export halves/",
    )

    cut: Sequence[str] = opt((), "Scan only this cut. Repeatable.")
    every_cut: bool = opt(False, "Also scan cuts that are never better than a neighbour.")
    require: Sequence[str] = opt(
        (), "fvu>=0.5, bytes<=64KiB, flops<=1G or share<=10%. Repeatable. Exit with 3 if no cut meets all of them."
    )
    threshold: float | None = opt(
        None, "FVU that a safe cut keeps: 0 is a perfect copy, 1 is nothing learned. Default: 0.25."
    )
    export: Path | None = opt(
        None,
        "Write the two halves of the model into this folder, as .pt2 and ONNX: at the recommended cut, or at --cut if one is named. "
        "Needs the extra split.",
    )
    numbers: str = opt("fp32", "How numbers are sent: fp32, fp16 or int8.")
    epochs: int | None = opt(
        None,
        "Epochs of the longest decoder training; 0 trains none. Default for the embedded models: 24.",
        panel="Effort",
    )
    attack_budget: str | None = opt(
        None,
        "Time for all decoders, such as 5m, instead of --epochs; regression takes up to half as much before them. "
        f"Default for your model: {DEFAULT_BUDGET}.",
        panel="Effort",
    )


def scan(options: ScanOptions) -> int:
    """Find where to cut a model between device and cloud: attack the features at every cut, then recommend one.

    Without MODEL: the embedded vgg. For a language model (hf:, with sentences as --data) it says which tokens of a prompt leak after each
    block. The adversary learns from four fifths of the data; the rest is attacked.
    """
    from leakgauge.audit import evidence
    from leakgauge.audit.questions import split_records as store
    from leakgauge.audit.questions.split import EPOCHS, FEATURES, Asked, ScanRun, plan_scan
    from leakgauge.audit.session import Session, keep_evidence
    from leakgauge.audit.timing import seconds_of
    from leakgauge.cli.run_folder import claimed, held, refuse_changes, refuse_unnamed_code, remember
    from leakgauge.cli.scan_text import FILE as PROMPTS
    from leakgauge.cli.scan_text import scan_text
    from leakgauge.core import Tokens
    from leakgauge.integrations.setups import find
    from leakgauge.models.pretrained import PRETRAINED
    from leakgauge.report import page

    folder = options.folder
    if options.export is not None:
        refuse_export(options.export)
    if options.resume:
        with held(folder):
            refuse_changes(folder, options.asked(), kind="scan")
            plan = store.read_plan(folder)
            refuse_unnamed_code(folder, [plan.case], model=options.model, data=options.data, command="scan")
            case, load = plan.case, Session(find)
            keep_evidence(folder, [case], load)
            return _run(ScanRun(load(case), plan, folder), options)
    case = options.case(default="vgg", defenses=options.defense)
    case.build_defenses()
    epochs, budget = options.epochs, options.attack_budget
    if epochs is None and budget is None:
        epochs, budget = (EPOCHS, None) if case.model in PRETRAINED else (None, DEFAULT_BUDGET)
    asked = Asked(
        threshold=options.threshold,
        epochs=epochs,
        budget=None if budget is None else seconds_of(budget),
        require=", ".join(options.require),
        numbers=options.numbers,
        names=tuple(options.cut),
        every=options.every_cut,
    )
    command = replace(options, model=case.model, epochs=epochs, attack_budget=budget).command()
    files = (PROMPTS, store.PLAN, store.FILE, store.CONCLUSION, page.FILE, FEATURES, ASKED, evidence.FILE)
    refusal = "a scan; resume it with --resume, or choose another folder with --out"
    with claimed(folder, files, replace_old=options.out is None, refusal=refusal, marks=(store.PLAN, PROMPTS)):
        load = Session(find)
        setup = load(replace(case, mode="eval"))
        if isinstance(setup.victim.space, Tokens):
            return scan_text(options, setup)
        plan = plan_scan(setup, case, asked, folder, command=command)
        remember(folder, options.asked())
        keep_evidence(folder, [case], load)
        return _run(ScanRun(setup, plan, folder), options)


def refuse_export(folder: Path) -> None:
    """Refuses halves that could not be written in the end, before anything runs."""
    from leakgauge.split.export import FORMATS, require_packages

    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a folder for the halves")
    require_packages(FORMATS)


def _run(run: ScanRun, options: ScanOptions) -> int:
    from leakgauge.audit.findings import Split, split_of
    from leakgauge.audit.gate import EXIT_CODE
    from leakgauge.audit.questions.split_records import RIDGE
    from leakgauge.audit.wording import on_split, split_notes
    from leakgauge.report import page

    screen = Console(quiet=options.quiet)
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
            progress.update(bar, total=len(run.names), advance=record.attack == RIDGE, description=shown(record.said))
            if progress.disable:
                screen.print(shown(record.said), soft_wrap=True, highlight=False)

        run.on_record = on_record
        found = run()
    path = page.write(run.folder)
    screen.print(_table(run.plan, list(run.known.values()), found))
    known = split_of(run.plan, list(run.known.values()), found)
    if isinstance(known, Split):
        statement = on_split(known)
        screen.print(shown(f"{statement.badge}: {statement.text}"), soft_wrap=True, highlight=False)
        for kind, what in (*statement.assumptions, ("budget", statement.budget)):
            screen.print(shown(f"{kind}: {what}"), soft_wrap=True, highlight=False)
        for note in split_notes(known):
            screen.print(f"- {shown(note)}", soft_wrap=True, highlight=False)
    screen.print(f"report: {shown(path)}", soft_wrap=True)
    if options.export is not None:
        cut = run.names[0] if run.plan.named and len(run.names) == 1 else found.recommended
        screen.print(exported(run.setup.victim, cut, options.export), soft_wrap=True, highlight=False)
    return EXIT_CODE if run.plan.require and not found.met else 0


def exported(victim: Victim, cut: str | None, folder: Path) -> str:
    """Writes the halves at the cut and says so."""
    from leakgauge.split.export import export_halves

    if cut is None:
        raise BadInput(
            "no cut is recommended, so no halves were written; to write a cut all the same, name it alone with --cut"
        )
    try:
        written = export_halves(victim, cut, folder)
    except Inapplicable as refusal:
        raise BadInput(f"the halves were not written: {refusal}") from refusal
    off = ", ".join(f"{kind} {error:.0e}" for kind, error in written.errors.items())
    return shown(f"halves at {written.cut}: {folder} (together they are the model, up to {off} of its largest output)")


def _table(plan: ScanPlan, records: Sequence[CutRecord], found: Conclusion) -> Table:
    from leakgauge.audit.phrasing import number
    from leakgauge.audit.questions.split_records import DECODER, LEAST_SQUARES, RIDGE, strongest

    table = Table(
        title="What the cloud could reconstruct at each cut",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # ten columns and the names of cuts fit into 80 characters
        pad_edge=False,
        caption="regr., lst.sq., dec.: FVU of regression, least squares and decoder (0 is a perfect copy, 1 is nothing learned); "
        f"bytes as {plan.numbers}, * more than the raw image; edge: share of parameters on the device; "
        "attr.: AUC of a probe for images brighter than the median of their class",
    )
    table.add_column("cut", overflow="fold")
    for column in ("bytes", "MFLOP", "edge", "regr.", "lst.sq.", "dec.", "re-id", "acc.", "attr."):
        table.add_column(column, justify="right", no_wrap=True)
    for cut in plan.cuts:
        name = str(cut["name"])
        ridge = next((r for r in records if (r.cut, r.attack) == (name, RIDGE)), None)
        computed, decoded = (strongest(records, name, attack) for attack in (LEAST_SQUARES, DECODER))
        named = [r.reidentified for r in records if r.cut == name and r.reidentified == r.reidentified]  # NaN is not
        risk = ridge.risk if ridge is not None else {}
        if risk.get("refusal"):
            table.add_row(shown(name), *[""] * 3, "refused", *[""] * 5)
            continue
        larger = "*" if cut["bytes"] > plan.raw_bytes else ""
        table.add_row(
            shown(name),
            f"{cut['bytes']}{larger}",
            number(cut["edge_flops"] / 1e6, 2),
            f"{cut['edge_share']:.0%}",
            *(number(None if one is None else one.fvu, 3, missing="") for one in (ridge, computed, decoded)),
            f"{max(named, default=0):.0%}",
            number(risk.get("accuracy"), 3, missing=""),
            number(risk.get("attribute_auc"), 2, missing=""),
            style="bold green" if name == found.recommended else None,
        )
    return table
