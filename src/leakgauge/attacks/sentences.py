"""The first attack on text that applies: whole sentences of a batch, one sentence, or the set of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from leakgauge.attacks.bag_of_tokens import bag_of_tokens
from leakgauge.attacks.token_positions import token_positions
from leakgauge.attacks.token_spans import token_spans
from leakgauge.channels.facts import local_steps
from leakgauge.core import Attack, Observation, Raced, Reconstruction, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked


@dataclass(frozen=True)
class FirstOnText:
    """The attack made by :func:`sentences`."""

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        raced, reasons = list[Raced](), list[str]()
        order: list[tuple[str, Attack]] = [
            ("token_spans", token_spans()),
            ("token_positions", token_positions()),
            ("bag_of_tokens", bag_of_tokens()),
        ]
        if seen.size == 1 and local_steps(seen.channel, 1) > 1:  # of one sentence the tables sum all steps exactly
            order = [order[1], order[0], order[2]]
        for name, attack in order:
            try:
                found = attack(victim, seen, seed=seed)
            except Inapplicable as refusal:
                raced.append(Raced(name, 0, None, refused=str(refusal)))
                reasons.append(f"{name}: {refusal}")
                continue
            return replace(found, raced=(*raced, Raced(name, 0, None, chosen=True)), by=attack)
        raise Inapplicable("; ".join(reasons))


@example("text_deep")
@checked
def sentences() -> FirstOnText:
    """The first of :func:`token_spans`, :func:`token_positions` and :func:`bag_of_tokens` that applies. ``audit`` uses it for text.

    After several local steps on one sentence :func:`token_positions` comes first: it is exact for any number of them.
    All three are closed forms or searches that end by themselves, so there is no number of steps to choose.

    Not from a paper: the papers are named where the three are. Deviations: none.
    """
    return FirstOnText()
