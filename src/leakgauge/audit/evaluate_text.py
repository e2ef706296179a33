"""One attack on one batch of sentences, from the private data to a verdict, as :mod:`leakgauge.audit.evaluate` does for images."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.audit.cause import Cause, in_order
from leakgauge.audit.evaluate import assumed, observe
from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import TextScores, score_text
from leakgauge.audit.text_verdict import TextVerdict, judge_text, strongest_null
from leakgauge.core import (
    Assumption,
    Attack,
    Channel,
    Defense,
    Observation,
    Reconstruction,
    Reveal,
    Size,
    Tokens,
    Victim,
)
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.mismatch import layer_mismatch
from leakgauge.measures.text import most_frequent


@checked(nan=True)
@dataclass(frozen=True, eq=False)
class TextResult:
    """What an attack on text came to, and what it is measured against.

    ``scores`` are of the attack, ``null`` of the best guess without the update: ``guesses`` maps the name of each to its scores.
    """

    verdict: TextVerdict
    scores: TextScores
    null: TextScores
    guesses: dict[str, TextScores]
    reconstruction: Reconstruction
    assumptions: tuple[Assumption, ...]


@checked
@plain_defaults()
def evaluate_text(
    attack: Attack,
    victim: Victim,
    channel: Channel,
    x: Tensor,
    y: Tensor,
    *,
    defenses: Sequence[Defense] = (),
    reveal: Sequence[Reveal] = (Size(),),
    seed: int = 0,
    public: Tensor | None = None,
    padding: int | None = None,
) -> TextResult:
    """Shares the ids ``x`` with targets ``y`` through ``channel``, attacks what was sent, and judges what the attack found.

    ``public`` holds ids of other text of the same kind, for the guess of the most frequent tokens. ``padding`` is the id that fills short
    sentences; ROUGE leaves it out.

    >>> from leakgauge import testing
    >>> from leakgauge.attacks import token_spans
    >>> from leakgauge.channels import Gradient
    >>> victim, x, y = testing.tiny_case("text_deep")
    >>> print(evaluate_text(token_spans(), victim, Gradient(), x, y).verdict.outcome.label)
    feasible
    """
    if not isinstance(victim.space, Tokens):
        raise BadInput("evaluate_text takes victims that read token ids; use evaluate for images")
    seen = observe(victim, channel, x, y, defenses=defenses, reveal=reveal, seed=seed)
    return assess_text(attack, victim, seen, x, y, seed=seed, public=public, padding=padding)


def assess_text(
    attack: Attack,
    victim: Victim,
    seen: Observation,
    x: Tensor,
    y: Tensor,
    *,
    seed: int = 0,
    public: Tensor | None = None,
    padding: int | None = None,
) -> TextResult:
    """Attacks what was ``seen`` and judges it by the true ids ``x`` and targets ``y``, which the attack does not see."""
    found = attack(victim, seen, seed=seed)
    labels = y if y.dim() == 1 else None
    guesses = {name: _scored(ids, x, padding) for name, ids in own_guesses(victim, len(x), public, seed=seed).items()}
    with suppress(Inapplicable):  # its ids are drawn at random and repeat less than text does
        guesses["null run"] = score_text(null_run(attack, victim, seen, seed=seed), x, None, padding=padding)
    null = strongest_null(*guesses.values())
    scores, known = score_text(found, x, labels, padding=padding), assumed(attack, seen)
    certified = 0 if found.certified is None else int(found.certified.sum())
    cause = explain_text(victim, seen, found, x, y, seed=seed)
    verdict = judge_text(scores, null, known, certified=certified, cause=cause)
    return TextResult(verdict, scores, null, guesses, found, known)


FITS = 1e-9
"""Differences of two mismatches up to this are rounding: the square of some tens of units in the last place of float32."""


def explain_text(
    victim: Victim, seen: Observation, found: Reconstruction, x: Tensor, y: Tensor, *, seed: int = 0
) -> Cause:
    """Why an attack that found the ids ``found.x`` did not find ``x``, as :func:`~leakgauge.audit.cause.explain` does for images.

    With m the mismatch of what ids and the labels that the adversary has for them would have sent: *search* where the truth fits better
    than what was found, else *knowledge* where it does with its own labels, else *information*. *Untested* where the attack leaves open
    what its ids should be followed by, or where a mismatch is not a finite number.
    """
    own, given = _targets(found, seen, x, y)
    if own is None or given is None:
        return Cause.UNTESTED

    def mismatch(ids: Tensor, targets: Tensor) -> float:
        return layer_mismatch(victim, seen, victim.to_input(ids), targets.to(victim.device), seed=seed)

    reached, true, informed = mismatch(found.x, own), mismatch(x, given), mismatch(x, y)
    if not all(map(math.isfinite, (reached, true, informed))):
        return Cause.UNTESTED
    if reached > true + FITS:
        return Cause.SEARCH
    return Cause.KNOWLEDGE if reached > informed + FITS else Cause.INFORMATION


def _targets(
    found: Reconstruction, seen: Observation, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """The adversary's targets for what it found and for the truth: the labels that it was given or read, or the ids themselves."""
    known = seen.labels if isinstance(seen.labels, Tensor) else found.y
    if known is not None and known.shape == y.shape:
        ordered = in_order(known, y)
        return known, ordered if isinstance(ordered, Tensor) else known
    return (found.x, x) if torch.equal(x.to(y.device), y) else (None, None)


def own_guesses(victim: Victim, count: int, public: Tensor | None, *, seed: int) -> dict[str, Tensor]:
    """Sentences that anyone could guess without the update: drawn at random, the most frequent tokens of ``public`` text, and what the
    victim itself writes if it is a language model that scores every token at every place.
    """
    space = victim.space
    assert isinstance(space, Tokens)
    rng = torch.Generator().manual_seed(seed)
    found = {"random tokens": space.start(count, rng)}
    if public is not None:
        found["frequent tokens"] = most_frequent(public.cpu(), count, space.length)
    written = _written(victim, found["random tokens" if public is None else "frequent tokens"], rng=rng)
    return found if written is None else found | {"language model": written}


def _written(victim: Victim, ids: Tensor, *, rng: torch.Generator) -> Tensor | None:
    """The model's own text, token by token from the first of each of ``ids``; None if it is no language model."""
    space = victim.space
    assert isinstance(space, Tokens)
    ids = ids.clone()
    for at in range(1, space.length):
        with torch.no_grad(), private_randomness(0, victim.device):
            scores = victim(victim.to_input(ids))
        if not isinstance(scores, Tensor) or scores.shape != (*ids.shape, space.vocab):
            return None
        likely = scores[:, at - 1].double().softmax(-1).cpu()
        ids[:, at] = torch.multinomial(likely, 1, generator=rng)[:, 0]
    return ids


def _scored(ids: Tensor, x: Tensor, padding: int | None) -> TextScores:
    guess = Reconstruction.single(ids, None, made_by="guess", began=time.perf_counter())
    return score_text(guess, x, None, padding=padding)
