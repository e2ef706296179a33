"""The defenses that were tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from leakgauge.audit.case import clients_of, same_protection
from leakgauge.audit.findings.training import GUESSING
from leakgauge.audit.findings.updates import Update
from leakgauge.audit.questions.answers import Unanswered
from leakgauge.audit.questions.defense_records import DefenseRecord, Static, worth_having
from leakgauge.audit.verdict import GLIMPSED, OUTLINED, SCRAMBLED, SERIES_GLIMPSED, Evidence, Outcome, Verdict

MOST_POINTS = 2.0
"""Points of accuracy that a defense may cost and still be called cheap: a convention, which your own tolerance may replace."""


def _margin(checks: Iterable[Any], metric: str) -> float:
    return next(check.margin for check in checks if check.metric == metric and check.above == "null")


LEAST_DROP: Mapping[Evidence, float] = {
    "ssim": _margin(GLIMPSED, "ssim"),
    "layout": _margin(OUTLINED, "layout"),
    "pieces_lead": _margin(SCRAMBLED, "pieces_lead"),
    "correlation": _margin(SERIES_GLIMPSED, "correlation"),
}
"""By how much the evidence must fall for a defense to have done anything: by what an attack must beat its null run."""


@dataclass(frozen=True)
class Defended:
    """One defense at one strength. ``cost`` is the accuracy lost, in points, against the same training without it.

    ``ssim`` is that of the attack, ``auc`` how well members of a batch are still recognised, with its lower bound. ``front`` is whether
    no other row is better at both the attack and the accuracy. ``adapted``: the attack knew the defense; ``static`` is what it sees
    otherwise, where that was tried. ``epsilon`` is the guarantee of one update, where there is one. ``layout`` and ``pieces_lead`` are
    those of the image that shows most.
    """

    number: int
    defenses: tuple[str, ...]
    verdict: Verdict | None
    status: str = "done"
    reason: str = ""
    ssim: float | None = None
    layout: float | None = None
    pieces_lead: float | None = None
    correlation: float | None = None
    auc: float | None = None
    auc_low: float | None = None
    cost: float | None = None
    cost_low: float | None = None
    cost_high: float | None = None
    front: bool = False
    adapted: bool = True
    static: Static | None = None
    epsilon: float | None = None

    @property
    def anchor(self) -> str:
        return f"defense-{self.number}"

    @property
    def name(self) -> str:
        """The defenses as they are written on the command line, or ``none``."""
        return " + ".join(self.defenses) or "none"

    @property
    def outcome(self) -> Outcome | None:
        return None if self.verdict is None else self.verdict.outcome

    @property
    def leaks(self) -> bool:
        return self.outcome is not None and self.outcome.leaks

    @property
    def evidence(self) -> Evidence:
        return "ssim" if self.verdict is None else self.verdict.evidence

    @property
    def hides_members(self) -> bool:
        """Nobody was shown to recognise members better than by guessing."""
        return self.auc is not None and (self.auc if self.auc_low is None else self.auc_low) <= GUESSING

    @property
    def cheap(self) -> bool:
        return self.cost is not None and self.cost <= MOST_POINTS


@dataclass(frozen=True)
class Defenses:
    """``undefended`` is the row that all others are compared with; set-up, attack and training are the same for all rows.

    ``clients`` is the number of clients whose updates are added up before anyone sees them; one sends its own. ``broken`` pairs a row
    that held with a set-up of the same model that leaks under the same defense: after more steps, or on other images.
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
    broken: tuple[tuple[Defended, Update], ...] = ()

    @property
    def unadapted(self) -> tuple[Defended, ...]:
        """Rows that stopped an attack that did not know the defense, which is no evidence."""
        return tuple(row for row in self.rows if row.outcome is Outcome.INFEASIBLE and not row.adapted)

    @cached_property
    def held(self) -> tuple[Defended, ...]:
        """Rows that stopped an attack; advice rests only on attacks that knew the defense."""
        return tuple(row for row in self.rows if row.outcome is Outcome.INFEASIBLE and row.adapted)

    @cached_property
    def holding(self) -> tuple[Defended, ...]:
        """Rows that earned it: the undefended attack leaks, the row stops it clearly, and nothing leaks under it elsewhere."""
        if not self.undefended.leaks:
            return ()
        broken = [row for row, _ in self.broken]
        return tuple(row for row in self.held if row not in broken and self._earned(row))

    @property
    def best(self) -> Defended | None:
        """The cheap one that holds: on the Pareto front, then the cheapest."""
        cheap = sorted((r for r in self.holding if r.cheap), key=lambda row: (not row.front, row.cost))
        return cheap[0] if cheap else None

    @property
    def none_is_cheap(self) -> bool:
        return self.undefended.leaks and bool(self.rows) and self.best is None

    @property
    def cost_unknown(self) -> bool:
        """Defenses hold, and not one of them has a known price."""
        return bool(self.holding) and all(row.cost is None for row in self.holding)

    def seen(self, row: Defended) -> float | None:
        """What the attack saw of a row, in the number that shows what it saw without a defense."""
        return getattr(row, self.undefended.evidence)

    def _earned(self, row: Defended) -> bool:
        """Whether clearly less is seen; where that was not scored the verdict alone counts."""
        before, after = self.seen(self.undefended), self.seen(row)
        return before is None or after is None or before - after >= LEAST_DROP[self.undefended.evidence]


