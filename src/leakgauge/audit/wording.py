"""All sentences about results, made of findings, verdicts and records. Every view shows these: page, terminal, Markdown, JUnit, JSON.

Numbers are written by :mod:`leakgauge.audit.phrasing`. What to do about a finding is in :mod:`leakgauge.audit.advice`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from leakgauge.audit.case import accepted_options, enough_steps, uses_of
from leakgauge.audit.findings import (
    EXPLAINED,
    LEAST_DROP,
    MISFIT,
    Defended,
    Defenses,
    Findings,
    Measured,
    Split,
    Training,
    Unanswered,
    Update,
    Updates,
)
from leakgauge.audit.phrasing import duration, few, metric, number, plural
from leakgauge.audit.questions import QUESTIONS, Question
from leakgauge.audit.questions.answers import Waiting
from leakgauge.audit.questions.defenses import DefenseRecord
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.questions.updates import GUIDED, Explanation
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import Cause, Check, Evidence, Outcome, Verdict, Way
from leakgauge.channels.facts import LocalTraining
from leakgauge.core import Raced
from leakgauge.data.facts import DataFacts
from leakgauge.data.levels import BITS, Levels
from leakgauge.measures.membership import Rate
from leakgauge.monitor.summary import conclusion

if TYPE_CHECKING:
    from leakgauge.audit.evaluate import Result

METRICS: Mapping[str, tuple[str, str]] = {
    "psnr": ("PSNR", "higher = closer to the original"),
    "ssim": ("SSIM", "higher = closer to the original"),
    "ssim_reduced": ("SSIM at reduced size", "averaged down to 64 pixels a side; higher = closer to the original"),
    "psnr_reduced": ("PSNR at reduced size", "averaged down to 64 pixels a side; higher = closer to the original"),
    "lpips": ("LPIPS", "lower = closer to the original"),
    "mse": ("MSE", "lower = closer to the original"),
    "reid": ("Re-identification rank", "1 = the original is the closest image"),
    "layout": ("Layout correlation", "1 = everything is where it is in the original"),
    "layout_rank": ("Re-identification rank by layout", "1 = no other image has a more similar layout"),
    "pieces": ("Patch correlation", "1 = every patch is there, in any order"),
    "pieces_lead": ("Patch lead", "above 0 = the patches fit no other image as well"),
    "labels": ("Labels recovered", "higher = more labels read"),
}
"""Name of each metric and how to read it."""
CERTAIN_LABEL = 0.995
"""Expected accuracy from which labels count as certain."""
OPTIONAL = ("ssim_reduced", "psnr_reduced", "pieces", "pieces_lead")
"""Metrics of large images and of models that cut images into patches; elsewhere they are not missed."""
SEEN: Mapping[Evidence, str] = {"ssim": "SSIM", "layout": "layout correlation", "pieces_lead": "patch lead"}
"""The evidence inside a sentence."""
SERVER, MALICIOUS = "an honest-but-curious server", "a malicious server"

LIMITS = (
    "A negative verdict does not prove safety. It says that these attacks, with these steps, restarts and images, did not succeed; others "
    "may. A reconstruction is proof.",
    "Diagnostic results are upper bounds: the adversary was given something that an ordinary server does not have.",
    "Results are about a server that follows the protocol and looks, except where they name a malicious one.",
    "Every verdict is about this model with these weights, these images and this set-up. Another checkpoint, larger images or other "
    "people's data can leak more.",
    "Defenses were attacked by an adversary that does not adapt to them, unless its stated knowledge says otherwise. Noise without an "
    "accountant bounds nothing.",
)
"""What no audit says, whatever it found."""


def interval(measured: Measured, *, brackets: bool = True) -> str:
    """
    >>> interval(Measured(5, 0.346, 0.2, 0.487)), interval(Measured(5, 1.0))
    ('0.35 (95 % CI 0.20 to 0.49)', '1.00')
    >>> interval(Measured(5, 0.346, 0.2, 0.487), brackets=False)
    '0.35, 95 % CI 0.20 to 0.49'
    """
    value = number(measured.value, 2)
    if measured.low is None or measured.high is None:
        return value
    spread = f"95 % CI {number(measured.low, 2)} to {number(measured.high, 2)}"
    return f"{value} ({spread})" if brackets else f"{value}, {spread}"


# The data

MADE_UP = "The images have no classes, so their labels are made up (0, 1, 2, …) and not scored."
NO_CLASSES = "The images have no classes, so accuracy and measures by class are left out."


def data_notes(data: DataFacts, *, labels: str = MADE_UP) -> list[str]:
    """What must be known about the data; nothing for images of 8 bits with labels of their own.

    >>> data_notes(DataFacts(levels=Levels(0, 4095, "values")))
    ['The images are read at 12 bits (black is 0, white is 4095), because their largest value fits in that.']
    """
    return [
        *([] if data.labelled else [labels]),
        *([f"The images are read {how}."] if (how := read_at(data.levels)) else []),
    ]


def read_at(levels: Levels) -> str:
    """At which depth or window images are read, and why; empty for the usual one.

    >>> read_at(Levels(-160, 239, "file"))
    'at a window (black is -160, white is 239), as the files say'
    """
    if levels.known_by == "type":
        return ""
    bits = next((f"{n} bits" for n in BITS if (levels.black, levels.white) == (0, 2**n - 1)), "")
    why = {
        "file": "as the files say",
        "values": "because their largest value fits in that" if bits else "their lowest and highest value",
        "window": "as asked",
    }[levels.known_by]
    return f"at {bits or 'a window'} (black is {levels.black:g}, white is {levels.white:g}), {why}"


# One verdict


def rule(verdict: Verdict) -> str:
    """What decided a verdict, in one line.

    >>> rule(Verdict(Outcome.PARTIAL, "deployable", 4, 1, missed=Check("ssim", 0.38, above="zero")))
    '1 of 4 images passes every check; another misses: SSIM at least 0.38 (deployable)'
    >>> rule(Verdict(Outcome.PARTIAL, "deployable", 4, glimpsed={Way.CLOSENESS: 1, Way.LAYOUT: 1}, missed=Check("reid", 1, above="zero")))
    '2 of 4 images beat the null run (1 by layout alone); none is reconstructed, missed: re-identified at rank 1 or better (deployable)'
    """
    if not verdict.compared:
        are = "image is" if verdict.images == 1 else "images are"
        return f"{verdict.certified} of {verdict.images} {are} certified exact, without the truth ({verdict.kind})"
    missed = "" if verdict.missed is None else check(verdict.missed)
    count = f"{verdict.reconstructed} of {plural(verdict.images, 'image')}"
    if verdict.reconstructed:
        passes = "passes" if verdict.reconstructed == 1 else "pass"
        reduced = f" ({verdict.at_reduced_size} at reduced size)" if verdict.at_reduced_size else ""
        another = f"; another misses: {missed}" if missed and verdict.outcome is not Outcome.FEASIBLE else ""
        proven = f"; {verdict.certified} certified exact" if verdict.certified else ""
        return f"{count} {passes} every check{reduced}{another}{proven} ({verdict.kind})"
    seen = sum(verdict.glimpsed.values())
    if seen:
        alone = [f"{n} by {_WAYS[way]} alone" for way, n in verdict.glimpsed.items() if way in _WAYS]
        beat = "beats" if seen == 1 else "beat"
        how = f" ({', '.join(alone)})" if alone else ""
        none = "it is not reconstructed" if verdict.images == 1 else "none is reconstructed"
        return f"{seen} of {plural(verdict.images, 'image')} {beat} the null run{how}; {none}, missed: {missed} ({verdict.kind})"
    if verdict.outcome.leaks:  # an old record of which the outcome alone is known
        return f"{verdict.outcome.label} ({verdict.kind})"
    none = "the image does not beat" if verdict.images == 1 else f"none of {verdict.images} images beats"
    why = "" if verdict.cause is None else f"; no evidence: {CAUSES[verdict.cause]}"
    return f"{none} the null run{f'; missed: {missed}' if missed else ''}{why} ({verdict.kind})"


CAUSES: Mapping[Cause, str] = {Cause.EFFORT: "not enough effort"}
"""Why a negative is no evidence."""
_WAYS: Mapping[Way, str] = {Way.STRUCTURE: "SSIM", Way.LAYOUT: "layout", Way.PIECES: "patches"}


def check(what: Check) -> str:
    """One check of the table.

    >>> check(Check("psnr", 2.6, above="null")), check(Check("lpips", 0.02, above="baseline"))
    ('PSNR at least 2.6 dB above the null run', 'LPIPS at least 0.02 below the trivial baseline')
    """
    bar = {"zero": "", "null": "the null run", "baseline": "the trivial baseline"}[what.above]
    if what.metric == "reid":
        return f"re-identified at rank {what.margin:g} or better"
    if what.metric == "layout_rank":
        return f"re-identified by layout at rank {what.margin:g} or better"
    if what.metric == "pieces_lead":
        than = f"patches of {bar}" if bar else "any other image"
        return f"patches fit the original better than {than}, by {what.margin:g}"
    unit = " dB" if what.metric in ("psnr", "psnr_reduced") else ""
    side = "" if not bar else f" below {bar}" if what.metric == "lpips" else f" above {bar}"
    return f"{METRICS[what.metric][0]} at least {what.margin:g}{unit}{side}"


def counted(verdict: Verdict) -> str:
    """How many images of a batch a partial verdict is about."""
    return rule(replace(verdict, missed=None)).partition(";")[0].removesuffix(f" ({verdict.kind})")


def quality(update: Update) -> str:
    """How well an attack saw, beside its null run. In a batch that leaks in part the count comes first, since a mean says little.

    >>> held = Verdict(Outcome.FEASIBLE, "deployable", 1, 1)
    >>> quality(Update(1, "a", held, ssim=0.91, psnr=19.44, null_ssim=0.135, null_psnr=9.0))
    'SSIM 0.91, PSNR 19.4 dB; null run: SSIM 0.14, PSNR 9.0 dB'
    """
    said = []
    verdict = update.verdict
    if verdict is not None and not verdict.compared:
        return counted(verdict)
    if verdict is not None and verdict.outcome is Outcome.PARTIAL and update.images > 1:
        said.append(counted(verdict))
    if update.evidence != "ssim":
        value, null = (getattr(update, f"{side}{update.evidence}") for side in ("", "null_"))
        said.append(f"{SEEN[update.evidence]} {number(value, 2)}, null run {number(null, 2)}")
    mean = "on average " if said and update.images > 1 else ""
    said.append(
        f"{mean}SSIM {number(update.ssim, 2)}, PSNR {number(update.psnr, 1)} dB; "
        f"null run: SSIM {number(update.null_ssim, 2)}, PSNR {number(update.null_psnr, 1)} dB"
    )
    return "; ".join(said)


def labels_expected(batch: int, accuracy: float | None) -> str:
    """How many labels an attack expects to have read, before anybody compares them; empty if it does not say.

    >>> labels_expected(32, 0.9), labels_expected(4, 1.0)
    ('about 29 of 32 labels are expected to be right, in any order', 'all 4 labels are expected to be right, in any order')
    >>> labels_expected(1, 1.0), labels_expected(4, None)
    ('right with a probability of 100 %', '')
    """
    if accuracy is None:
        return ""
    if batch == 1:
        return f"right with a probability of {100 * accuracy:.0f} %"
    count = f"all {batch}" if accuracy >= CERTAIN_LABEL else f"about {round(accuracy * batch)} of {batch}"
    return f"{count} labels are expected to be right, in any order"


def labels_sentence(batch: int, accuracy: float | None, right: float | None) -> str:
    """What an attack expected of the labels of a batch, beside what was found.

    >>> labels_sentence(32, 0.9, 0.875)
    'About 29 of 32 labels are expected to be right, in any order; 28 are.'
    """
    said = labels_expected(batch, accuracy)
    if batch == 1 or not said:
        return ""
    found = "" if right is None else f"; {round(right * batch)} are"
    return f"{said[0].upper()}{said[1:]}{found}."


def evaluation(found: Result) -> str:
    """The result of one attack: what happened, by which numbers, and under which assumptions."""
    label, sides = found.outcome.label, {"null run": found.null, "trivial baseline": found.baseline}
    decided = rule(found.verdict)
    lines = [f"{one[0].upper()}{one[1:]}." for one in (f"{label}. {found.outcome.meaning.removesuffix('.')}", decided)]
    for name in dict.fromkeys(("ssim", "psnr", found.verdict.evidence)):
        others = [
            f"{side} {metric(name, m, unit=True)}" for side, one in sides.items() if (m := one.mean(name)) is not None
        ]
        lines.append(f"{METRICS[name][0]} {metric(name, found.scores.mean(name), unit=True)} ({', '.join(others)}).")
    said = labels_sentence(len(found.order), found.reconstruction.label_accuracy, found.scores.mean("labels"))
    lines += [said] if said else []
    known = "; ".join(assumption.what for assumption in found.assumptions) or "nothing beyond the signal"
    return "\n".join([*lines, f"{found.victim}, {found.channel}. Assumed: {known}."])


# One record


def certificates(record: Record) -> str:
    """Which images of a batch the attack certified; empty where it has no certificates.

    >>> from types import SimpleNamespace
    >>> certificates(SimpleNamespace(certified=(True, False, True)))
    'Certified exact without the truth: 2 of 3 images (1, 3).'
    """
    if not record.certified:
        return ""
    proven = [str(place) for place, one in enumerate(record.certified, start=1) if one]
    which = f" ({', '.join(proven)})" if proven and len(proven) < len(record.certified) else ""
    return f"Certified exact without the truth: {len(proven)} of {plural(len(record.certified), 'image')}{which}."


def labels_of(record: Record) -> str:
    """:func:`labels_sentence` of a record; empty if it has none."""
    right = None if record.scores is None else record.scores.mean("labels")
    return labels_sentence(record.case.images, record.label_accuracy, right)


def identifiable(record: Record) -> str:
    """How much of the images is determined near the truth; empty where that was not measured.

    >>> from types import SimpleNamespace
    >>> from leakgauge.audit.identifiability import Identifiable
    >>> identifiable(SimpleNamespace(identifiable=Identifiable(784, 512, 1e-8, "rounding", 31.42, 2.0, 0.0)))
    'Near the true images, what is shared determines 512 of 784 directions above rounding; the local limit is a PSNR of 31.4 dB.'
    """
    found = record.identifiable
    if found is None:
        return ""
    level = "rounding" if found.source == "rounding" else "the defense's noise"
    return (
        f"Near the true images, what is shared determines {found.above} of {plural(found.directions, 'direction')} above {level}; the "
        f"local limit is a PSNR of {number(found.psnr, 1)} dB."
    )


@dataclass(frozen=True)
class Ending:
    """How a set-up ended: a key for style sheets, a badge and what it means."""

    key: str
    label: str
    meaning: str


ENDINGS: Mapping[str, Ending] = {
    **{one.value: Ending(one.value, one.label[0].upper() + one.label[1:], one.meaning) for one in Outcome},
    "refused": Ending(
        "refused", "Refused", "The attack does not apply to this set-up and was not run. It has no score."
    ),
    "error": Ending("error", "Error", "The run broke before it could be judged. It has no score."),
    "withdrawn": Ending("withdrawn", "Withdrawn", "The record was withdrawn after the run. It has no score."),
    "unjudged": Ending("unjudged", "No verdict", "The attack ran, but no verdict was recorded."),
    "unscored": Ending(
        "unscored", "No verdict", "The true images are not known here, so there is nothing to compare with."
    ),
}


def ending(record: Record) -> Ending:
    """How the record ended. A refusal or an error never carries a verdict, whatever else the record holds."""
    if record.status != "done":
        return ENDINGS[record.status]
    if record.outcome is None:
        return ENDINGS["unjudged" if record.captured is None else "unscored"]
    return ENDINGS[record.outcome.value]


def result(record: Record) -> str:
    """The outcome in a few words, or why there is none."""
    if record.status == "done" and record.outcome is None:
        return ending(record).label.lower()
    return f"{record.status}: {record.reason}" if record.outcome is None else record.outcome.label


def server_of(records: Sequence[Record]) -> str:
    """Whom the set-ups are about that were asked for; single changes say themselves what they change."""
    own = [r for r in records if r.change is None] or records
    dishonest = [bool(r.assumed("malicious") or r.case.server) for r in own]
    if not any(dishonest):
        return SERVER
    return MALICIOUS if all(dishonest) else f"a server (malicious in {sum(dishonest)} of them)"


def case_sentence(record: Record) -> str:
    """The verdict of one set-up in one sentence; the rule and the reason of a refusal are shown beside it."""
    return {
        "feasible": "An adversary with the knowledge listed below could reconstruct private images.",
        "partial": "An adversary with the knowledge listed below could partially reconstruct private images.",
        "inconclusive": f"Nothing was reconstructed, and that is no evidence: {_unproven(record)}.",
        "infeasible_within_budget": f"No private image was reconstructed within the budget spent ({_budget(record)}).",
        "refused": "The attack does not apply to this set-up and was not run, so there is no score.",
        "error": "The run broke before it could be judged, so there is no score.",
        "withdrawn": "The record was withdrawn after the run, so there is no score.",
        "unjudged": "The attack ran, but no verdict was recorded.",
        "unscored": NO_TRUTH,
    }[ending(record).key]


NO_TRUTH = "There is no verdict, because the true images are not known here: look at the pictures, or give the private batch with --truth."


def explained(record: Record) -> list[tuple[str, str]]:
    """How well the captured update is explained, and which labels were read, as rows of a table."""
    found = record.captured
    if found is None:
        return []
    sides = {
        "Mismatch of the reconstruction": found.mismatch,
        "Mismatch of the null run": found.null_mismatch,
        "Mismatch of the true batch": found.truth_mismatch,
    }
    rows = [(name, number(value, 3)) for name, value in sides.items() if value is not None]
    labels = "none" if found.labels is None else ", ".join(map(str, found.labels))
    expected = labels_expected(record.case.images, record.label_accuracy)
    return [*rows, ("Labels read", f"{labels} ({expected})" if expected else labels)]


def captured_warnings(record: Record) -> list[str]:
    """What may be wrong with an attack on a captured update, one sentence each."""
    found, said = record.captured, list[str]()
    if found is None or record.status != "done":
        return said
    shows = "" if found.mismatch is None else f" (mismatch {number(found.mismatch, 2)}, where 0 explains the update)"
    if found.start == "random":
        said.append(
            f"No --weights were given and {record.case.model} draws its weights at random, so the update was replayed at weights that no "
            f"server had sent{shows}; give the weights that it had sent."
        )
    elif found.start == "fixed" and (found.mismatch or 0) > MISFIT:
        said.append(
            f"No --weights were given, so the update was replayed at the weights that {record.case.model} comes with{shows}; if the server "
            "had sent others, give them."
        )
    if (found.truth_mismatch or 0) > EXPLAINED:
        said.append(
            f"The true batch itself does not explain the update (mismatch {number(found.truth_mismatch, 2)}): noise was added to it, or "
            "weights, mode, local steps, learning rate or --truth are not the client's."
        )
    if found.statistics and "statistics" not in uses_of(record.case.attack):
        said.append(
            f"Running statistics of the batch came with the update, but {record.case.attack} does not use them; --attack {GUIDED} does."
        )
    return said


def _unproven(record: Record) -> str:
    """Why a negative is no evidence, with what was spent."""
    return f"a search needs at least {plural(enough_steps(record.case), 'step')} to succeed (spent: {_budget(record)})"


def bound_sentence(record: Record) -> str:
    """What diagnostic assumptions do to the verdict: success is an upper bound, failure failed in spite of the help."""
    count = len(record.assumed("diagnostic"))
    if not count or record.outcome is None or not record.outcome.conclusive:
        return ""
    granted = plural(count, "diagnostic assumption")
    if record.outcome is Outcome.INFEASIBLE:
        return f"This holds although {granted} gave the adversary more than a real server has."
    return f"It rests on {granted} and is an upper bound."


def _budget(record: Record) -> str:
    spent = []
    steps = record.case.options.get("steps")
    if isinstance(steps, int):
        spent.append(plural(steps, "step"))
    tries = len(record.curve.losses) or max((len(v) for v in record.restarts.values()), default=0)
    if tries:
        spent.append(plural(tries, "restart"))
    return ", ".join([*spent, duration(record.seconds)])


def raced(record: Record) -> str:
    """What an attack that tries several tried, the chosen one first; empty for any other.

    >>> from leakgauge.core import Raced
    >>> told = (Raced("dlg", 20, 0.5), Raced("linear", refused="the first layer is a Conv2d"), Raced("tag", 100, 0.01, chosen=True))
    >>> from types import SimpleNamespace
    >>> raced(SimpleNamespace(raced=told))
    'tag (chosen; 100 steps, mismatch 0.01); dlg (20 steps, mismatch 0.5); does not apply: linear (the first layer is a Conv2d)'
    """
    ran = sorted((one for one in record.raced if not one.refused), key=lambda one: not one.chosen)
    said = [f"{one.name} ({'chosen; ' if one.chosen else ''}{_reached(one)})" for one in ran]
    refused = [f"{one.name} ({one.refused})" for one in record.raced if one.refused]
    return "; ".join([*said, *([f"does not apply: {', '.join(refused)}"] if refused else [])])


def _reached(one: Raced) -> str:
    effort = plural(one.steps, "step") if one.steps else "closed form"
    return effort if one.mismatch is None else f"{effort}, mismatch {one.mismatch:.2g}"


def described(record: Record) -> str:
    """One sentence: under which conditions, for which budget, with which outcome."""
    case = record.case
    kind = next((kind for kind in ("diagnostic", "malicious") if record.assumed(kind)), "deployable")
    options = {**accepted_options(case), **case.options}
    words = {"steps": "steps", "restarts": "restart(s)"}
    spent = "".join(f"{options[name]} {word}, " for name, word in words.items() if name in options)
    through = f"through {case.channel}, " if case.channel else ""
    through += f"with {', '.join(case.defenses)}, " if case.defenses else ""
    return (
        f"{result(record)}: {case.model} in {case.mode} mode, batch of {case.batch_size}, "
        f"local steps: {local_steps(record.local)}, {through}known to the adversary: {', '.join(case.reveal) or 'nothing'}; {kind}; "
        f"{spent}{record.seconds:.0f} s"
    )


def local_steps(found: LocalTraining | None) -> str:
    """The local training of a client as it was done.

    >>> local_steps(None)
    '1, the gradient is sent'
    >>> local_steps(LocalTraining(10, 32, 160, 2.0, 0.1, "SGD(momentum=0.9)", secret_order=True))
    '10 on batches of 32 (2 epochs of 160 images, shuffled), learning rate 0.1, SGD(momentum=0.9)'
    """
    if found is None:
        return "1, the gradient is sent"
    on = "the same batch" if found.steps > 1 and found.minibatch == found.images else "batches"
    epochs = f"{found.epochs:g} epoch{'' if found.epochs == 1 else 's'} of {plural(found.images, 'image')}"
    shuffled = ", shuffled" if found.secret_order else ""
    rate = f"learning rate {found.lr:g}, {found.optimizer}"
    return f"{found.steps} on {on} of {found.minibatch} ({epochs}{shuffled}), {rate}"


def explanation(found: Explanation) -> str:
    """The explanation as lines: the set-up, then each change that was tried, those that flip the verdict marked."""
    lines = [described(found.base)]
    for step in found.steps:
        mark = "flips" if step.flips else "     "
        reason = rule(step.record.verdict) if step.record.verdict is not None else step.record.reason
        outcome = step.record.status if step.record.outcome is None else step.record.outcome.label
        lines.append(f"  {mark}  {step.change.kind} {step.change.name}: {outcome} ({reason})")
    return "\n".join([*lines, flipping(found)])


def flipping(found: Explanation) -> str:
    """The single changes that flip the verdict, in one line."""
    names = [step.change.name for step in found.steps if step.flips]
    return f"changes that flip the verdict: {', '.join(names) or ('none of those tried' if found.steps else 'none was tried')}"


def waiting(late: Waiting) -> str:
    """
    >>> waiting(Waiting("updates", 5, 8)), waiting(Waiting("defenses", 1, 13))
    ('5 of 8 planned set-ups were not attacked', '1 of 13 planned trials was not run')
    """
    what, done = ("set-up", "attacked") if late.question == "updates" else ("trial", "run")
    return (
        f"{late.missing} of {plural(late.total, f'planned {what}')} {'was' if late.missing == 1 else 'were'} not {done}"
    )


# Defenses by name


def defense_words(spec: str) -> tuple[str, str]:
    """The defense and its strength for people; what is not known keeps its own name and options.

    >>> defense_words("gaussian_noise:relative=10.0"), defense_words("prune:0.9"), defense_words("withhold:position_embedding")
    (('Gaussian noise', '10 × gradient norm'), ('Pruning', '90 % of entries'), ('Withheld', 'position embedding'))
    >>> defense_words("dpsgd:clip=1.0,noise=0.5")
    ('DP-SGD', 'clip 1, noise 0.5')
    """
    name, _, options = spec.partition(":")
    first, *more = [part.strip() for part in options.split(",")]
    key, _, value = first.rpartition("=")
    known = _STRENGTHS.get((name, key)) if not more else None
    if name == "dpsgd":
        pairs = [part.partition("=") for part in (first, *more)]
        return _DEFENSES[name], ", ".join(f"{k.strip()} {_shortest(v)}" if v else _shortest(k) for k, _, v in pairs)
    if known is None:
        return (_DEFENSES.get(name) or name.replace("_", " ").capitalize()), options.replace("_", " ")
    figure = _figure(value)
    strength = known.format(value.replace("_", " ") if figure is None else f"{figure * (100 if '%' in known else 1):g}")
    return _DEFENSES[name], strength


_DEFENSES = {
    "gaussian_noise": "Gaussian noise",
    "laplacian_noise": "Laplacian noise",
    "clip": "Clipping",
    "prune": "Pruning",
    "quantize": "Quantisation",
    "dpsgd": "DP-SGD",
    "withhold": "Withheld",
}
_STRENGTHS = {
    **{(noise, "relative"): "{} × gradient norm" for noise in ("gaussian_noise", "laplacian_noise")},
    **{(noise, "std"): "deviation {}" for noise in ("gaussian_noise", "laplacian_noise")},
    **{("clip", key): "to norm {}" for key in ("", "norm")},
    **{("prune", key): "{} % of entries" for key in ("", "fraction")},
    **{("quantize", key): "{} bits" for key in ("", "bits")},
    **{("withhold", key): "{}" for key in ("", "roles")},
}
"""By name and option; a bare value has none."""


def _shortest(text: str) -> str:
    figure = _figure(text)
    return text.strip() if figure is None else f"{figure:g}"


def _figure(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# The four questions

Tone = Literal["bad", "partly", "good", "none"]
State = Literal["answered", "unfinished", "no_result", "not_asked", "not_reached"]


@dataclass(frozen=True)
class Statement:
    """One question's answer: a badge, sentences, what is assumed (by kind) and what was spent."""

    question: Question
    asked: str
    tone: Tone
    badge: str
    sentences: tuple[str, ...]
    assumptions: tuple[tuple[str, str], ...] = ()
    budget: str = ""
    state: State = "answered"

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


