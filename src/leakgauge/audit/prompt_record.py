"""What a scan of a language model found, as plain facts: the figures of each cut, and the prompts beside what was recovered of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.audit.text_record import Mark, marked_pair
from leakgauge.split.prompts import PromptRisk, Protection, recommend

Pieces = tuple[tuple[str, Mark], ...]
"""Tokens as text, each with how well it was found."""


@dataclass(frozen=True)
class Prompt:
    """One prompt, and what was recovered of it: where (cuts and how features were sent, all with the same result) and the tokens."""

    truth: tuple[str, ...]
    found: tuple[tuple[str, Pieces], ...]


@dataclass(frozen=True)
class PromptFacts:
    """``rows`` in the order of the scan, the one that is ``recommended`` among them (None if there is none), and the ``prompts``."""

    name: str
    rows: tuple[PromptRisk, ...]
    recommended: PromptRisk | None
    prompts: tuple[Prompt, ...]


def prompt_facts(
    rows: Sequence[PromptRisk],
    prompts: Sequence[Tensor],
    *,
    name: str,
    tokens: Callable[[Tensor], list[str]] | None = None,
) -> PromptFacts:
    """``tokens`` gives the pieces of text of one prompt; without it the ids are shown."""
    each = tuple(_prompt(k, ids, rows, tokens) for k, ids in enumerate(prompts))
    return PromptFacts(name, tuple(rows), recommend(rows), each)


def sent_as(protection: Protection) -> str:
    """How features are sent, in a word or two."""
    return f"noise {protection.noise:g}" if protection.noise else protection.sent


def _prompt(
    number: int, ids: Tensor, rows: Sequence[PromptRisk], tokens: Callable[[Tensor], list[str]] | None
) -> Prompt:
    groups: dict[tuple[int, ...], list[str]] = {}
    for row in rows:
        if row.recovered:
            groups.setdefault(row.recovered[number], []).append(f"{row.cut} {sent_as(row.protection)}")
    pairs = [(", ".join(where), marked_pair(ids, torch.tensor(one), tokens)) for one, where in groups.items()]
    truth = pairs[0][1].truth if pairs else ()
    return Prompt(
        tuple(truth), tuple((where, tuple(zip(pair.found, pair.found_marks, strict=True))) for where, pair in pairs)
    )
