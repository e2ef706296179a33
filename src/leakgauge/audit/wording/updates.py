"""What could be reconstructed from updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from leakgauge.audit.cause import Cause
from leakgauge.audit.findings import Update, Updates
from leakgauge.audit.phrasing import duration, number, plural
from leakgauge.audit.questions import QUESTIONS
from leakgauge.audit.verdict import Outcome, Unit
from leakgauge.audit.wording.cases import NO_TRUTH
from leakgauge.audit.wording.causes import by_cause, reach_of
from leakgauge.audit.wording.data import data_notes
from leakgauge.audit.wording.statement import BADGES, Statement, by_kind
from leakgauge.audit.wording.terms import MALICIOUS, SERVER, UNITS
from leakgauge.audit.wording.verdicts import quality


def on_captured(found: Updates) -> Statement:
    """Updates that were attacked without the truth."""
    first = [u for u in found.every if u.unscored]
    each = "an update that a client sent" if len(first) == 1 else f"{len(first)} updates that clients sent"
    said = [f"This run attacked {each}. {NO_TRUTH}"]
    for u in first:
        if u.captured is not None and u.captured.mismatch is not None:
            null = u.captured.null_mismatch
            beside = "" if null is None else f", that of the null run by {number(null, 2)}"
            said.append(
                f"The update of the reconstruction differs from the captured one by {number(u.captured.mismatch, 2)} (1 − cosine; 0 is the "
                f"same direction){beside}."
            )
    assumed = by_kind([w for u in first for w in u.deployable], [w for u in first for w in u.diagnostic])
    return Statement("updates", QUESTIONS["updates"], "none", "No verdict", tuple(said), assumed, _spent(found.every))


def on_updates(found: Updates) -> Statement:
    shown = found.worst
    if shown is None or shown.outcome is None:
        return on_captured(found)
    honest, malicious = [u for u in found.own if not u.malicious], [u for u in found.own if u.malicious]
    plain = [u for u in honest if u.plain]
    ordinary, helped = [u for u in plain if not u.diagnostic], [u for u in plain if u.diagnostic]
    first, worst = found.foremost, shown.outcome
    said = [_reconstructed(first, shown, worst, "With diagnostic help " if helped and not ordinary else "")]
    if worst is Outcome.INCONCLUSIVE and (reach := reach_of([u.control for u in first if u.control is not None])):
        said.append(reach)
    if ordinary and helped:
        said.append(f"With diagnostic help (an upper bound): {tally(helped)}.")
    if honest and malicious:
        said.append(f"With a malicious server: {tally(malicious)}.")
    said += [broken_protocol(u) for u in found.dishonest]
    defended = [u for u in honest if u.defenses]
    if defended and (ordinary or helped):
        said.append(f"With a defense: {tally(defended)}.")
    if found.flips:
        moves = dict.fromkeys(f"{flip.change} makes it {flip.makes.label}" for flip in found.flips)
        said.append(f"Single changes that move a verdict: {'; '.join(moves)}.")
    said += no_result(found)
    said += dict.fromkeys(note for u in found.every for note in data_notes(u.data))
    tone, badge = BADGES[worst]
    bound = "" if ordinary or not helped or not worst.leaks else " (upper bound)"
    assumed = by_kind(
        [what for u in first for what in u.deployable],
        [what for u in first for what in u.diagnostic],
        [what for u in first for what in u.malicious],
    ) or (("deployable", "nothing beyond the model and what is shared"),)
    return Statement("updates", QUESTIONS["updates"], tone, badge + bound, tuple(said), assumed, _spent(found.every))


def broken_protocol(update: Update) -> str:
    """What a server gets that does not keep to the protocol: another threat model than that of all other sentences."""
    verdict = update.verdict
    count = 0 if verdict is None else verdict.reconstructed
    unit: Unit = "image" if verdict is None else verdict.unit
    of = plural(update.batch, unit, UNITS[unit])
    got = f"it reconstructs {count} of {of}" if count else f"it reconstructs none of the {UNITS[unit]}"
    return f"If the server does not keep to the protocol (another threat model; {'; '.join(update.malicious)}), {got} ({update.attack})."


def no_result(found: Updates) -> list[str]:
    """How many set-ups have no verdict, and why."""
    count = Counter(update.status for update in found.every if update.verdict is None)
    if not count:
        return []
    words = {"refused": "refused", "error": "failed", "withdrawn": "withdrawn", "done": "without a verdict"}
    kinds = ", ".join(f"{count[status]} {word}" for status, word in words.items() if count[status])
    total = count.total()
    counts = "counts" if total == 1 else "count"
    return [f"{plural(total, 'further set-up')} gave no result ({kinds}) and {counts} neither for nor against safety."]


def _reconstructed(updates: Sequence[Update], shown: Update, worst: Outcome, prefix: str) -> str:
    server = prefix + (MALICIOUS if all(u.malicious for u in updates) else SERVER)
    who = server[0].upper() + server[1:]
    units: list[Unit] = [u.verdict.unit for u in updates if u.verdict is not None]
    what = UNITS[units[0] if units else "image"]
    shared = "defended updates" if all(u.defenses for u in updates) else "plain updates"
    shared = "captured updates" if all(u.captured is not None for u in updates) else shared
    if not worst.conclusive:
        short = [u for u in updates if u.outcome is worst]
        of = f" in {len(short)} of {len(updates)} set-ups" if len(updates) > 1 else ""
        return f"Nothing is known about {shared}{of}: {_unproven(short)}."
    if not worst.leaks:
        every = f" in any of {len(updates)} set-ups" if len(updates) > 1 else ""
        reasons = by_cause([u.verdict for u in updates if u.verdict is not None])
        return f"{who} could not reconstruct private {what} from {shared}{every}{f': {reasons}' if reasons else ''}."
    hit = [u for u in updates if u.outcome is worst]
    partly = "partly " if worst is Outcome.PARTIAL else ""
    of = f" in {len(hit)} of {len(updates)} set-ups" if len(updates) > 1 else ""
    most = ", most clearly from" if len(hit) > 1 else ":"
    name = shown.setting or shown.name
    return f"{who} could {partly}reconstruct private {what} from {shared}{of}{most} {name} ({quality(shown)})."


def _unproven(short: Sequence[Update]) -> str:
    """Why these negatives are no evidence."""
    verdicts = [u.verdict for u in short if u.verdict is not None]
    if all(verdict.cause is Cause.EFFORT for verdict in verdicts):
        return _too_few_steps(short)
    return by_cause(verdicts)


def _too_few_steps(short: Sequence[Update]) -> str:
    steps = sorted({u.steps for u in short if u.steps is not None})
    enough = max((u.enough_steps for u in short), default=0)
    return f"the attack took {_span(steps)} steps and needs at least {enough} for a negative to count as evidence"


def tally(updates: Sequence[Update]) -> str:
    """How many set-ups ended how."""
    counts = [(outcome, sum(u.outcome is outcome for u in updates)) for outcome in Outcome]
    return ", ".join(f"{count} {outcome.label}" for outcome, count in counts if count)


def _spent(updates: Sequence[Update]) -> str:
    steps = sorted({u.steps for u in updates if u.steps is not None})
    usual = sorted({u.usual_steps for u in updates if u.usual_steps is not None})
    parts = []
    if steps:
        word = "step" if steps[-1] == 1 else "steps"
        parts.append(f"{_span(steps)} {word} (default of the attack: {_span(usual) or 'unknown'})")
    parts.append(plural(max((u.restarts for u in updates), default=1), "restart"))
    parts.append(f"{plural(len(updates), 'set-up')}, {duration(sum(u.seconds for u in updates))} in all")
    return ", ".join(parts)


def _span(values: Sequence[int]) -> str:
    return "" if not values else str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
