"""What the command line shows: progress while cases run, a table of verdicts at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from leakgauge.attacks import ATTACKS
from leakgauge.audit import defense_records, gate, monitor_records, records, scan_records, unscored
from leakgauge.audit.case import REVEALS, Case
from leakgauge.audit.files import write_whole
from leakgauge.audit.findings import read_findings
from leakgauge.audit.parse import option_of
from leakgauge.audit.phrasing import metric
from leakgauge.audit.pictures import FOLDER as PICTURES
from leakgauge.audit.records import Record
from leakgauge.audit.run import run_all
from leakgauge.audit.unscored import attack_captured
from leakgauge.audit.whole import OTHER_THAN_ATTACK
from leakgauge.audit.wording import result, server_of
from leakgauge.channels import CHANNELS
from leakgauge.defenses import DEFENSES
from leakgauge.errors import BadInput
from leakgauge.integrations.captured import captured_observation, captured_victim, with_auxiliary
from leakgauge.integrations.plan_file import named
from leakgauge.integrations.setups import find
from leakgauge.inversion import watching
from leakgauge.models.pretrained import PRETRAINED
from leakgauge.report import page
from leakgauge.servers import SERVERS

ATTACKED = (records.FILE, unscored.FILE, unscored.IMAGES, page.FILE, PICTURES)
"""What an attack writes into its folder."""
RESULTS = (records.FILE, unscored.FILE)
"""By what an attack is known to have been there: that on a captured update has no records."""


@dataclass(frozen=True)
class Gate:
    """What continuous integration asks for: the worst verdict that passes, and files for machines."""

    fail_over: str | None = None
    json: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None

    def __post_init__(self) -> None:
        """Mistakes are told before the first case runs, not after the last."""
        if self.fail_over is not None:
            gate.limit_of(self.fail_over)
        for path in (self.json, self.junit, self.markdown):
            if path is not None and not path.parent.is_dir():
                raise BadInput(f"there is no folder {path.parent} to write {path.name} into")
            if path is not None and path.is_dir():
                raise BadInput(f"{path} is a folder; name the file to write")

    def __call__(self, found: Sequence[Record], *, folder: Path) -> int:
        """Writes the files for machines, with what the run in ``folder`` says of all questions. Returns the exit code."""
        limit = None if self.fail_over is None else gate.limit_of(self.fail_over)
        if self.json or self.junit or self.markdown:
            findings = read_findings(folder)
            if self.json is not None:
                write_whole(self.json, json.dumps(gate.summary(found, limit, findings), indent=1).encode())
            if self.junit is not None:
                write_whole(self.junit, gate.junit(found, limit, findings))
            if self.markdown is not None:
                report = (folder / page.FILE).as_posix()
                write_whole(self.markdown, gate.run_summary(found, findings, limit=limit, report=report).encode())
        return gate.exit_code(found, limit)


def usual_attack(server: str) -> str:
    """The attack of a case that names none: a malicious server's own, or that of any case."""
    made = Case(server=server).build_server()
    return Case.attack if made is None else made.reads


def base_case(
    model: str | None,
    data: str | None,
    local_steps: int,
    local_lr: float,
    channel: str,
    attack: str,
    option: list[str] | None,
    reveal: list[str] | None,
    classes: int | None,
    resize: bool,
    device: str,
    seed: int,
    server: str = "",
) -> Case:
    """The case that the options describe; it is built once, so that a wrong option is refused before anything runs."""
    model, data = named(model, data)
    case = Case(
        model=model,
        data=data,
        local_steps=local_steps,
        local_lr=local_lr,
        channel=channel,
        server=server,
        attack=attack,
        options=dict(option_of(text) for text in option or ()),
        reveal=("size", *(reveal or ())),
        classes=classes,
        resize=resize,
        device=device,
        seed=seed,
    )
    case.build_attack()
    case.build_reveal()
    case.build_channel()
    case.build_server()
    return case


