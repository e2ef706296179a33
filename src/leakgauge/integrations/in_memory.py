"""Audits from Python: a module and its data as they are in memory, and the run that comes out."""

from __future__ import annotations

import html
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from torch import nn
from torch.utils.data import DataLoader, Dataset

from leakgauge.audit import records, whole
from leakgauge.audit.advice import Advice, advise, to_do_as_text
from leakgauge.audit.case import Case
from leakgauge.audit.files import sole_writer, write_whole
from leakgauge.audit.findings import Findings, read_findings
from leakgauge.audit.questions import QUESTIONS, USUAL, Question
from leakgauge.audit.records import Record
from leakgauge.audit.request import Effort, ask
from leakgauge.audit.session import Session, Setup, check_fits
from leakgauge.audit.timing import seconds_of
from leakgauge.audit.wording import statements
from leakgauge.core import Mode, Pixels, Series, Victim
from leakgauge.data.arrays import TargetKind, from_arrays, load_npz
from leakgauge.data.fit import Shape
from leakgauge.data.levels import Given, levels_of
from leakgauge.errors import BadInput, MissingExtra
from leakgauge.errors.checked import checked
from leakgauge.integrations.datasets import as_array, collect
from leakgauge.integrations.setups import data_of, set_up_given, set_up_series, targets_of
from leakgauge.report import page

Arrays = tuple[Any, Any]
"""Images and labels, as tensors, arrays or lists."""
Data = Arrays | Dataset[Any] | DataLoader[Any] | str | Path
IN_MEMORY = "in memory"
METRICS = ("ssim", "psnr", "lpips", "labels")
HEIGHT = 800
"""Of a report in a notebook, in pixels."""


@checked
@dataclass(frozen=True)
class Run:
    """The folder of a run, read when something of it is asked for. Any folder of ``leakgauge audit`` or ``attack`` will do."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))

    @cached_property
    def records(self) -> list[Record]:
        """One for each attacked set-up."""
        return records.latest(records.read(self.folder)) if records.exists(self.folder) else []

    @cached_property
    def findings(self) -> Findings:
        """What the run says on each question, as data."""
        return read_findings(self.folder)

    @property
    def advice(self) -> tuple[Advice, ...]:
        """What to do, most important first."""
        return advise(self.findings)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each set-up: what it was, how it ended and how well the attack did beside its null run."""
        return [_row(record) for record in self.records]

    def frame(self) -> Any:
        """:meth:`rows` as a pandas ``DataFrame``."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingExtra("pandas", "pandas") from error
        return pandas.DataFrame(self.rows())

    def report(self, path: str | Path | None = None) -> Path:
        """Writes the page into the run folder, or to ``path``. It holds the private originals."""
        made = page.write(self.folder)
        if path is None:
            return made
        write_whole(Path(path), made.read_bytes())
        return Path(path)

    def show(self) -> Shown:
        """The page, for the last line of a notebook's cell."""
        return Shown(self.report().read_text(encoding="utf-8"))

    def __str__(self) -> str:
        said = [f"{one.asked} {one.badge}. {one.text}" for one in statements(self.findings)]
        return "\n".join([*said, "", to_do_as_text(self.findings)])

    def _repr_html_(self) -> str:
        return f"<pre style='white-space: pre-wrap'>{html.escape(str(self))}</pre>"


@dataclass(frozen=True)
class Shown:
    """A page that a notebook shows in a frame of its own."""

    page: str

    def __repr__(self) -> str:
        return f"Shown(<{len(self.page)} characters of HTML>)"

    def _repr_html_(self) -> str:
        return f"<iframe srcdoc='{html.escape(self.page)}' style='width: 100%; height: {HEIGHT}px; border: 0'></iframe>"