_BADGES: Mapping[Outcome, tuple[Tone, str]] = {
    Outcome.FEASIBLE: ("bad", "Leaks"),
    Outcome.PARTIAL: ("partly", "Leaks in part"),
    Outcome.INCONCLUSIVE: ("none", "Inconclusive"),
    Outcome.INFEASIBLE: ("good", "Held within budget"),
}


def statements(found: Findings) -> tuple[Statement, ...]:
    """All four questions in their order; one that has no answer says so."""
    made: dict[Question, Statement] = {}
    if found.updates is not None:
        made["updates"] = on_updates(found.updates)
    if found.training is not None:
        made["training"] = on_training(found.training)
    if found.split is not None:
        made["split"] = on_split(found.split)
    if found.defenses is not None:
        made["defenses"] = on_defenses(found.defenses)
    for late in found.waiting:
        if late.question in made:
            done = made[late.question]
            stopped = f"The run was stopped: {waiting(late)}."
            made[late.question] = replace(done, sentences=(*done.sentences, stopped), state="unfinished")
    for partly in found.incomplete:
        if partly.question in made:
            done = made[partly.question]
            ended = f"It ended early: {partly.reason}."
            made[partly.question] = replace(done, sentences=(*done.sentences, ended), state="unfinished")
    why = {missing.question: missing for missing in found.unanswered}
    return tuple(made.get(q) or _unanswered(q, why.get(q, Unanswered(q))) for q in QUESTIONS)


