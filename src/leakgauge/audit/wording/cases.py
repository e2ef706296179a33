"""One record: how a set-up ended, with what effort and under which conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakgauge.audit.case import accepted_options, enough_steps, uses_of
from leakgauge.audit.cause import Cause
from leakgauge.audit.findings import EXPLAINED, MISFIT
from leakgauge.audit.phrasing import duration, metric, number, plural, thousands
from leakgauge.audit.questions.answers import Waiting
from leakgauge.audit.questions.updates import GUIDED, Explanation
from leakgauge.audit.records import Record
from leakgauge.audit.verdict import Outcome, Unit, Verdict
from leakgauge.audit.wording.causes import why
from leakgauge.audit.wording.terms import MALICIOUS, SERVER, UNITS
from leakgauge.audit.wording.verdicts import labels_expected, labels_sentence, rule
from leakgauge.channels.facts import LocalTraining
from leakgauge.core import Raced


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
    verdict: Verdict | None = getattr(record, "verdict", None)
    unit: Unit = "image" if verdict is None else verdict.unit
    return f"Certified exact without the truth: {len(proven)} of {plural(len(record.certified), unit, UNITS[unit])}{which}."


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
    >>> identifiable(SimpleNamespace(identifiable=Identifiable(12288, 5300, 1e-2, "defense", 13.2, 2.0, 0.0, error=61.0)))[:99]
    'Near the true images, what is shared determines about 5300 (± 122) of 12288 directions above the de'
    """
    found = record.identifiable
    if found is None:
        return ""
    level = "rounding" if found.source == "rounding" else "the defense's noise"
    above = f"about {found.above} (± {number(2 * found.error, 0)})" if found.error else str(found.above)
    verdict: Verdict | None = getattr(record, "verdict", None)
    what = UNITS["image" if verdict is None else verdict.unit]
    return (
        f"Near the true {what}, what is shared determines {above} of {plural(found.directions, 'direction')} above {level}; the "
        f"local limit is a PSNR of {number(found.psnr, 1)} dB."
    )


def learned(record: Record) -> str:
    """What the adversary's prior learned, and what it cannot make; empty where the attack has none.

    >>> from types import SimpleNamespace
    >>> from leakgauge.core import Learned
    >>> said = learned(SimpleNamespace(learned=Learned(900, 47, 1000, (0.3, 0.7), (0.05, 0.2), 1.1)))
    >>> said.split(". ")[1]
    'Of the variance of 47 others, 5 % at 30 % noise, 20 % at 70 % noise stays unexplained'
    """
    found = record.learned
    if found is None:
        return ""
    shares = [f"{share:.0%} at {level:.0%} noise" for level, share in zip(found.levels, found.unexplained, strict=True)]
    new = "they are not copies" if found.copies >= COPIES else "some may be copies"
    said = (
        f"The prior learned from {thousands(found.images)} public images. Of the variance of {thousands(found.held_out)} others, "
        f"{', '.join(shares)} stays unexplained. Its own samples are {found.copies:.2f} times as far from the nearest image that it "
        f"learned from as new images are: {new}."
    )
    return said.replace("%", " %")


COPIES = 0.5
"""From this relative distance to the nearest training image on, samples do not count as copies."""


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
    "unscored": Ending("unscored", "No verdict", "The truth is not known here, so there is nothing to compare with."),
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


def figures(record: Record) -> tuple[tuple[str, str], ...]:
    """What a set-up on images, series, rows or text is judged by, beside the null run: three names and values; none without scores."""
    if record.text is not None:
        verdict, sides, name = record.text.verdict, record.text.means("rouge1"), "ROUGE-1"
        mine, null = (number(one, 2, missing="–") for one in sides)
        return (name, mine), ("null", null), ("exact", f"{verdict.exact} of {verdict.sentences}")
    if record.table is not None:
        mine, null = (f"{number(100 * sum(side) / len(side), 0)} %" for side in (record.table.cells, record.table.null))
        verdict = record.table.verdict
        return ("cells right", mine), ("null", null), ("exact", f"{verdict.exact} of {verdict.rows}")
    if record.scores is None or record.null is None:
        return ()
    if record.series is not None:
        mine, null = (metric("correlation", one.mean("correlation")) for one in (record.scores, record.null))
        return ("correlation", mine), ("null", null), ("sMAPE", f"{metric('smape', record.scores.mean('smape'))} %")
    mine, null = (metric("psnr", one.mean("psnr"), unit=True) for one in (record.scores, record.null))
    ssim, spread = metric("ssim", record.scores.mean("ssim")), record.intervals.get("ssim")
    if spread is not None:
        ssim += f" ({spread.n} restarts: {metric('ssim', spread.low)} to {metric('ssim', spread.high)})"
    return ("PSNR", mine), ("null", null), ("SSIM", ssim)


def server_of(records: Sequence[Record]) -> str:
    """Whom the set-ups are about that were asked for; single changes say themselves what they change."""
    own = [r for r in records if r.change is None] or records
    dishonest = [bool(r.assumed("malicious") or r.case.server) for r in own]
    if not any(dishonest):
        return SERVER
    return MALICIOUS if all(dishonest) else f"a server (malicious in {sum(dishonest)} of them)"


def case_sentence(record: Record) -> str:
    """The verdict of one set-up in one sentence; the rule and the reason of a refusal are shown beside it."""
    unit: Unit = "image" if record.verdict is None else record.verdict.unit
    what = UNITS[unit]
    return {
        "feasible": f"An adversary with the knowledge listed below could reconstruct private {what}.",
        "partial": f"An adversary with the knowledge listed below could partially reconstruct private {what}.",
        "inconclusive": f"Nothing was reconstructed, and that is no evidence: {_unproven(record)}.",
        "infeasible_within_budget": f"No private {unit} was reconstructed ({_budget(record)}): {_why(record)}.",
        "refused": "The attack does not apply to this set-up and was not run, so there is no score.",
        "error": "The run broke before it could be judged, so there is no score.",
        "withdrawn": "The record was withdrawn after the run, so there is no score.",
        "unjudged": "The attack ran, but no verdict was recorded.",
        "unscored": NO_TRUTH if record.text is None else NO_TRUE_SENTENCES,
    }[ending(record).key]


NO_TRUE_SENTENCES = (
    "There is no verdict, because the true sentences are not known here and none is certified: look at those that were found, or give the "
    "client's own with --truth."
)
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


def _why(record: Record) -> str:
    return "" if record.verdict is None else why(record.verdict)


def _unproven(record: Record) -> str:
    """Why a negative is no evidence, with what was spent."""
    if record.verdict is not None and record.verdict.cause is Cause.EFFORT:
        return (
            f"a search needs at least {plural(enough_steps(record.case), 'step')} to succeed (spent: {_budget(record)})"
        )
    return f"{_why(record)} (spent: {_budget(record)})"


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
    if record.case.steps is not None:
        spent.append(plural(record.case.steps, "step"))
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
    held_back = "" if one.unseen is None else f", {one.unseen:.2g} on layers held back from it"
    return effort if one.mismatch is None else f"{effort}, mismatch {one.mismatch:.2g}{held_back}"


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
