"""The verdict on each question in plain sentences, with what it assumes and what was spent on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leakgauge.audit.advice.match import interval, number, quality
from leakgauge.audit.advice.on_defenses import broken_elsewhere, cost_is_unknown, none_is_cheap, use_defense
from leakgauge.audit.advice.on_split import whole_on_edge
from leakgauge.audit.advice.on_training import CONTROL_LIMIT, members_told, unclean
from leakgauge.audit.findings import Findings
from leakgauge.audit.phrasing import duration, plural
from leakgauge.audit.questions import QUESTIONS, Question
from leakgauge.audit.summaries import (
    HELD,
    LEAKING,
    Defenses,
    Split,
    Training,
    Unanswered,
    Update,
    Updates,
)

Tone = Literal["bad", "partly", "good", "none"]
GUESSING = 0.5
"""The AUC of one who guesses."""
SERVER, MALICIOUS = "an honest-but-curious server", "a malicious server"

LIMITS = (
    "A negative verdict is no proof of safety. It says that these attacks, with these steps, restarts and images, did not succeed; "
    "others may. A reconstruction, once it is there, is a proof.",
    "Diagnostic results are upper bounds: the adversary was given something that an ordinary server does not have.",
    "Results are about a server that keeps to the protocol and looks, except where they name a malicious one.",
    "Every verdict is about this model with these weights, these images and this set-up. Another checkpoint, larger images or "
    "other people's data can leak more.",
    "Defenses were attacked by an adversary that does not adapt to them, unless what it is taken to know says otherwise; noise without "
    "an accountant bounds nothing.",
)
"""What no audit says, whatever it found."""


_BADGES: Mapping[str, tuple[Tone, str]] = {
    "feasible": ("bad", "Leaks"),
    "partial": ("partly", "Leaks in part"),
    HELD: ("good", "Held within budget"),
}
_WORDS: Mapping[str, str] = {"feasible": "feasible", "partial": "partial", HELD: "infeasible within budget"}


@dataclass(frozen=True)
class QuestionVerdict:
    """One question's answer: a word for its badge, sentences, what is assumed (by kind) and what was spent."""

    question: Question
    asked: str
    tone: Tone
    word: str
    sentences: tuple[str, ...]
    assumptions: tuple[tuple[str, str], ...] = ()
    budget: str = ""


def verdicts(found: Findings) -> tuple[QuestionVerdict, ...]:
    """All four questions in their order; one that has no answer says so."""
    made: dict[Question, QuestionVerdict] = {}
    if found.updates is not None:
        made["updates"] = _updates(found.updates)
    if found.training is not None:
        made["training"] = _training(found.training, found)
    if found.split is not None:
        made["split"] = _split(found.split)
    if found.defenses is not None:
        made["defenses"] = _defenses(found.defenses, found)
    why = {missing.question: missing for missing in found.unanswered}
    for late in found.waiting:
        if late.question in made:
            done = made[late.question]
            made[late.question] = replace(done, sentences=(*done.sentences, f"{late}: the run was stopped before."))
    return tuple(made.get(q) or _unanswered(q, why.get(q, Unanswered(q))) for q in QUESTIONS)


def _unanswered(question: Question, why: Unanswered) -> QuestionVerdict:
    if why.reason:
        return QuestionVerdict(
            question, QUESTIONS[question], "none", "No result", (f"This was tried and gave no result: {why.reason}.",)
        )
    word, said = "Not asked", "This was not measured, so nothing is known about it."
    if not why.reached:
        word, said = "Not reached", "The run was stopped before it came to this question, so nothing is known about it."
    return QuestionVerdict(question, QUESTIONS[question], "none", word, (said,))


def _updates(found: Updates) -> QuestionVerdict:
    honest, malicious = [u for u in found.own if not u.malicious], [u for u in found.own if u.malicious]
    plain = [u for u in honest if u.plain]
    ordinary, helped = [u for u in plain if not u.diagnostic], [u for u in plain if u.diagnostic]
    first = ordinary or helped or honest or malicious or list(found.judged)
    worst = _worst(first)
    said = [_reconstructed(first, worst, "" if ordinary else "With diagnostic help " if helped else "")]
    if ordinary and helped:
        said.append(f"With diagnostic help (upper bound): {_tally(helped)}.")
    if honest and malicious:
        said.append(f"With a malicious server: {_tally(malicious)}.")
    defended = [u for u in honest if u.defenses]
    if defended and (ordinary or helped):
        said.append(f"With a defense: {_tally(defended)}.")
    if found.flips:
        moves = dict.fromkeys(f"{flip.change} makes it {_WORDS[flip.makes]}" for flip in found.flips)
        said.append(f"Single changes that move a verdict: {'; '.join(moves)}.")
    tone, word = _BADGES[worst]
    bound = "" if ordinary or not helped or worst == HELD else " (upper bound)"
    assumed = _assumed(
        [what for u in first for what in u.deployable],
        [what for u in first for what in u.diagnostic],
        [what for u in first for what in u.malicious],
    ) or (("deployable", "nothing beyond the model and what is shared"),)
    return QuestionVerdict(
        "updates", QUESTIONS["updates"], tone, word + bound, tuple(said), assumed, _spent(found.every)
    )


