"""What a record holds of an attack on text, and the sentences side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from leakgauge.audit.cause import Cause
from leakgauge.audit.evaluate_text import TextResult
from leakgauge.audit.scoring import TextScores
from leakgauge.audit.text_verdict import TextVerdict
from leakgauge.audit.verdict import Outcome, Verdict
from leakgauge.core import Reconstruction
from leakgauge.measures.text import pair_sentences

Mark = Literal["placed", "present", "missing"]
"""Of a true token: found at its place, found elsewhere in the sentence, or not found. Of a found one that is nowhere: missing."""
MARKS: Mapping[Mark, str] = {"placed": "found in its place", "present": "found elsewhere", "missing": "not found"}
METRICS = ("tokens", "exact", "rouge1", "rouge2", "rouge_l")


@dataclass(frozen=True)
class Sentence:
    """A true sentence and what was found for it, as pieces of text, each with a mark."""

    truth: tuple[str, ...]
    truth_marks: tuple[Mark, ...]
    found: tuple[str, ...]
    found_marks: tuple[Mark, ...]


@dataclass(frozen=True)
class TextFacts:
    """``scores`` and ``null`` map a metric to its value for each sentence, in the order of ``sentences``.

    ``guesses`` names what the null is the best of. Without the truth there are no scores, and sentences have no truth.
    """

    verdict: TextVerdict
    scores: Mapping[str, tuple[float, ...]]
    null: Mapping[str, tuple[float, ...]]
    guesses: tuple[str, ...]
    sentences: tuple[Sentence, ...]

    def means(self, metric: str) -> tuple[float | None, float | None]:
        """Of the attack and of the null, over the sentences; None where there are no scores."""
        sides = (self.scores.get(metric, ()), self.null.get(metric, ()))
        mine, null = (sum(side) / len(side) if side else None for side in sides)
        return mine, null


def text_facts(
    result: TextResult, truth: Tensor, *, tokens: Callable[[Tensor], list[str]] | None, padding: int | None
) -> TextFacts:
    """The facts of a result on the true ids ``truth`` (N, length); ``tokens`` gives the pieces of text of one sentence."""
    found, truth = result.reconstruction.x.detach().cpu(), truth.detach().cpu()
    place = pair_sentences(found, truth)  # of each guess, the truth that it is paired with
    paired = found[place.argsort()]
    sentences = tuple(_sentence(t, f, tokens, padding) for t, f in zip(truth, paired, strict=True))
    return TextFacts(result.verdict, _metrics(result.scores), _metrics(result.null), tuple(result.guesses), sentences)


def untrue_facts(
    found: Reconstruction, verdict: Verdict | None, *, tokens: Callable[[Tensor], list[str]] | None, padding: int | None
) -> TextFacts:
    """The facts of a result where the truth is not known: the sentences that were found, those that are certified marked as placed."""
    ids = found.x.detach().cpu()
    sure = [False] * len(ids) if found.certified is None else found.certified.tolist()
    pieces = [_pieces(_cut(one, padding), tokens) for one in ids]
    sentences = tuple(
        Sentence((), (), tuple(said), ("placed" if certain else "present",) * len(said))
        for said, certain in zip(pieces, sure, strict=True)
    )
    outcome, kind = (Outcome.INCONCLUSIVE, "deployable") if verdict is None else (verdict.outcome, verdict.kind)
    count = sum(sure)
    cause = None if outcome.leaks else Cause.UNTESTED
    judged = TextVerdict(outcome, kind, len(ids), count, count, count, count, cause=cause)
    return TextFacts(judged, {}, {}, (), sentences)


def _pieces(ids: Tensor, tokens: Callable[[Tensor], list[str]] | None) -> list[str]:
    return tokens(ids) if tokens is not None else [f"{number} " for number in ids.tolist()]


def _metrics(scores: TextScores) -> dict[str, tuple[float, ...]]:
    return {name: getattr(scores, name) for name in METRICS}


def _sentence(
    truth: Tensor, found: Tensor, tokens: Callable[[Tensor], list[str]] | None, padding: int | None
) -> Sentence:
    sides = [_cut(ids, padding) for ids in (truth, found)]
    pieces = [_pieces(ids, tokens) for ids in sides]
    lists = [ids.tolist()[: len(said)] for ids, said in zip(sides, pieces, strict=True)]
    marks = [_marks(lists[k], lists[1 - k]) for k in (0, 1)]
    return Sentence(tuple(pieces[0]), marks[0], tuple(pieces[1]), marks[1])


def marked_pair(truth: Tensor, found: Tensor, tokens: Callable[[Tensor], list[str]] | None) -> Sentence:
    """A sentence and what was found of it, both without padding."""
    return _sentence(truth.cpu(), found.cpu(), tokens, None)


def _cut(ids: Tensor, padding: int | None) -> Tensor:
    """Without the padding at the end."""
    if padding is None:
        return ids
    real = (ids != padding).nonzero()
    return ids[: int(real.max()) + 1] if len(real) else ids[:0]


def _marks(own: list[int], other: list[int]) -> tuple[Mark, ...]:
    return tuple(
        "placed" if at < len(other) and other[at] == token else "present" if token in other else "missing"
        for at, token in enumerate(own)
    )
