"""The attacked set-ups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leakgauge.audit import records
from leakgauge.audit.bounds import Bound, Unbounded
from leakgauge.audit.case import Change, accepted_options, enough_steps
from leakgauge.audit.control import Control
from leakgauge.audit.questions.answers import Unanswered
from leakgauge.audit.questions.updates import DISHONEST, Flip, flips
from leakgauge.audit.records import Captured, Record
from leakgauge.audit.verdict import Evidence, Outcome, Verdict
from leakgauge.data.facts import USUAL, DataFacts

EXPLAINED = 0.05
"""Mismatch up to which the true batch explains a captured update; beyond it noise was added, or the client did something else."""
MISFIT = 0.5
"""Mismatch of a reconstruction beyond which a captured update may have been replayed at other weights than the client's."""


@dataclass(frozen=True)
class Update:
    """One attacked set-up, numbered as in the report. ``verdict`` is None where it was refused or failed.

    ``change`` is the single change that sets it apart from the set-up it explains. ``diagnostic`` lists the assumptions that no ordinary
    server satisfies, ``malicious`` what a server does against the protocol. ``steps`` and ``usual_steps`` (the attack's own default) are
    None for an attack in closed form; after ``enough_steps`` a negative counts. ``raced`` names the attacks that ran where one tried
    several. ``labels`` is the share of labels that the attack found by itself, None where it was given them or where the data has none;
    ``label_accuracy`` is the share that it expected. ``first`` is the index of the first private image. The client took ``local_steps``
    in all, on ``batches`` different minibatches of ``batch`` images. ``captured`` is what is known of an update that a real client sent;
    None for a simulated one. ``control`` is how the same attack does where it must work. ``bound`` is what no attack can exceed; if there
    is none, ``unbounded`` says why.
    """

    number: int
    name: str
    verdict: Verdict | None
    status: str = "done"
    change: Change | None = None
    reason: str = ""
    setting: str = ""
    mode: str = "train"
    batch: int = 1
    batches: int = 1
    local_steps: int = 1
    defenses: tuple[str, ...] = ()
    diagnostic: tuple[str, ...] = ()
    deployable: tuple[str, ...] = ()
    malicious: tuple[str, ...] = ()
    attack: str = "strongest"
    raced: tuple[str, ...] = ()
    steps: int | None = None
    usual_steps: int | None = None
    enough_steps: int = 0
    restarts: int = 1
    seconds: float = 0.0
    ssim: float | None = None
    psnr: float | None = None
    null_ssim: float | None = None
    null_psnr: float | None = None
    layout: float | None = None
    null_layout: float | None = None
    pieces_lead: float | None = None
    null_pieces_lead: float | None = None
    correlation: float | None = None
    null_correlation: float | None = None
    labels: float | None = None
    label_accuracy: float | None = None
    classes: int | None = None
    first: int = 0
    model: str = ""
    captured: Captured | None = None
    data: DataFacts = USUAL
    control: Control | None = None
    bound: Bound | None = None
    unbounded: Unbounded | None = None

    @property
    def images(self) -> int:
        """Private images in the update."""
        return self.batch * self.batches

    @property
    def attacks(self) -> tuple[str, ...]:
        """Every attack that ran."""
        return self.raced or (self.attack,)

    @property
    def anchor(self) -> str:
        """Its place in the report."""
        return f"case-{self.number}"

    @property
    def outcome(self) -> Outcome | None:
        return None if self.verdict is None else self.verdict.outcome

    @property
    def evidence(self) -> Evidence:
        """The number that shows what was seen: by layout or pieces alone, SSIM and PSNR may be below those of the null run."""
        return "ssim" if self.verdict is None else self.verdict.evidence

    @property
    def leaks(self) -> bool:
        return self.outcome is not None and self.outcome.leaks

    @property
    def unscored(self) -> bool:
        """Attacked without the truth, with which a verdict compares."""
        return self.status == "done" and self.verdict is None and self.captured is not None

    @property
    def plain(self) -> bool:
        """Shared as it is, without a defense, with a server that keeps to the protocol."""
        return not self.defenses and not self.malicious

    @property
    def protocol_broken(self) -> bool:
        """Tried beside what was asked about: the same set-up with a server that does not keep to the protocol."""
        return self.change == DISHONEST