def _assumed(
    deployable: Sequence[str], diagnostic: Sequence[str], malicious: Sequence[str] = ()
) -> tuple[tuple[str, str], ...]:
    kinds = (("deployable", deployable), ("diagnostic", diagnostic), ("malicious", malicious))
    return tuple((kind, "; ".join(dict.fromkeys(what))) for kind, what in kinds if what)


def _reconstructed(updates: Sequence[Update], worst: str, prefix: str) -> str:
    server = prefix + (MALICIOUS if all(u.malicious for u in updates) else SERVER)
    who = server[0].upper() + server[1:]
    shared = "defended updates" if all(u.defenses for u in updates) else "plain updates"
    if worst == HELD:
        every = f" in any of {len(updates)} set-ups" if len(updates) > 1 else ""
        return f"{who} could not reconstruct private images from {shared}{every} within the budget spent."
    hit = sorted((u for u in updates if u.outcome == worst), key=lambda u: -(u.ssim or 0.0))
    partly = "partly " if worst == "partial" else ""
    of = f" in {len(hit)} of {len(updates)} set-ups" if len(updates) > 1 else ""
    most = ", most clearly from" if len(hit) > 1 else ":"
    name = hit[0].name.removesuffix(f", {hit[0].attack}")
    return f"{who} could {partly}reconstruct private images from {shared}{of}{most} {name} ({quality(hit[0])})."


def _worst(updates: Sequence[Update]) -> str:
    outcomes = {u.outcome for u in updates}
    return next(outcome for outcome in ("feasible", "partial", HELD) if outcome in outcomes)


def _tally(updates: Sequence[Update]) -> str:
    counts = [(word, sum(u.outcome == key for u in updates)) for key, word in _WORDS.items()]
    return ", ".join(f"{count} {word}" for word, count in counts if count)


def _spent(updates: Sequence[Update]) -> str:
    steps = sorted({u.steps for u in updates if u.steps is not None})
    usual = sorted({u.usual_steps for u in updates if u.usual_steps is not None})
    parts = []
    if steps:
        parts.append(f"{_span(steps)} {_steps(steps)} (default of the attack: {_span(usual) or 'unknown'})")
    parts.append(plural(max((u.restarts for u in updates), default=1), "restart"))
    parts.append(f"{plural(len(updates), 'set-up')}, {duration(sum(u.seconds for u in updates))} in all")
    return ", ".join(parts)


def _span(values: Sequence[int]) -> str:
    return "" if not values else str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def _steps(values: Sequence[int]) -> str:
    return "step" if values[-1] == 1 else "steps"


def _training(training: Training, found: Findings) -> QuestionVerdict:
    said = []
    told = members_told(found) is not None
    if training.alarm_at is not None:
        said.append(
            f"The alarm fired at step {training.alarm_at} of {training.steps}: gradients tell about their batches."
        )
    else:
        said.append(f"The alarm stayed silent for {plural(training.steps, 'step')}, which is no evidence of safety.")
    if training.peak is not None and training.last is not None:
        most = "" if training.ceiling is None else f" of at most ln K = {training.ceiling:.2f}"
        said.append(
            f"The critic read most at step {training.peak.step}: {interval(training.peak)} nats{most}; at the end "
            f"{interval(training.last)}."
        )
    else:
        said.append("Too few steps were scored for the critic to say anything.")
    if training.auc is not None:
        who, how = "One who holds the weights and a list of candidates", interval(training.auc)
        shown = training.auc.low is None or training.auc.low > GUESSING
        told_how = (
            f"tells members with an AUC of {how}" if shown else f"was not shown to do better than guessing: AUC {how}"
        )
        said.append(f"{who} {told_how}.")
    failed = unclean(training)
    if failed:
        said.append(f"Controls failed ({', '.join(name for name, _ in failed)}), so that curve and alarm do not count.")
    elif training.controls:
        said.append("The controls (null, decoy, noise) are clean.")
        if training.layers and training.layers[0][1] > CONTROL_LIMIT:
            name, nats = training.layers[0]
            said.append(f"The layer that tells most by itself is {name} ({nats:.2f} nats).")
    loud = training.alarm_at is not None and not failed
    tone: Tone
    if loud or told:
        tone, word = "bad", "Alarm" if loud else "Members told"
    elif failed:
        tone, word = "partly", "Controls failed"
    elif training.auc is not None and training.auc.low is not None and training.auc.low > GUESSING:
        tone, word = "partly", "Members told in part"
    else:
        tone, word = ("none", "Too short to say") if training.peak is None else ("good", "Alarm silent")
    assumed = [("deployable", f"the adversary sees every {training.view} gradient and has seen earlier steps")]
    if training.auc is not None:
        assumed.append(("diagnostic", "for the AUC also the weights at each step and a list of candidates"))
    time = "" if training.seconds is None else f", {duration(training.seconds)}"
    budget = f"{plural(training.steps, 'training step')}, the last numbers over {plural(training.scored, 'scored step')}{time}"
    return QuestionVerdict("training", QUESTIONS["training"], tone, word, tuple(said), tuple(assumed), budget)


