"""What an audit is asked: which questions about which set-ups, with which effort or in which time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from leakgauge.audit.case import Case
from leakgauge.audit.questions import Question
from leakgauge.audit.questions.updates import dishonest, ladder, pointless
from leakgauge.audit.session import Load, check_runs, modes_differ
from leakgauge.core import Pixels, Tokens
from leakgauge.errors import BadInput

TEXT = "sentences"
"""The attack on text models."""
NOMINAL: Mapping[str, float] = {"updates": 55.0, "training": 8.0, "split": 25.0, "defenses": 45.0, "properties": 60.0}
"""Seconds of the audit of the embedded models without a budget, as measured on one core; others differ."""


@dataclass(frozen=True)
class Effort:
    """Iterations of each question that were decided beforehand; None where a time budget decides.

    ``steps``: of the attack, in updates (where a case does not say its own) and under defenses. ``training``: optimizer steps, of
    the monitored training and of the trainings that cost accuracy under defenses. ``epochs``: of a decoder at a cut.
    """

    steps: int | None = None
    training: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("training", 1), ("epochs", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                option = {"steps": "--option steps", "training": "--training-steps", "epochs": "--epochs"}[name]
                raise BadInput(f"{option} must be at least {least}, got {value}")

    def leaves_open(self, questions: Collection[Question]) -> bool:
        """Whether some question needs a time to know its iterations by."""
        decided = {"updates": self.steps, "training": self.training, "split": self.epochs}
        decided["defenses"] = self.steps if self.training is None else self.training
        decided["properties"] = None
        return any(decided[question] is None for question in questions)


UNDECIDED = Effort()


@dataclass(frozen=True)
class Request:
    """What the user asked for: ``cases`` to attack, and the single changes (``ladder``) of ``main``, the set-up that counts.

    ``split`` names the model that is cut, which is another one in the audit of the embedded models.
    """

    questions: tuple[Question, ...]
    main: Case
    cases: tuple[Case, ...]
    ladder: tuple[Case, ...]
    split: Case
    effort: Effort
    budget: float | None = None
    command: str = ""
    nominal: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each question takes on two cores, where that is known beforehand."""

    def __post_init__(self) -> None:
        if not self.questions or len(set(self.questions)) < len(self.questions):
            raise BadInput(
                f"an audit answers each question once, and at least one; got {', '.join(self.questions) or 'none'}"
            )


def default_cases(*, steps: int = 500, seed: int = 0, device: str = "cpu") -> list[Case]:
    """Eight cases on the embedded models that show each factor once: model, mode, batch size, noise."""
    options = {"steps": steps}
    noise = ("gaussian_noise:relative=10.0",)

    def case(model: str, **changes: object) -> Case:
        return replace(Case(model=model, options=options, seed=seed, device=device), name="", **changes)

    return [
        case("cnn"),
        case("cnn", batch_size=4),
        case("cnn", mode="train"),
        case("cnn", mode="train", batch_size=4),
        case("cnn", defenses=noise),
        case("vit"),
        case("vit", batch_size=4),
        case("vit", defenses=noise),
    ]


def variants(base: Case, *, modes: Sequence[str], batch_size: int | None, defenses: Sequence[str]) -> list[Case]:
    """The cases of a user's audit: each mode, batches of 1 and 4 unless one is fixed, undefended and with each defense."""
    least = base.batch_sizes().start
    sizes = sorted({max(least, size) for size in (1, 4)}) if batch_size is None else (batch_size,)
    guards: list[tuple[str, ...]] = [(), *[(spec,) for spec in defenses]]
    return [
        replace(base, name="", mode=mode, batch_size=size, defenses=guard)
        for mode in modes
        for size in sizes
        for guard in guards
    ]


def _of_text(case: Case) -> Case:
    """The case with the attack for text, which takes no steps, where it names none."""
    return replace(case, name="", attack=TEXT) if case.attack == Case.attack and not case.options else case


def ask(
    base: Case,
    *,
    load: Load,
    questions: tuple[Question, ...],
    mode: str | None = None,
    batch_size: int | None = None,
    defenses: Sequence[str] = (),
    cases: Sequence[Case] | None = None,
    changes: bool = True,
    explain: bool = False,
    models: Mapping[str, str] | None = None,
    effort: Effort = UNDECIDED,
    budget: float | None = None,
    command: str = "",
) -> Request:
    """A request about the model and data of ``base``. Where train and eval mode do not differ for the model, they are one case.

    ``cases`` take the place of the usual ones; the first of them is the set-up that counts. ``models`` are relaxations of the network
    itself, by name. ``changes``: try single changes of one set-up too; ``explain`` asks for nothing else.
    """
    if cases is not None:
        main, grid = cases[0], list(cases)
    else:
        size = 4 if batch_size is None else batch_size
        main = replace(base, name="", mode=mode or "train", batch_size=size, defenses=tuple(defenses))
        modes = ("eval", "train") if mode is None else (mode,)
        grid = variants(base, modes=modes, batch_size=batch_size, defenses=defenses)
    for case in (main, *grid):
        case.build_defenses()
        case.require_fit()
    steps: list[Case] = []
    images = True
    if "updates" in questions:
        setup = load(main)
        images = isinstance(setup.victim.space, Pixels)
        check_runs(setup)
        if isinstance(setup.victim.space, Tokens):
            main, *grid = (_of_text(case) for case in (main, *grid))
            grid = [case for case in grid if case.first + case.images <= len(setup.images)]
        without = set(pointless(setup.victim))
        if modes_differ(setup):
            without -= {"eval mode", "train mode"}
        elif cases is None:
            grid = [case for case in grid if case.mode == main.mode]
        steps = ladder(main, images=len(setup.images), models=models, without=without) if changes else []
    if explain:
        grid, steps = steps, []
    elif "updates" in questions and changes and images and (server := dishonest(main)) is not None:
        grid = [*grid, server]
    split = replace(base, name="", attack=Case.attack, options={}, reveal=Case.reveal, channel="").without_training()
    return Request(questions, main, tuple(grid), tuple(steps), split, effort, budget, command)


def ask_embedded(
    *,
    questions: tuple[Question, ...],
    effort: Effort = UNDECIDED,
    budget: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    command: str = "",
) -> Request:
    """A request about the embedded models."""
    eight = tuple(default_cases(seed=seed, device=device))
    split = Case(model="vgg", seed=seed, device=device)
    server = dishonest(eight[3])  # train mode, a batch of 4: as a client trains
    assert server is not None, "none of the eight names a server"
    return Request(
        questions,
        eight[0],
        (*eight, server),
        (),
        split,
        effort,
        budget,
        command,
        nominal=NOMINAL if effort == UNDECIDED else {},
    )