def _unanswered(question: Question, why: Unanswered) -> Statement:
    badge, said, state = "Not asked", "This was not measured, so nothing is known about it.", "not_asked"
    if why.reason:
        badge, said, state = "No result", f"This was tried and gave no result: {why.reason}.", "no_result"
    elif not why.reached:
        badge, state = "Not reached", "not_reached"
        said = "The run was stopped before it reached this question, so nothing is known about it."
    return Statement(question, QUESTIONS[question], "none", badge, (said,), state=state)


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
    assumed = _assumed([w for u in first for w in u.deployable], [w for u in first for w in u.diagnostic])
    return Statement("updates", QUESTIONS["updates"], "none", "No verdict", tuple(said), assumed, _spent(found.every))


def on_updates(found: Updates) -> Statement:
    if not found.judged:
        return on_captured(found)
    honest, malicious = [u for u in found.own if not u.malicious], [u for u in found.own if u.malicious]
    plain = [u for u in honest if u.plain]
    ordinary, helped = [u for u in plain if not u.diagnostic], [u for u in plain if u.diagnostic]
    first = ordinary or helped or honest or malicious or list(found.judged)
    worst = max((u.outcome for u in first if u.outcome is not None), key=lambda outcome: outcome.severity)
    said = [_reconstructed(first, worst, "With diagnostic help " if helped and not ordinary else "")]
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
    tone, badge = _BADGES[worst]
    bound = "" if ordinary or not helped or not worst.leaks else " (upper bound)"
    assumed = _assumed(
        [what for u in first for what in u.deployable],
        [what for u in first for what in u.diagnostic],
        [what for u in first for what in u.malicious],
    ) or (("deployable", "nothing beyond the model and what is shared"),)
    return Statement("updates", QUESTIONS["updates"], tone, badge + bound, tuple(said), assumed, _spent(found.every))