@dataclass(frozen=True)
class Updates:
    """``every`` set-up in the order of the report, and the single changes that flip a verdict."""

    every: tuple[Update, ...]
    flips: tuple[Flip[Update], ...] = ()

    @property
    def judged(self) -> tuple[Update, ...]:
        return tuple(update for update in self.every if update.verdict is not None)

    @property
    def dishonest(self) -> tuple[Update, ...]:
        """What a server gets that does not keep to the protocol, where that was not asked for: another threat model."""
        return tuple(update for update in self.judged if update.protocol_broken)

    @property
    def own(self) -> tuple[Update, ...]:
        """The judged set-ups that were asked about, without the single changes of a ladder."""
        return tuple(update for update in self.judged if update.change is None)

    @property
    def foremost(self) -> tuple[Update, ...]:
        """The set-ups that the answer is about: honest, undefended and unaided ones first, otherwise what comes closest to them."""
        honest = [u for u in self.own if not u.malicious]
        plain = [u for u in honest if u.plain]
        unaided = [u for u in plain if not u.diagnostic]
        return tuple(unaided or plain or honest or self.own or self.judged)

    @property
    def worst(self) -> Update | None:
        """Of these, the one that shows most: the gravest outcome, then the highest SSIM."""
        graded = [(u.outcome.severity, u.ssim or 0.0, -u.number, u) for u in self.foremost if u.outcome is not None]
        return max(graded)[-1] if graded else None

    @property
    def realistic(self) -> tuple[Update, ...]:
        """Set-ups that were asked about, undefended, with nothing that an ordinary server lacks."""
        return tuple(update for update in self.own if update.plain and not update.diagnostic)


def updates_of(found: Sequence[Record]) -> Updates | Unanswered:
    """The set-ups in the order and with the numbers of the report: one that was run again counts once, as it ended last."""
    latest = records.latest(found)
    every = tuple(_update(number, record) for number, record in enumerate(latest, start=1))
    if not any(update.verdict or update.unscored for update in every):
        reasons = list(dict.fromkeys(update.reason for update in every if update.reason))
        broken = any(record.broken for record in latest)
        return Unanswered("updates", "; ".join(reasons) or "no set-up was judged", failed=broken)
    return Updates(every, tuple(_flips(latest, every)))


def _flips(latest: Sequence[Record], every: Sequence[Update]) -> Iterable[Flip[Update]]:
    by_key = {record.key: update for record, update in zip(latest, every, strict=True)}
    for flip in flips(latest):
        yield Flip(flip.change, by_key[flip.leaking.key], by_key[flip.holding.key], flip.makes)


SHOWN = ("ssim", "psnr", "layout", "pieces_lead", "correlation")
"""Metrics that a sentence may need, of the attack and of its null run."""


def _update(number: int, record: Record) -> Update:
    case, done = record.case, record.status == "done"
    usual = accepted_options(case)
    steps = usual.get("steps") if case.steps is None else case.steps
    restarts = case.options.get("restarts", usual.get("restarts", 1))
    usual_steps = usual.get("steps")
    given = "labels" in {spec.partition(":")[0] for spec in case.reveal}
    scores, null = record.scores, record.null
    means: dict[str, float | None] = {
        **{name: None if scores is None else scores.mean(name) for name in SHOWN},
        **{f"null_{name}": None if null is None else null.mean(name) for name in SHOWN},
    }
    return Update(
        number=number,
        name=case.name,
        verdict=record.verdict if done else None,
        status=record.status,
        change=case.change,
        reason=record.reason,
        setting=f"{case.model}, {case.setting()}",
        mode=case.mode,
        batch=case.batch_size,
        batches=case.local_steps,
        local_steps=1 if record.local is None else record.local.steps,
        defenses=case.protections(),
        diagnostic=record.assumed("diagnostic"),
        deployable=record.assumed("deployable"),
        malicious=record.assumed("malicious"),
        attack=case.attack,
        raced=tuple(dict.fromkeys(one.name for one in record.raced if not one.refused)),
        steps=steps if isinstance(steps, int) else None,
        usual_steps=usual_steps if isinstance(usual_steps, int) else None,
        enough_steps=enough_steps(case),
        restarts=restarts if isinstance(restarts, int) else 1,
        seconds=record.seconds,
        **means,
        labels=None if given or scores is None else scores.mean("labels"),
        label_accuracy=record.label_accuracy,
        classes=record.victim.classes or None,
        first=case.first,
        model=case.model,
        captured=record.captured,
        data=record.data,
        control=record.control,
        bound=record.bound if done else None,
        unbounded=record.unbounded if done else None,
    )
