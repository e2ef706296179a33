"""The questions that an audit answers, in the order in which it does. One module each holds what belongs to it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from leakgauge.errors import BadInput

Question = Literal["updates", "training", "split", "defenses", "properties"]

QUESTIONS: Mapping[Question, str] = {
    "updates": "What could be reconstructed from updates?",
    "training": "How does leakage move during training?",
    "split": "Where may the network be cut?",
    "defenses": "What do defenses buy?",
    "properties": "What else do updates tell?",
}
ON_REQUEST: frozenset[Question] = frozenset({"properties"})
"""Questions that are only asked by name."""
USUAL: tuple[Question, ...] = tuple(question for question in QUESTIONS if question not in ON_REQUEST)


def chosen(only: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[Question, ...]:
    """The questions that are left by ``--only`` and ``--skip``, in their order; those ``ON_REQUEST`` only if they are named.

    >>> chosen(only=["split", "updates"]), chosen(skip=["training", "defenses"])
    (('updates', 'split'), ('updates', 'split'))
    """
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if name not in QUESTIONS:
                raise BadInput(f"{option} takes a question, one of {', '.join(QUESTIONS)}; got {name!r}")
    if only and skip:
        raise BadInput("give either --only or --skip; one of them says everything")
    left: tuple[Question, ...] = tuple(q for q in QUESTIONS if q not in skip and q in (only or USUAL))
    if not left:
        raise BadInput("every question is skipped, so nothing is left to do; leave one of them in")
    return left