def broken_protocol(update: Update) -> str:
    """What a server gets that does not keep to the protocol: another threat model than that of all other sentences."""
    verdict = update.verdict
    count = 0 if verdict is None else verdict.reconstructed
    got = (
        f"it reconstructs {count} of {plural(update.batch, 'image')}" if count else "it reconstructs none of the images"
    )
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


def _assumed(
    deployable: Sequence[str], diagnostic: Sequence[str], malicious: Sequence[str] = ()
) -> tuple[tuple[str, str], ...]:
    kinds = (("deployable", deployable), ("diagnostic", diagnostic), ("malicious", malicious))
    return tuple((kind, "; ".join(dict.fromkeys(what))) for kind, what in kinds if what)


def _reconstructed(updates: Sequence[Update], worst: Outcome, prefix: str) -> str:
    server = prefix + (MALICIOUS if all(u.malicious for u in updates) else SERVER)
    who = server[0].upper() + server[1:]
    shared = "defended updates" if all(u.defenses for u in updates) else "plain updates"
    shared = "captured updates" if all(u.captured is not None for u in updates) else shared
    if not worst.conclusive:
        short = [u for u in updates if u.outcome is worst]
        of = f" in {len(short)} of {len(updates)} set-ups" if len(updates) > 1 else ""
        return f"Nothing is known about {shared}{of}: {_too_few_steps(short)}."
    if not worst.leaks:
        every = f" in any of {len(updates)} set-ups" if len(updates) > 1 else ""
        return f"{who} could not reconstruct private images from {shared}{every} within the budget spent."
    hit = sorted((u for u in updates if u.outcome is worst), key=lambda u: -(u.ssim or 0.0))
    partly = "partly " if worst is Outcome.PARTIAL else ""
    of = f" in {len(hit)} of {len(updates)} set-ups" if len(updates) > 1 else ""
    most = ", most clearly from" if len(hit) > 1 else ":"
    name = hit[0].setting or hit[0].name
    return f"{who} could {partly}reconstruct private images from {shared}{of}{most} {name} ({quality(hit[0])})."


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


