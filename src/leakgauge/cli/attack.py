"""``leakgauge attack``: one attack on one case, or on an update that a real client sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console

from leakgauge.cli.options import CI, Recorded, Served, Threat, opt
from leakgauge.cli.terminal import shown
from leakgauge.errors import BadInput

if TYPE_CHECKING:
    from leakgauge.audit.case import Case


@dataclass(frozen=True, kw_only=True)
class AttackOptions(Threat, Served, CI, Recorded):
    PANEL: ClassVar[str] = "Captured update"
    EXAMPLES: ClassVar[Sequence[str]] = (
        "leakgauge attack",
        "leakgauge attack vit --option steps=1000 --option restarts=4",
        "leakgauge attack my_model.py:make --data photos/ --attack dlg --defense prune:0.9",
    )

    first: int = opt(0, "Index of the first private image in the data.", panel="Model and data")
    update: Path | None = opt(None, "A captured update (.safetensors or .pt) to attack instead of a simulated one.")
    weights: Path | None = opt(None, "The weights that the server had sent, for --update.")
    update_holds: str = opt("delta", "What --update holds: delta, gradient or weights.")


def attack(options: AttackOptions) -> int:
    """Run one attack on one case and write its record, pictures and report.

    A malicious --server reads the update with its own attack, unless --attack names another.

    With --update: attack what a real client sent, as saved by a federated learning framework. --channel says how the update
    was made; --reveal auxiliary:64 with --data gives the server images of its own.
    """
    from leakgauge.audit import evidence, records
    from leakgauge.audit.files import PICTURES
    from leakgauge.audit.run import CAPTURED, CAPTURED_IMAGES
    from leakgauge.cli.run_folder import claimed
    from leakgauge.integrations.captured import refuse_in_a_file
    from leakgauge.report import page

    case = case_of(options)
    if options.update is None and options.weights is not None:
        raise BadInput("--weights belongs to --update; to load weights into your model, load them in its factory")
    if options.update is not None:
        if options.defense or options.server or options.first or options.judges:
            raise BadInput(
                "--update brings what a client sent; it cannot be combined with --first, --server, --defense or the options for CI"
            )
        refuse_in_a_file(case, data=options.data)
    written = (records.FILE, CAPTURED, CAPTURED_IMAGES, page.FILE, PICTURES, evidence.FILE)
    marks = (records.FILE, CAPTURED)  # an attack on a captured update leaves no records
    refusal = "a run; choose another folder with --out"
    with claimed(options.folder, written, replace_old=options.out is None, refusal=refusal, marks=marks):
        return _attack_update(options, case) if options.update is not None else _attack(options, case)


def case_of(options: AttackOptions) -> Case:
    """The case that the options describe. Unless an attack is named, a malicious server reads the update with its own."""
    from leakgauge.audit.case import Case

    server = Case(server=options.server).build_server()
    if server is not None and "attack" not in options.given:
        options = replace(options, attack=server.reads)
    case = options.case(
        mode=options.mode or "eval",
        batch_size=1 if options.batch_size is None else options.batch_size,
        first=options.first,
        defenses=options.defense,
        server=options.server,
    )
    case.require_fit()
    return case


def _attack(options: AttackOptions, case: Case) -> int:
    from leakgauge.audit.run import run_all
    from leakgauge.audit.session import Session, keep_evidence
    from leakgauge.audit.whole import OTHER_THAN_ATTACK
    from leakgauge.cli.screen import attack_progress, verdict_table
    from leakgauge.integrations.setups import find
    from leakgauge.inversion import watching
    from leakgauge.report import page

    screen = Console(quiet=options.quiet)
    with attack_progress(screen) as progress:
        bar = progress.add_task(shown(case.name), total=1.0)

        def on_step(done: int, total: int) -> None:
            if done % 10 == 0:
                progress.update(bar, completed=(1 - OTHER_THAN_ATTACK) * done / total)

        load = Session(find)
        with watching(on_step):
            found = run_all([case], load=load, folder=options.folder)
        keep_evidence(options.folder, [case], load)
    path = page.write(options.folder)
    screen.print(verdict_table(found))
    screen.print(f"report: {shown(path)}", soft_wrap=True)
    return options.judge(found, folder=options.folder)


def _attack_update(options: AttackOptions, case: Case) -> int:
    """Attacks a captured update. The true images are unknown, so there are pictures and the mismatch, but no verdict."""
    from leakgauge.audit.run import attack_captured
    from leakgauge.integrations.captured import captured_observation, captured_victim, with_auxiliary

    assert options.update is not None
    victim = captured_victim(case, options.weights)
    seen = captured_observation(victim, options.update, case, holds=options.update_holds)
    found = attack_captured(case, victim, with_auxiliary(seen, victim, case), folder=options.folder)
    lines = [f"assumed: {'; '.join(a['what'] for a in found.summary['assumptions'])}"]
    for name, value in (("reconstruction", found.mismatch), ("null run", found.null_mismatch)):
        if value is not None:
            lines.append(f"{name}: its update differs from the captured one by {value:.3f} (1 - cosine)")
    lines += [f"{question}: {answer}" for question, answer in found.summary["stated"].items()]
    lines.append(f"labels: {found.labels}; no verdict, because the true images are unknown")
    lines.append(f"pictures: {options.folder / found.pictures['reconstruction']}")
    screen = Console(quiet=options.quiet)
    for line in lines:
        screen.print(shown(line), soft_wrap=True)
    return 0
