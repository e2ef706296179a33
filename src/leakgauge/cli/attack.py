"""``leakgauge attack``: one attack on one case, or on an update that a real client sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
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
    directions: bool = opt(False, "Also measure which directions of the images what is shared determines.", panel="Run")
    update: Path | None = opt(None, "A captured update (.safetensors or .pt) to attack instead of a simulated one.")
    update_holds: str = opt("delta", "What --update holds: delta, gradient or weights.")
    truth: Path | None = opt(
        None, "The private batch behind --update (.npz with images and labels), to be compared with what was found."
    )


def attack(options: AttackOptions) -> int:
    """Run one attack on one case and write its record, pictures and report.

    A malicious --server reads the update with its own attack, unless --attack names another. Of a plan file with cases() the
    first is run; options given here override it.

    With --update: attack what a real client sent, as saved by a federated learning framework. --weights are those that the server
    had sent. --channel says how the update was made; --reveal auxiliary:64 with --data gives the server images of its own. A client
    that holds the private batch gives it with --truth and gets a verdict.
    """
    from leakgauge.audit import evidence, records
    from leakgauge.audit.files import PICTURES
    from leakgauge.audit.run import CAPTURED_IMAGES
    from leakgauge.cli.run_folder import claimed
    from leakgauge.integrations.captured import refuse_in_a_file
    from leakgauge.report import page

    options = as_captured(options)
    options.promise()
    case, of_plan = case_of(options)
    if options.update is not None:
        if options.defense or options.server or options.first or options.directions:
            raise BadInput(
                "--update brings what a client sent; it cannot be combined with --first, --server, --defense or --directions"
            )
        if options.judges and options.truth is None:
            raise BadInput(
                "the options for CI need a verdict, and --update has one only with the private batch; add --truth"
            )
        refuse_in_a_file(case, data=options.data)
    written = (records.FILE, CAPTURED_IMAGES, page.FILE, PICTURES, evidence.FILE)
    refusal = "a run; choose another folder with --out"
    with claimed(options.folder, written, replace_old=options.out is None, refusal=refusal):
        if options.update is not None:
            return _attack_update(options, case)
        if of_plan:
            Console(quiet=options.quiet).print(shown(of_plan), soft_wrap=True, highlight=False)
        return _attack(options, case)


def as_captured(options: AttackOptions) -> AttackOptions:
    """The options with what the file of the update says of its client, where the command line says nothing."""
    from leakgauge.integrations.captured_file import read_about

    if options.update is None:
        if options.truth is not None:
            raise BadInput("--truth belongs to --update; a simulated client has the truth in --data")
        return options
    said = read_about(options.update).known()
    if not said:
        return options
    steps = options.local_steps if "local_steps" in options.given else said.get("local_steps")
    for name in ("batch_size", "local_steps", *(("local_lr",) if steps != 1 else ())):
        if name not in said and name not in options.given:
            flag = name.replace("_", "-")
            raise BadInput(f"{options.update} does not say the client's {flag.replace('-', ' ')}; give --{flag}")
    return replace(options, **{name: value for name, value in said.items() if name not in options.given})


def case_of(options: AttackOptions) -> tuple[Case, str]:
    """The case that the options describe, and a sentence where a plan file describes it first.

    Unless an attack is named, a malicious server reads the update with its own. All cases of a plan file are checked, so a mistake
    in a later one is found here and not in the audit.
    """
    from leakgauge.audit.case import Case
    from leakgauge.integrations import plan_file

    server, given = Case(server=options.server).build_server(), options.given & {one.name for one in fields(Case)}
    if server is not None and "attack" not in options.given:
        options, given = replace(options, attack=server.reads), given | {"attack"}
    case = options.case(
        mode=options.mode or "eval",
        batch_size=1 if options.batch_size is None else options.batch_size,
        first=options.first,
        defenses=options.defense,
        server=options.server,
    )
    if options.update is None and options.model is not None and plan_file.is_plan(options.model):
        plan = plan_file.read(options.model, seed=options.seed)
        if plan.cases is not None:
            cases = plan_file.settled(plan, case, given=given, mode=options.mode, batch_size=options.batch_size)
            for one in cases:
                one.require_fit()
            case = replace(cases[0], defenses=options.defense, name="") if options.defense else cases[0]
            return case, f"case 1 of {len(plan.cases)} in {plan.path}: {case.name}"
    case.require_fit()
    return case, ""


@contextmanager
def shown_progress(screen: Console, name: str) -> Iterator[None]:
    """A bar for the steps of the attack that runs inside, on a terminal only."""
    from leakgauge.audit.whole import OTHER_THAN_ATTACK
    from leakgauge.cli.screen import attack_progress
    from leakgauge.inversion import watching

    with attack_progress(screen) as progress:
        bar = progress.add_task(shown(name), total=1.0)

        def on_step(done: int, total: int) -> None:
            if done % 10 == 0:
                progress.update(bar, completed=(1 - OTHER_THAN_ATTACK) * done / total)

        with watching(on_step):
            yield


def _attack(options: AttackOptions, case: Case) -> int:
    from leakgauge.audit.run import run_all
    from leakgauge.audit.session import Session, keep_evidence
    from leakgauge.audit.wording import certificates, identifiable, labels_of
    from leakgauge.audit.wording.bracket import brackets
    from leakgauge.cli.screen import verdict_table
    from leakgauge.integrations.setups import find
    from leakgauge.report import page

    screen, load = Console(quiet=options.quiet), Session(find)
    with shown_progress(screen, case.name):
        found = run_all([case], load=load, folder=options.folder, directions=options.directions or None)
        keep_evidence(options.folder, [case], load)
    path = page.write(options.folder)
    screen.print(verdict_table(found))
    for said in filter(
        None, (*map(labels_of, found), *map(certificates, found), *map(identifiable, found), *brackets(found))
    ):
        screen.print(said, soft_wrap=True)
    screen.print(f"report: {shown(path)}", soft_wrap=True)
    return options.judge(found, folder=options.folder)


def _attack_update(options: AttackOptions, case: Case) -> int:
    """Attacks a captured update; without the truth there are pictures, the mismatch, and a verdict only where images are certified."""
    from leakgauge.audit.wording import captured_warnings, case_sentence, certificates, explained
    from leakgauge.cli.screen import verdict_table
    from leakgauge.integrations.captured import attack_file
    from leakgauge.report import page

    assert options.update is not None
    screen = Console(quiet=options.quiet)
    with shown_progress(screen, str(options.update)):
        found = attack_file(
            case,
            options.update,
            folder=options.folder,
            weights=options.weights,
            holds=options.update_holds,
            truth=options.truth,
            named="attack" in options.given,
        )
    path = page.write(options.folder)
    lines = [f"attack: {found.case.attack}; assumed: {'; '.join(a.what for a in found.assumptions) or 'nothing'}"]
    lines += [f"{name}: {value}" for name, value in (*found.stated, *explained(found))]
    if found.outcome is not None or found.status != "done":
        screen.print(verdict_table([found]))
    else:
        lines.append(case_sentence(found))
    lines += [*filter(None, (certificates(found),)), *captured_warnings(found), f"report: {path}"]
    for line in lines:
        screen.print(shown(line), soft_wrap=True)
    return options.judge([found], folder=options.folder)