TOO_SHORT = "Too few steps were scored for a leakage estimate."


def on_training(training: Training) -> Statement:
    said = [conclude_training(training), alarm(training), critic(training)]
    failed = training.failed_controls
    if failed:
        names = ", ".join(name for name, _ in failed)
        said.append(f"Controls failed ({names}), so the curve and the alarm do not count.")
    elif training.controls:
        said.append("The controls (null, decoy, noise) are clean.")
        if training.loudest_layer is not None:
            name, nats = training.loudest_layer
            said.append(f"The layer that leaks most by itself is {name} ({number(nats, 2)} nats).")
    said += data_notes(training.data)
    tone: Tone
    if training.alarmed or training.exposes_members:
        tone, badge = "bad", "Alarm" if training.alarmed else "Members recognised"
    elif failed:
        tone, badge = "partly", "Controls failed"
    elif training.beats_guessing:
        tone, badge = "partly", "Some members recognised"
    else:
        tone, badge = ("none", "Too short to say") if training.peak is None else ("good", "Alarm silent")
    assumed = [("deployable", f"the adversary sees every {training.view} gradient and has seen earlier steps")]
    if training.auc is not None:
        assumed.append(("diagnostic", "for the AUC also the weights at each step and a list of candidates"))
    time = "" if training.seconds is None else f", {duration(training.seconds)}"
    budget = f"{plural(training.steps, 'training step')}, the last numbers over {plural(training.scored, 'scored step')}{time}"
    state = "answered" if training.ended == "finished" else "unfinished"
    return Statement("training", QUESTIONS["training"], tone, badge, tuple(said), tuple(assumed), budget, state)


