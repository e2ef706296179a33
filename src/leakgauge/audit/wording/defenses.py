"""What defenses bought."""

from __future__ import annotations

from collections.abc import Sequence

from leakgauge.audit.findings import LEAST_DROP, Defended, Defenses
from leakgauge.audit.phrasing import duration, number, plural
from leakgauge.audit.questions import QUESTIONS
from leakgauge.audit.questions.defense_records import DefenseRecord
from leakgauge.audit.wording.causes import by_cause, why
from leakgauge.audit.wording.statement import Statement, Tone, by_kind
from leakgauge.audit.wording.terms import SEEN


def on_defenses(defenses: Defenses) -> Statement:
    base, rows, held = defenses.undefended, defenses.rows, defenses.held
    asked, where = QUESTIONS["defenses"], f" ({defenses.setting})" if defenses.setting else ""
    tone: Tone
    if base.outcome is None:
        tone, badge = "none", "No result"
        said = [f"The attack without a defense gave no result{where}: {base.reason or 'no reason was recorded'}."]
    elif not base.outcome.conclusive:
        tone, badge = "none", "Inconclusive"
        reason = "" if base.verdict is None else why(base.verdict)
        said = [
            f"Nothing was found without a defense{where}, and that is no evidence ({reason}), so no defense was tried."
        ]
    elif not base.leaks:
        tone, badge = "none", "Nothing to defend"
        none = "the one defense tried cannot" if len(rows) == 1 else f"none of the {len(rows)} defenses can"
        so = f"so {none} show what it buys" if rows else "so no defense was tried"
        said = [f"The attack fails without a defense too{where}, {so}."]
        leaking = ", ".join(f"{row.name} ({row.outcome.label})" for row in rows if row.outcome and row.leaks)
        if leaking:
            said.append(
                f"Yet it leaks under {leaking}: at this budget it succeeds or fails by chance. Give it more steps."
            )
    else:
        best = defenses.best
        tone, badge = ("good", "Defense found") if best else ("bad", "No cheap defense")
        tone, badge = ("partly", "Cost unknown") if defenses.cost_unknown else (tone, badge)
        said = [f"{len(held)} of {plural(len(rows), 'defense')} made the attack infeasible{where}."]
        open_ = [row for row in rows if row.outcome is not None and not row.outcome.conclusive]
        if open_:
            reasons = by_cause([row.verdict for row in open_ if row.verdict is not None])
            said.append(f"{len(open_)} {'is' if len(open_) == 1 else 'are'} inconclusive: {reasons}.")
        if defenses.unadapted:
            names = ", ".join(row.name for row in defenses.unadapted)
            said.append(f"Under {names} an attack failed that did not know the defense, which is no evidence.")
        found = [row for row in rows if row.leaks and row.static is not None and not row.static.verdict.outcome.leaks]
        if found:
            names = ", ".join(row.name for row in found)
            said.append(f"{names} stopped an attack that does not know the defense, but not one that does.")
        said += [broken] if (broken := broken_elsewhere(defenses)) else []
        said += [f"The cheapest effective defense is {best.name}, for {points(best)}."] if best else []
        if defenses.none_is_cheap:
            known = "None is known to be cheap" if defenses.cost_unknown else "None is cheap"
            said.append(f"{known}: {cheapest(defenses)}.")
    said += members_despite(held if base.leaks else rows)
    spent = [(defenses.steps, "attack"), (defenses.train_steps, "training")]
    parts = [f"{plural(count, 'step')} of {what} each" for count, what in spent if count is not None]
    budget = ", ".join([*parts, f"{duration(defenses.seconds)} in all"])
    assumed = by_kind(defenses.deployable, defenses.diagnostic)
    return Statement("defenses", asked, tone, badge, tuple(said), assumed, budget)


def guarantee(record: DefenseRecord) -> str:
    """What a defense promises for one update; nothing for the trial without one."""
    if not record.defenses:
        return ""
    return (
        "no guarantee"
        if record.epsilon is None
        else f"ε = {number(record.epsilon, 3 if record.epsilon < 100 else 0)} for one update"
    )


def members_despite(rows: Sequence[Defended]) -> list[str]:
    """How well members of a batch are recognised under these defenses, as far as that was measured."""
    known = sorted((row for row in rows if row.auc is not None), key=lambda row: row.auc or 0.0)
    recognised, hidden = [r for r in known if not r.hides_members], [r for r in known if r.hides_members]
    said = []
    if recognised:
        low, high = (number(row.auc, 2) for row in (recognised[0], recognised[-1]))
        span = low if low == high else f"{low} to {high}"
        these = "these defenses" if not hidden else ", ".join(row.name for row in recognised)
        said.append(f"With {these} an attacker infers batch membership with an AUC of {span} (0.5 is guessing).")
    if hidden:
        names = ", ".join(f"{row.name} (AUC {number(row.auc, 2)})" for row in hidden)
        said.append(f"No attacker was shown to recognise members better than by guessing under {names}.")
    return said


def broken_elsewhere(defenses: Defenses) -> str:
    """Which defenses held in the comparison and leak in a set-up of the same report; empty where none does."""
    each = [
        f"under {row.name} set-up {update.number} is {'' if update.outcome is None else update.outcome.label}"
        + ("" if update.steps is None else f" after {plural(update.steps, 'step')}")
        for row, update in defenses.broken
    ]
    return f"But not everywhere: {'; '.join(each)}." if each else ""


def cheapest(defenses: Defenses) -> str:
    """What comes nearest to a cheap defense, where none is."""
    known = [row for row in defenses.holding if row.cost is not None]
    unknown = ", ".join(row.name for row in defenses.holding if row.cost is None)
    if known:
        first = min(known, key=lambda row: row.cost or 0.0)
        best = f"the cheapest that made the attack infeasible is {first.name}, for {points(first)}"
        return best + (f"; the cost of {unknown} was not measured" if unknown else "")
    if unknown:
        return f"{unknown} made the attack infeasible, at an accuracy cost that was not measured"
    if defenses.held:
        what = defenses.undefended.evidence
        return f"none lowered the {SEEN[what]} by {LEAST_DROP[what]:g} and made the attack infeasible wherever it was tried"
    return "none made the attack infeasible"


def points(row: Defended) -> str:
    """What a defense costs."""
    if row.cost is None:
        return "an accuracy cost that was not measured"
    spread = (
        ""
        if row.cost_low is None or row.cost_high is None
        else f" (95 % CI {number(row.cost_low, 1)} to {number(row.cost_high, 1)})"
    )
    return f"{number(row.cost, 1)} points of accuracy{spread}"


def cost_unknown(records: Sequence[DefenseRecord]) -> str:
    """Why the accuracy cost of some trials was not measured; empty where all were."""
    reasons = dict.fromkeys(str(why) for record in records if (why := record.accuracy.get("unknown")))
    return f"Part of the accuracy cost is unknown: {'; '.join(reasons)}." if reasons else ""


def seen(defenses: Defenses, row: Defended) -> str:
    """What the attack saw of a row, in the number that shows what it saw without a defense."""
    return f"{SEEN[defenses.undefended.evidence]} {number(defenses.seen(row), 2)}"