def defenses_of(found: Sequence[DefenseRecord]) -> Defenses | Unanswered:
    """The trials of one set-up: the first one without a defense, and all that are compared with it."""
    base = next((record for record in found if not record.defenses), None)
    if base is None:
        return Unanswered("defenses", "the trial without a defense is not on record", failed=True)
    best = worth_having(found)
    each = {record.key: _defended(number, record, record.key in best) for number, record in enumerate(found, start=1)}
    case = base.trial.case
    rows = tuple(each[record.key] for record in found if record.defenses)
    return Defenses(
        undefended=each[base.key],
        rows=rows,
        setting=", ".join(
            part for part in (case.model, f"{case.mode} mode", f"batch {case.batch_size}", case.channel) if part
        ),
        clients=clients_of(case.channel),
        steps=case.steps,
        train_steps=base.trial.train_steps,
        seconds=sum(record.seconds for record in found),
        diagnostic=base.assumed("diagnostic"),
        deployable=base.assumed("deployable"),
        model=case.model,
    )


def broken_by(rows: Sequence[Defended], model: str, own: Sequence[Update]) -> tuple[tuple[Defended, Update], ...]:
    """Rows that held, each with a set-up of the same model that leaks under the same defense."""
    leaks = {_protection(u.defenses): u for u in own if u.defenses and u.leaks and u.model == model}
    held = [row for row in rows if row.outcome is Outcome.INFEASIBLE]
    return tuple((row, leaks[key]) for row in held if (key := _protection(row.defenses)) in leaks)


def _protection(specs: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(same_protection, specs))


def _defended(number: int, record: DefenseRecord, front: bool) -> Defended:
    cost = record.accuracy.get("cost") or {}
    low, value, high = (
        None if (found := cost.get(end)) is None else 100 * float(found) for end in ("low", "value", "high")
    )
    return Defended(
        number=number,
        defenses=record.defenses,
        verdict=record.verdict if record.status == "done" else None,
        status=record.status,
        reason=record.reason,
        ssim=record.ssim,
        layout=record.layout,
        pieces_lead=record.pieces_lead,
        correlation=record.correlation,
        auc=record.auc,
        auc_low=(record.leakage.get("auc") or {}).get("low"),
        cost=value,
        cost_low=low,
        cost_high=high,
        front=front,
        adapted=record.adapted,
        static=record.static,
        epsilon=record.epsilon,
    )