def conclude_training(training: Training) -> str:
    """The sentence on top of every view of a training."""
    return conclusion(
        steps=training.steps,
        choices=training.choices,
        members=_as_rate(training.auc),
        top1=_as_rate(training.top1),
        alarm_at=training.alarm_at,
        trusted=not training.failed_controls,
    )


def _as_rate(found: Measured | None) -> Rate | None:
    if found is None:
        return None
    low = found.value if found.low is None else found.low
    return Rate(found.value, low, found.value if found.high is None else found.high)


def training_ended(run: MonitorRun) -> str:
    """How a training ended, where that was not as planned."""
    how, step = run.end.get("how"), plural(int(run.end.get("step") or 0), "step")
    if how == "finished":
        return ""
    if how == "interrupted":
        return f"The training was interrupted after {step}; these are the measurements up to then."
    if how:
        return f"The training failed after {step} ({run.end.get('why') or 'no reason was recorded'})."
    return "The end of the training was not recorded: it is still running, or it was killed."


def alarm(training: Training) -> str:
    """Whether the alarm fired."""
    if training.alarm_at is not None:
        return f"The alarm fired at step {training.alarm_at} of {training.steps}: gradients reveal their batches."
    return f"The alarm stayed silent for {plural(training.steps, 'step')}, which is no evidence of safety."


