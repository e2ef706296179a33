"""What each question of an audit came to, in a few plain numbers. Verdict sentences and advice are made of these alone."""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.audit.phrasing import plural
from leakgauge.audit.questions import Question
from leakgauge.audit.verdict import ToldBy

LEAKING = ("feasible", "partial")
HELD = "infeasible_within_budget"


@dataclass(frozen=True)
class Update:
    """One attacked set-up. ``outcome`` is None where it was refused or failed; ``change`` names the single change of a ladder.

    ``anchor`` is its place in the report. ``diagnostic`` lists the assumptions that no ordinary server satisfies, ``malicious`` what a
    server does against the protocol. ``steps`` and ``usual_steps`` (the attack's own default) are None for an attack in closed form.
    ``labels`` is the share of labels that the attack found by itself, None where it was given them. ``first`` is the index of the first
    private image. ``which`` says how many images of a batch a partial verdict is about, ``told_by`` which of the numbers says what was
    seen: where images were glimpsed by their layout or their pieces alone, SSIM and PSNR may lie below those of the null run.
    """

    anchor: str
    name: str
    outcome: str | None
    status: str = "done"
    change: str = ""
    reason: str = ""
    mode: str = "train"
    batch: int = 1
    local_steps: int = 1
    defenses: tuple[str, ...] = ()
    diagnostic: tuple[str, ...] = ()
    deployable: tuple[str, ...] = ()
    malicious: tuple[str, ...] = ()
    attack: str = "inverting_gradients"
    steps: int | None = None
    usual_steps: int | None = None
    restarts: int = 1
    seconds: float = 0.0
    which: str = ""
    ssim: float | None = None
    psnr: float | None = None
    null_ssim: float | None = None
    null_psnr: float | None = None
    layout: float | None = None
    null_layout: float | None = None
    pieces_lead: float | None = None
    null_pieces_lead: float | None = None
    told_by: ToldBy = "ssim"
    labels: float | None = None
    classes: int | None = None
    first: int = 0
    model: str = ""

    @property
    def leaks(self) -> bool:
        return self.outcome in LEAKING

    @property
    def plain(self) -> bool:
        """Shared as it is, without a defense, with a server that keeps to the protocol."""
        return not self.defenses and not self.malicious


@dataclass(frozen=True)
class Flip:
    """Two set-ups that differ in one thing: ``leaking`` leaks more than ``holding``, which may still leak in part.

    ``change`` leads from one to the other, whose verdict is ``makes``.
    """

    change: str
    leaking: Update
    holding: Update
    makes: str = ""


@dataclass(frozen=True)
class Updates:
    """``every`` set-up in the order of the report, and the single changes that flip a verdict."""

    every: tuple[Update, ...]
    flips: tuple[Flip, ...] = ()

    @property
    def judged(self) -> tuple[Update, ...]:
        return tuple(update for update in self.every if update.outcome is not None)

    @property
    def own(self) -> tuple[Update, ...]:
        """The judged set-ups that were asked about, without the single changes of a ladder."""
        return tuple(update for update in self.judged if not update.change)


@dataclass(frozen=True)
class Measured:
    """A number with its interval, where one was recorded, at a step of a training."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Training:
    """A monitored training. ``peak`` and ``last`` are of the critic (nats, at most ``ceiling`` = ln K), ``auc`` of the last look.

    ``controls`` maps null, decoy and noise to what they read at the peak and at the end: for each the higher lower bound, or the
    higher value where there is no bound. ``scored`` steps are those that the last numbers rest on. ``audited`` is whether it is part of
    an audit, which can be resumed.
    """

    steps: int
    alarm_at: int | None = None
    alpha: float = 0.05
    view: str = "released"
    peak: Measured | None = None
    last: Measured | None = None
    ceiling: float | None = None
    auc: Measured | None = None
    controls: tuple[tuple[str, float], ...] = ()
    layers: tuple[tuple[str, float], ...] = ()
    scored: int = 0
    epsilon: float | None = None
    seconds: float | None = None
    ended: str = "finished"
    audited: bool = True


@dataclass(frozen=True)
class Split:
    """A scan of cuts. ``finished`` is whether it came to its conclusion; what follows from one is empty before.

    ``fvu`` and ``bytes`` are of the recommended cut; ``safest`` is the cut with the highest FVU of all. ``audited`` is whether it is part
    of an audit.
    """

    threshold: float
    cuts: int
    finished: bool = True
    recommended: str | None = None
    fvu: float | None = None
    bytes: int | None = None
    raw_bytes: int | None = None
    numbers: str = "float32"
    edge_share: float | None = None
    decoder_epochs: int = 0
    safest: str | None = None
    safest_fvu: float | None = None
    require: str = ""
    defenses: tuple[str, ...] = ()
    threat: str = ""
    budget: str = ""
    audited: bool = True


@dataclass(frozen=True)
class Unanswered:
    """A question without an answer: it was not asked (no reason), it was refused, or it ``failed`` unexpectedly.

    ``reached`` is False where it was asked, and the run was stopped before it came to it.
    """

    question: Question
    reason: str = ""
    failed: bool = False
    reached: bool = True


@dataclass(frozen=True)
class Waiting:
    """A question that a stopped run had begun: of ``total`` planned set-ups or trials ``missing`` have no record."""

    question: Question
    missing: int
    total: int

    def __str__(self) -> str:
        """
        >>> print(Waiting("updates", 5, 8))
        5 of 8 planned set-ups were not attacked
        >>> print(Waiting("defenses", 1, 13))
        1 of 13 planned trials was not run
        """
        what, done = ("set-up", "attacked") if self.question == "updates" else ("trial", "run")
        return f"{self.missing} of {plural(self.total, f'planned {what}')} {'was' if self.missing == 1 else 'were'} not {done}"


@dataclass(frozen=True)
class Defended:
    """One defense at one strength. ``cost`` is the accuracy lost, in points, against the same training without it.

    ``ssim`` is that of the attack, ``auc`` tells how well members of a batch are still told from others. ``front`` is whether no
    other row is better at both the attack and the accuracy. ``told_by`` is as in
    :class:`Update`; ``layout`` and ``pieces_lead`` are those of the image that is plainest.
    """

    defense: str
    outcome: str | None
    anchor: str = "defenses"
    status: str = "done"
    reason: str = ""
    ssim: float | None = None
    layout: float | None = None
    pieces_lead: float | None = None
    told_by: ToldBy = "ssim"
    auc: float | None = None
    cost: float | None = None
    cost_low: float | None = None
    cost_high: float | None = None
    front: bool = False


@dataclass(frozen=True)
class Defenses:
    """``undefended`` is the row that all others are compared with; set-up, attack and training are the same for all rows.

    ``clients`` is the number of clients whose updates are added up before anyone sees them; one sends its own.
    """

    undefended: Defended
    rows: tuple[Defended, ...]
    setting: str = ""
    clients: int = 1
    steps: int | None = None
    train_steps: int | None = None
    seconds: float = 0.0
    diagnostic: tuple[str, ...] = ()
    deployable: tuple[str, ...] = ()
    model: str = ""