def attack(case: Case, *, folder: Path, quiet: bool, judged_by: Gate) -> int:
    """Runs the case with a progress bar, writes the report, prints the verdict. Returns the exit code."""
    screen = Console(quiet=quiet)
    with _progress(screen) as progress:
        bar = progress.add_task(escape(case.name), total=1.0)

        def on_step(done: int, total: int) -> None:
            if done % 10 == 0:
                progress.update(bar, completed=(1 - OTHER_THAN_ATTACK) * done / total)

        with watching(on_step):
            found = run_all([case], load=find, folder=folder)
    path = page.write(folder)
    screen.print(verdicts(found))
    screen.print(f"report: {path}", soft_wrap=True)
    return judged_by(found, folder=folder)


def run_captured(case: Case, update: Path, weights: Path | None, *, holds: str, folder: Path, quiet: bool) -> int:
    """Attacks a captured update; without the truth there are pictures and the mismatch, but no verdict."""
    victim = captured_victim(case, weights)
    seen = with_auxiliary(captured_observation(victim, update, case, holds=holds), victim, case)
    found = attack_captured(case, victim, seen, folder=folder)
    screen = Console(quiet=quiet)
    screen.print(
        f"taken for granted: {'; '.join(a['what'] for a in found.summary['assumptions'])}", soft_wrap=True, markup=False
    )
    for name, value in (("reconstruction", found.mismatch), ("null run", found.null_mismatch)):
        if value is not None:
            screen.print(
                f"{name}: its update differs from the captured one by {value:.3f} (1 - cosine)", soft_wrap=True
            )
    for asked, answer in found.summary["stated"].items():  # before solving; here it is all that is known of the quality
        screen.print(f"{asked}: {answer}", soft_wrap=True, markup=False)
    screen.print(f"labels: {found.labels}; no verdict, for the true data is not known here", soft_wrap=True)
    screen.print(f"pictures: {folder / found.pictures['reconstruction']}", soft_wrap=True)
    return 0


def write_report(folder: Path) -> Path:
    """Writes the page of a run anew; an attack on a captured update alone has none."""
    on_a_page = (records.FILE, monitor_records.FILE, scan_records.FILE, defense_records.FILE)
    if (folder / unscored.FILE).is_file() and not any((folder / name).is_file() for name in on_a_page):
        raise BadInput(
            f"{folder} holds an attack on a captured update, which cannot be scored and has no report; look at {unscored.FILE} "
            "and the pictures"
        )
    return page.write(folder)


def _progress(screen: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=screen.quiet or not screen.is_terminal,
    )


def verdicts(found: Sequence[Record]) -> Table:
    """The verdicts of cases as a table, each with its PSNR beside that of the null run."""
    table = Table(title=f"What {server_of(found)} could reconstruct")
    for column in ("case", "PSNR", "null", "SSIM", "verdict"):
        table.add_column(column, overflow="fold")
    for record in found:
        name = escape(record.case.name)
        if record.outcome is None or record.scores is None or record.null is None:
            table.add_row(name, "", "", "", escape(result(record)))
            continue
        psnr, null = (metric("psnr", scores.mean("psnr"), unit=True) for scores in (record.scores, record.null))
        ssim = metric("ssim", record.scores.mean("ssim"))
        verdict = f"[{record.outcome.colour}]{record.outcome.label}[/]"
        table.add_row(name, psnr, null, f"{ssim}{_spread(record)}", verdict)
    return table


def _spread(record: Record) -> str:
    found = record.intervals.get("ssim")
    return "" if found is None else f" ({found.n} restarts: {found.low:.3f} to {found.high:.3f})"


def show_registries() -> None:
    """Prints every name that commands accept, with the first line of its description."""
    screen = Console()
    groups = {
        "attacks": ATTACKS,
        "defenses": DEFENSES,
        "channels": CHANNELS,
        "malicious servers": SERVERS,
        "revealed on request": REVEALS,
        "embedded models": PRETRAINED,
    }
    for title, registry in groups.items():
        screen.print(f"[bold]{title}[/]")
        for name, thing in registry.items():
            described = (thing.__doc__ or "").strip().splitlines()
            screen.print(f"  {name:<20} {escape(described[0]) if described else ''}", soft_wrap=True)