def critic(training: Training) -> str:
    """What the critic estimated, once enough steps were scored."""
    if training.peak is None or training.last is None:
        return TOO_SHORT
    most = "" if training.ceiling is None else f"; the most it can show is {number(training.ceiling, 2)} nats"
    return (
        f"The leakage estimate peaked at step {training.peak.step} with {interval(training.peak)} nats and ended at "
        f"{interval(training.last)}{most}."
    )


def on_split(split: Split) -> Statement:
    asked = QUESTIONS["split"]
    if not split.finished:
        done = f"{split.scanned} of {plural(split.cuts, 'cut')} {'is' if split.scanned == 1 else 'are'} done"
        command = "audit" if split.audited else "scan"
        said = f"The scan is not finished: {done}. Resume it with leakgauge {command} --resume."
        return Statement("split", asked, "none", "Not finished", (said,), state="unfinished")
    assumed, budget = (("deployable", cloud(split)),), effort(split)
    if split.recommended is None and split.undertrained:
        said = (
            f"No cut is shown to protect. {split.candidate} withstood regression and least squares, but the decoder there did worse than "
            "regression: it was trained too little to count. Scan again with more epochs or images."
        )
        return Statement("split", asked, "partly", "Not attacked enough", (said,), assumed, budget)
    if split.recommended is None:
        return Statement("split", asked, "bad", "No cut", (_no_cut(split), *remedy(split)), assumed, budget)
    if split.only_output:
        said = (
            f"Only the model's output ({split.recommended}) keeps an FVU of {split.threshold:g} (it keeps {number(split.fvu, 2)}): the "
            f"device does all the work and sends {split.bytes} bytes."
        )
        return Statement("split", asked, "partly", "Only the output", (said, *remedy(split)), assumed, budget)
    deep = "" if split.edge_share is None else f"; the edge holds {100 * split.edge_share:.0f} % of the weights"
    by = f" ({split.by})" if split.by else ""
    named = "" if split.reidentified is None else f" and names {100 * split.reidentified:.0f} % of the originals"
    said = [
        f"At {split.recommended} or deeper. There the best attack{by} leaves {100 * (split.fvu or 0):.0f} % of the image variance "
        f"unexplained (FVU {number(split.fvu, 2)}, threshold {split.threshold:g}; 0 is a copy of the image, 1 is the mean image){named}. "
        f"It sends {split.bytes} bytes{deep}."
    ]
    if split.larger_here:
        said.append(
            f"That is {number(split.bytes_ratio, 1)} times the raw image: a deeper cut or smaller numbers (--numbers int8) would send less."
        )
    if not split.decoders:
        said.append("No decoder was trained, so this is no more than a first look.")
    tone = "partly" if split.larger_here or not split.decoders else "good"
    return Statement("split", asked, tone, "Cut found", tuple(said), assumed, budget)


def _no_cut(split: Split) -> str:
    of = f" of {split.cuts}" if split.cuts > 1 else ""
    best = (
        "" if split.safest_fvu is None else f" The safest is {split.safest}, which keeps {number(split.safest_fvu, 2)}"
    )
    if split.safest in split.blurred:
        best += ", but its images are re-identified"
    best = f"{best}." if best else ""
    if split.candidate is not None:
        return f"No cut{of} keeps an FVU of {split.threshold:g} and meets {split.require}.{best}"
    if (split.safest_fvu or 0) >= split.threshold and split.safest not in split.blurred:
        return f"No cut{of} is shown to protect: the attack on {split.safest} was refused.{best}"
    at = f"each of {split.cuts} cuts" if split.cuts > 1 else "the only cut"
    named = f" or re-identifies more than {100 * split.recognised:.0f} % of the images" if split.recognised < 1 else ""
    return f"No cut of this network protects by itself: at {at} an attack gets below an FVU of {split.threshold:g}{named}.{best}"