@checked
def run_audit(
    model: nn.Module | Victim,
    data: Data,
    *,
    questions: Sequence[Question] = USUAL,
    budget: str | None = "10m",
    out: str | Path | None = None,
    overwrite: bool = False,
    seed: int = 0,
    name: str = "",
    mode: Mode | None = None,
    batch_size: int | None = None,
    defenses: Sequence[str] = (),
    attack: str = Case.attack,
    options: Mapping[str, Any] | None = None,
    channel: str = "",
    local_steps: int = Case.local_steps,
    local_lr: float = Case.local_lr,
    local_epochs: int = Case.local_epochs,
    optimizer: str = Case.optimizer,
    reveal: Sequence[str] = (),
    changes: bool = True,
    training_steps: int | None = None,
    epochs: int | None = None,
    resize: bool = False,
    window: str = "",
    watcher: whole.Watcher | None = None,
) -> Run:
    """Audits a model in memory, as ``leakgauge audit`` does one in a file. The model and the data are left as they are.

    A module gets images as they are. Give a ``Victim`` where it takes normalised ones (``Pixels(shape, mean, std)``) or has a loss of its
    own; the victim's mode does not count, since both are tried unless ``mode`` says otherwise. ``data`` is (images, labels) with
    images in [0, 1] or bytes, a ``Dataset`` or ``DataLoader`` of such pairs, or a path. The first images are the private ones.
    ``window`` ("0:4095") names the values of black and white where they are others.
    ``attack``, ``channel``, ``defenses`` and ``reveal`` are written as on the command line, ``options`` go to the attack. A client takes
    ``local_steps`` steps, each on the next ``batch_size`` images, in ``local_epochs`` passes, by the ``optimizer`` with the rate
    ``local_lr``.
    ``changes``: also single changes of one set-up, to see which flip its verdict. The ``budget`` decides the steps of each
    question, unless ``options["steps"]``, ``training_steps`` and ``epochs`` do. Without ``out`` the run folder is a temporary
    one; ``overwrite`` replaces the run that a folder holds.
    """
    began = time.perf_counter()
    if not questions:
        raise BadInput(f"questions are one or more of {', '.join(QUESTIONS)}; got none")
    setup = hold(model, data, resize=resize, window=window, name=name)
    base = Case(
        model=setup.victim.name,
        data=str(data) if isinstance(data, str | Path) else IN_MEMORY,
        attack=attack,
        options=dict(options or {}),
        channel=channel,
        local_steps=local_steps,
        local_lr=local_lr,
        local_epochs=local_epochs,
        optimizer=optimizer,
        reveal=("size", *reveal),
        seed=seed,
        resize=resize,
        window=window,
        device=str(setup.victim.device),
        in_memory=True,
    )
    for build in (base.build_attack, base.build_channel, base.build_reveal):
        build()
    wanted: tuple[Question, ...] = tuple(question for question in QUESTIONS if question in questions)
    effort = Effort(base.options.get("steps"), training_steps, epochs)
    if budget is None and effort.leaves_open(wanted):
        raise BadInput("give a budget such as '10m', or options={'steps': …}, training_steps and epochs")
    load = Session(Held(setup))
    request = ask(
        base,
        load=load,
        questions=wanted,
        mode=mode,
        batch_size=batch_size,
        defenses=defenses,
        changes=changes,
        effort=effort,
        budget=seconds_of(budget) if budget is not None and effort.leaves_open(wanted) else None,
    )
    folder = Path(tempfile.mkdtemp(prefix="leakgauge-") if out is None else out)
    with sole_writer(folder):
        if not overwrite:
            whole.refuse_second(folder)
        ready, _ = whole.conduct(request, folder=folder, load=load, began=began, watcher=watcher)
        whole.explained(folder, ready)
        run = Run(folder)
        run.report()
    return run


@dataclass(frozen=True)
class Held:
    """A ``Load`` of what is in memory."""

    setup: Setup

    def __call__(self, case: Case) -> Setup:
        return self.setup

    def __reduce__(self) -> NoReturn:
        raise BadInput(
            "a model in memory cannot be sent to other processes; write it as file.py:factory, or run in this one"
        )


def hold(model: nn.Module | Victim, data: Data, *, resize: bool = False, window: str = "", name: str = "") -> Setup:
    """The set-up of a model and data in memory. The model is copied; what does not fit together is refused."""
    if isinstance(model, Victim) and not isinstance(model.space, Pixels | Series):
        raise BadInput(f"an audit is about images or series, but the victim takes {model.space!r}")
    if isinstance(model, Victim) and isinstance(model.space, Series):
        setup = set_up_series(replace(model, name=name or model.name), *_arrays(data))
        check_fits(setup)
        return setup
    shape = model.space.shape if isinstance(model, Victim) else None
    targets = targets_of(model.loss) if isinstance(model, Victim) else "cross_entropy"
    given = _read(data, shape=shape, resize=resize, window=window, targets=targets)
    victim = model if isinstance(model, Victim) else Victim(model, Pixels(tuple(given.images.shape[1:])))
    victim = replace(victim, name=name) if name else victim
    setup = set_up_given(victim, given)
    check_fits(setup)
    return setup


def _arrays(data: Data) -> tuple[np.ndarray, np.ndarray, str]:
    """Images or series, their targets, and where they come from."""
    if isinstance(data, str | Path):
        return *load_npz(Path(data)), str(data)
    if isinstance(data, Dataset | DataLoader):
        return *collect(data), f"the {type(data).__name__}"
    if len(data) != 2:
        raise BadInput(f"data in memory is (images, labels) or (series, labels), got {len(data)} things")
    return as_array(data[0], "data"), as_array(data[1], "data"), "data"


def _read(data: Data, *, shape: Shape | None, resize: bool, window: str, targets: TargetKind) -> Given:
    if isinstance(data, str | Path):
        return data_of(Case(data=str(data), resize=resize, window=window), shape, targets=targets)
    x, y, source = _arrays(data)
    images, labels = from_arrays(x, y, source=source, shape=shape, resize=resize, window=window, targets=targets)
    return Given(images, labels, levels_of(window))


def _row(record: Record) -> dict[str, Any]:
    case, verdict = record.case, record.verdict
    scores = {"": record.scores, "_null": record.null, "_baseline": record.baseline}
    return {
        "model": case.model,
        "mode": case.mode,
        "batch_size": case.batch_size,
        "images": case.images,
        "local_steps": 1 if record.local is None else record.local.steps,
        "local_epochs": 1 if record.local is None else record.local.epochs,
        "local_lr": None if record.local is None else record.local.lr,
        "optimizer": None if record.local is None else record.local.optimizer,
        "channel": case.channel,
        "server": case.server,
        "attack": case.attack,
        "defenses": " + ".join(case.defenses),
        "reveal": ", ".join(case.reveal),
        "change": None if case.change is None else case.change.name,
        "status": record.status,
        "reason": record.reason,
        "outcome": None if verdict is None else verdict.outcome.value,
        "kind": None if verdict is None else verdict.kind,
        "reconstructed": None if verdict is None else verdict.reconstructed,
        **{f"{m}{side}": None if s is None else s.mean(m) for m in METRICS for side, s in scores.items()},
        **{f"option_{option}": value for option, value in asdict(case)["options"].items()},
        "seconds": record.seconds,
        "key": record.key,
    }