def _split(split: Split) -> QuestionVerdict:
    asked = QUESTIONS["split"]
    if not split.finished:
        return QuestionVerdict("split", asked, "none", "Not finished", ("The scan of cuts has no conclusion yet.",))
    assumed = (("deployable", split.threat),) if split.threat else ()
    if split.recommended is None:
        more = f" and meets {split.require}" if split.require else ""
        best = (
            ""
            if split.safest_fvu is None
            else f" The most that one keeps is {split.safest_fvu:.2f}, at {split.safest}."
        )
        of = f" of {split.cuts}" if split.cuts > 1 else ""
        said = f"No cut{of} keeps an FVU of {split.threshold:g}{more}.{best}"
        return QuestionVerdict("split", asked, "bad", "No cut", (said,), assumed, split.budget)
    if whole_on_edge(split):
        said = (
            f"Only the model's output ({split.recommended}) keeps an FVU of {split.threshold:g}, with {number(split.fvu, 2)}: the device "
            f"does all the work and sends {split.bytes} bytes."
        )
        return QuestionVerdict("split", asked, "partly", "Only the output", (said,), assumed, split.budget)
    deep = "" if split.edge_share is None else f"; the edge holds {100 * split.edge_share:.0f} % of the weights"
    said = (
        f"At {split.recommended} or deeper: it keeps an FVU of {number(split.fvu, 2)} (threshold {split.threshold:g}; 0 is a copy of "
        f"the image, 1 is the mean image) and sends {split.bytes} bytes{deep}."
    )
    return QuestionVerdict("split", asked, "good", "Cut found", (said,), assumed, split.budget)


def _none_of(count: int) -> str:
    return "the one defense that was tried cannot" if count == 1 else f"none of {count} defenses can"


def broken_in_words(found: Findings) -> str:
    """Which defenses held in the comparison and leak in a set-up of the same report; empty where none does."""
    each = [
        f"under {row.defense} {update.anchor.replace('case-', 'set-up ')} is {_WORDS[str(update.outcome)]}"
        + ("" if update.steps is None else f" after {plural(update.steps, 'step')}")
        for row, update in broken_elsewhere(found)
    ]
    return f"But not everywhere: {'; '.join(each)}." if each else ""


def _defenses(defenses: Defenses, found: Findings) -> QuestionVerdict:
    base, rows = defenses.undefended, defenses.rows
    held = [row for row in rows if row.outcome == HELD]
    asked, where = QUESTIONS["defenses"], f" ({defenses.setting})" if defenses.setting else ""
    tone: Tone
    if base.outcome is None:
        tone, word = "none", "No result"
        said = [f"The attack without a defense gave no result{where}: {base.reason or 'no reason was recorded'}."]
    elif base.outcome == HELD:
        tone, word = "none", "Nothing to defend"
        said = [
            f"The attack fails without a defense too{where}, so that {_none_of(len(rows))} show what it buys against it."
        ]
        leaking = [row for row in rows if row.outcome in LEAKING]
        if leaking:
            under = ", ".join(f"{row.defense} ({_WORDS[str(row.outcome)]})" for row in leaking)
            said.append(
                f"Yet it leaks under {under}: at this budget it succeeds or fails by chance; give it more steps."
            )
    else:
        use, dear = use_defense(found), none_is_cheap(found)
        tone, word = ("good", "Defense found") if use else ("bad", "No cheap defense")
        unpriced = cost_is_unknown(found)
        tone, word = ("partly", "Cost unknown") if unpriced else (tone, word)
        said = [f"{len(held)} of {plural(len(rows), 'defense')} made the attack infeasible within its budget{where}."]
        said += [broken] if (broken := broken_in_words(found)) else []
        said += [f"The cheapest one worth having is {use.facts['defense']}, for {use.facts['cost']}."] if use else []
        known = "None is known to be cheap" if unpriced else "None is cheap"
        said += [f"{known}: {dear.facts['best']}."] if dear else []
    told = sorted({f"{row.auc:.2f}" for row in (rows if base.outcome == HELD else held) if row.auc is not None})
    if told:
        span = told[0] if told[0] == told[-1] else f"{told[0]} to {told[-1]}"
        said.append(f"Behind them members of a batch are told with an AUC of {span} (0.5 is guessing).")
    spent = [(defenses.steps, "attack"), (defenses.train_steps, "training")]
    parts = [f"{plural(count, 'step')} of {what} each" for count, what in spent if count is not None]
    budget = ", ".join([*parts, f"{duration(defenses.seconds)} in all"])
    assumed = _assumed(defenses.deployable, defenses.diagnostic)
    return QuestionVerdict("defenses", asked, tone, word, tuple(said), assumed, budget)