def remedy(split: Split) -> tuple[str, ...]:
    """What would protect where no cut before the output does by itself."""
    found = split.remedy
    if found is None:
        return ()
    width = (
        f"With at most {plural(found.width, 'number')} per image, no linear attack gets below the threshold."
        if found.width
        else ""
    )
    if found.noise is None:
        return tuple(filter(None, (f"Noise of up to 4 times the features' norm does not protect {found.cut}.", width)))
    named = "" if found.reidentified is None else f" and {100 * found.reidentified:.0f} % of the images re-identified"
    cost = (
        ""
        if found.accuracy is None or split.accuracy is None
        else f"; accuracy goes from {number(split.accuracy, 2)} to {number(found.accuracy, 2)}"
    )
    noise = (
        f"Gaussian noise with {found.noise:g}× the features' norm would protect {found.cut} against regression (FVU {number(found.fvu, 2)}"
        f"{named}{cost}): scan it with --cut {found.cut} --defense gaussian_noise:relative={found.noise:g}."
    )
    return tuple(filter(None, (noise, width)))


def cloud(split: Split) -> str:
    """The adversary of a scan."""
    return (
        f"a curious but honest cloud that knows the weights, sees what is sent and owns {split.auxiliary} images like the "
        f"{split.tested} attacked ones"
    )


def effort(split: Split) -> str:
    """What was spent on the attacks of a scan."""
    said = f"regression at {plural(split.scanned, 'cut')}"
    if split.computed:
        said += f", least squares at {plural(split.computed, 'cut')}"
    if split.decoded:
        here = (
            f", {split.epochs_here} of them at this cut"
            if split.epochs_here
            else ", none at this cut: a shallower one held"
        )
        total = f"{plural(split.decoder_epochs, 'epoch')} of decoders at {plural(split.decoded, 'cut')}"
        return f"{said} and {total}{here if split.recommended is not None else ''}"
    if split.decoders:
        return f"{said}; no decoder was needed"
    return f"{said} and no decoder, so a stronger attack may recover more"


def split_notes(split: Split) -> list[str]:
    """What to mind beside the recommended cut."""
    notes = [*data_notes(split.data, labels=NO_CLASSES), *split.notes]
    if split.recommended is not None and split.bytes is not None:
        sizes = {"the raw image": split.raw_bytes, "its JPEG": split.jpeg_bytes}
        known = {name: size for name, size in sizes.items() if size is not None}
        more = [f"{name} ({size:.0f})" for name, size in known.items() if split.bytes > size]
        compared = f"more than {' and '.join(more)}" if more else f"no more than {' or '.join(known)}"
        notes.append(f"{split.recommended} sends {split.bytes} bytes as {split.numbers}: {compared}.")
    for name, cuts in (("raw image", split.larger), ("JPEG", split.larger_than_jpeg)):
        if cuts and not (name == "JPEG" and cuts == split.larger):  # often the same cuts exceed both
            verb = "sends" if len(cuts) == 1 else "send"
            notes.append(f"{len(cuts)} of {plural(split.cuts, 'cut')} {verb} more than the {name}: {few(cuts)}.")
    if split.only_output:
        notes.append("The recommended cut is the model's output: the device does all the work.")
    if split.blurred:
        notes.append(
            f"Images are re-identified more often than {100 * split.recognised:.0f} % at {few(split.blurred)}, so these cuts leak although "
            "their FVU is above the threshold."
        )
    if split.weak:
        notes.append(
            f"The attack was too weak at {few(split.weak)}: one on a deeper cut did better, and counts here too."
        )
    if split.stopped:
        notes.append(
            f"Decoders at {few(split.stopped)} stopped once they had shown the leak; more epochs would show more."
        )
    return [*notes, *(f"No score of {attack} at {cut}: {reason}." for attack, cut, reason in split.refused)]


def on_defenses(defenses: Defenses) -> Statement:
    base, rows, held = defenses.undefended, defenses.rows, defenses.held
    asked, where = QUESTIONS["defenses"], f" ({defenses.setting})" if defenses.setting else ""
    tone: Tone
    if base.outcome is None:
        tone, badge = "none", "No result"
        said = [f"The attack without a defense gave no result{where}: {base.reason or 'no reason was recorded'}."]
    elif not base.outcome.conclusive:
        tone, badge = "none", "Inconclusive"
        said = [f"The attack was too short to succeed without a defense{where}, so no defense was tried."]
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
        said = [f"{len(held)} of {plural(len(rows), 'defense')} made the attack infeasible within its budget{where}."]
        said += [broken] if (broken := broken_elsewhere(defenses)) else []
        said += [f"The cheapest effective defense is {best.name}, for {points(best)}."] if best else []
        if defenses.none_is_cheap:
            known = "None is known to be cheap" if defenses.cost_unknown else "None is cheap"
            said.append(f"{known}: {cheapest(defenses)}.")
    said += members_despite(held if base.leaks else rows)
    spent = [(defenses.steps, "attack"), (defenses.train_steps, "training")]
    parts = [f"{plural(count, 'step')} of {what} each" for count, what in spent if count is not None]
    budget = ", ".join([*parts, f"{duration(defenses.seconds)} in all"])
    assumed = _assumed(defenses.deployable, defenses.diagnostic)
    return Statement("defenses", asked, tone, badge, tuple(said), assumed, budget)


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
