"""When advice on the audit itself applies: what broke, what was not asked, and what silence does not prove."""

from __future__ import annotations

from leakgauge.audit.advice.match import SPLIT, TRAINING, Match, anchors
from leakgauge.audit.advice.on_defenses import rows
from leakgauge.audit.findings import Findings
from leakgauge.audit.phrasing import plural
from leakgauge.audit.summaries import LEAKING


def repair_errors(found: Findings) -> Match | None:
    """A set-up or a defense broke off, or a whole question failed."""
    broken = [u for u in (found.updates.every if found.updates else ()) if u.status == "error"]
    failed = [row for row in rows(found) if row.status == "error"]
    said = [(u.name, u.reason) for u in broken] + [(row.defense, row.reason) for row in failed]
    said += [(f"the question on {u.question}", u.reason) for u in found.unanswered if u.failed]
    if not said:
        return None
    name, reason = said[0]
    facts = {"count": plural(len(said), "part"), "name": name, "reason": reason or "no reason was recorded"}
    return Match(anchors([*broken, *failed]), facts)


def go_on(found: Findings) -> Match | None:
    said = {}
    if found.split is not None and not found.split.finished:
        said[SPLIT] = "the scan of cuts has no conclusion yet"
    if found.training is not None and found.training.ended != "finished":
        said[TRAINING] = (
            f"the monitored training ended after {plural(found.training.steps, 'step')} ({found.training.ended})"
        )
    begun = {late.question: str(late) for late in found.waiting}
    late = [u.question for u in found.unanswered if not u.reached]
    ways = ["`leakgauge audit --resume`"] if begun or late else []
    if SPLIT in said and found.split is not None:
        ways.append(f"`leakgauge {'audit' if found.split.audited else 'scan'} --resume`")
    if TRAINING in said and found.training is not None:
        ways.append("`leakgauge audit --resume`" if found.training.audited else "watch the training again")
    told = [*begun.values(), *said.values(), *([f"not reached: {', '.join(late)}"] if late else [])]
    return Match((*begun, *said), {"what": "; ".join(told), "how": ", ".join(dict.fromkeys(ways))}) if told else None


def no_proof(found: Findings) -> Match | None:
    """Nothing was reconstructed from updates, neither in a set-up nor in the comparison of defenses."""
    judged = () if found.updates is None else found.updates.judged
    tried = () if found.defenses is None else (found.defenses.undefended, *found.defenses.rows)
    leaked = any(row.outcome in LEAKING for row in tried) or any(u.leaks for u in judged)
    if not judged or leaked:
        return None
    spent = sum(u.seconds for u in judged)
    return Match(anchors(judged), {"count": plural(len(judged), "set-up"), "seconds": f"{spent:.0f} s"})


def not_answered(found: Findings) -> Match | None:
    """A question that was not asked, not reached or refused; one that failed is an error."""
    left = [u for u in found.unanswered if not u.failed]
    said = [u.question for u in left if not u.reason] + [f"{u.question} ({u.reason})" for u in left if u.reason]
    return Match((), {"questions": ", ".join(said)}) if said else None
