"""From scores of text to a verdict, by one table of checks, as :mod:`leakgauge.audit.verdict` does for images.

A sentence counts as *reconstructed* when it passes every check of ``RECONSTRUCTED``, and as *read* when it passes every check of ``READ``.
An attack has to beat what is no leakage: its own null run, and guesses without any update (frequent tokens, a language model's own text).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from leakgauge.audit.cause import Cause
from leakgauge.audit.scoring import TextScores
from leakgauge.audit.verdict import SHARE_FOR_FEASIBLE, Check, Outcome, Verdict, Way, kind_of
from leakgauge.core import Assumption, Kind

TextMetric = Literal["tokens", "exact", "rouge1", "rouge2", "rouge_l"]


@dataclass(frozen=True)
class TextCheck:
    """``metric`` of a sentence must be at least ``margin``, or at least ``margin`` above the null."""

    metric: TextMetric
    margin: float
    above: Literal["zero", "null"]

    def passes(self, sentence: int, attack: TextScores, null: TextScores) -> bool:
        bar = getattr(null, self.metric)[sentence] if self.above == "null" else 0.0
        return getattr(attack, self.metric)[sentence] >= bar + self.margin


RECONSTRUCTED = (
    TextCheck("rouge_l", 0.8, above="zero"),
    TextCheck("rouge_l", 0.3, above="null"),
)
"""Four of five tokens in their order. The margins are choices; no reader was asked."""
READ = (
    TextCheck("rouge1", 0.5, above="zero"),
    TextCheck("rouge1", 0.2, above="null"),
)
"""Half of the tokens, in any order."""


@dataclass(frozen=True)
class TextVerdict:
    """The outcome and the facts that decided it.

    Of ``sentences`` in the batch, ``exact`` are right in every token, ``reconstructed`` pass every check of ``RECONSTRUCTED``, and ``read``
    those of ``READ`` (whether reconstructed or not). ``certified`` are those that the attack itself proved, without the truth.
    ``missed`` is the first check that failed, on the first sentence that failed one; None where all passed. ``cause`` says why nothing was
    found, where nothing was. Text has no positive control yet, so that is no evidence, whatever the cause.
    """

    outcome: Outcome
    kind: Kind
    sentences: int
    exact: int
    reconstructed: int
    read: int
    certified: int = 0
    missed: TextCheck | None = None
    cause: Cause | None = None

    def plain(self) -> Verdict:
        """The same as the verdict on a batch of any kind: a sentence that is only read counts as glimpsed, by its tokens."""
        only_read = self.read - min(self.read, self.reconstructed)
        check = None if self.missed is None else Check(self.missed.metric, self.missed.margin, above=self.missed.above)
        return Verdict(
            self.outcome,
            self.kind,
            self.sentences,
            self.reconstructed,
            glimpsed={Way.TOKENS: only_read} if only_read else {},
            missed=check,
            certified=self.certified,
            cause=self.cause,
            unit="sentence",
        )


def judge_text(
    scores: TextScores,
    null: TextScores,
    assumptions: Sequence[Assumption] = (),
    *,
    certified: int = 0,
    cause: Cause = Cause.UNTESTED,
) -> TextVerdict:
    """Applies the table sentence by sentence; ``null`` is scored on the same truths in the same order. ``cause`` is why the attack failed,
    if it did.
    """
    count = len(scores.rouge1)
    whole = [_failed(RECONSTRUCTED, k, scores, null) for k in range(count)]
    read = [_failed(READ, k, scores, null) for k in range(count)]
    if whole.count(None) >= SHARE_FOR_FEASIBLE * count:
        outcome, decisive = Outcome.FEASIBLE, whole
    elif None in whole or None in read:
        outcome, decisive = Outcome.PARTIAL, whole
    else:
        outcome, decisive = Outcome.INCONCLUSIVE, read  # text has no positive control, so no negative is evidence
    missed = next((check for check in decisive if check is not None), None)
    return TextVerdict(
        outcome,
        kind_of(assumptions),
        count,
        int(sum(scores.exact)),
        whole.count(None),
        read.count(None),
        certified,
        missed,
        None if outcome.leaks else cause,
    )


def _failed(checks: Sequence[TextCheck], sentence: int, scores: TextScores, null: TextScores) -> TextCheck | None:
    return next((check for check in checks if not check.passes(sentence, scores, null)), None)


def strongest_null(*nulls: TextScores) -> TextScores:
    """The best of several guesses without an update, metric by metric and sentence by sentence; labels are left out."""
    best = {
        field.name: tuple(map(max, zip(*(getattr(one, field.name) for one in nulls), strict=True)))
        for field in fields(TextScores)
        if field.name not in ("precision", "recall", "labels")
    }
    return replace(
        nulls[0],
        **best,
        precision=max(one.precision for one in nulls),
        recall=max(one.recall for one in nulls),
        labels=None,
    )
