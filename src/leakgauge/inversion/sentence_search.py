"""Finds sentences whose inputs to a layer are all in the span of its gradient: place by place in decoders, by descent in encoders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.inversion.readers import Reading, TextReader
from leakgauge.inversion.row_spans import RowSpan

MUCH_NEARER = 0.5
"""A vector that is outside the span by more than this share of what a random one is, is taken for none of the inputs."""
WIDER = 4
"""Beginnings that are kept at each place for each sentence; more than one are kept only if more fit."""

CLOSEST = 1e-4
"""Smaller shares of the distance of others say no more than this one."""


@dataclass(eq=False)
class Found:
    """Sentences in the order in which they were found; ``ids`` hold only the places that fit, so one may end early.

    ``distance`` sums the smooth distances of the places. ``fits``: every place is in the span up to rounding. ``tested`` counts
    candidates, ``crowded`` says that more beginnings fitted than were kept.
    """

    ids: list[Tensor] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    fits: list[bool] = field(default_factory=list)
    tested: int = 0
    crowded: bool = False

    def add(self, ids: Tensor, distance: float, *, fits: bool) -> None:
        if not any(torch.equal(ids, other) for other in self.ids):
            self.ids.append(ids)
            self.distances.append(distance)
            self.fits.append(fits)


def by_place(
    reader: TextReader, reading: Reading, span: RowSpan, sets: Sequence[Tensor], size: int, *, guess: bool
) -> Found:
    """For a decoder: extends every beginning by every candidate of the next place and keeps those in the span.

    What a causal layer reads at a place depends on the tokens up to it, so each beginning is tested by itself. ``sets`` are the candidates
    of each place. One that cannot be extended ends. With ``guess`` the nearest are kept whether or not they are in the span, if they
    are much nearer than a random vector.
    """
    found, keep = Found(), WIDER * size
    starts = torch.zeros(1, 0, dtype=torch.long, device=span.basis.device)
    so_far = span.values.new_zeros(1)
    for at, candidates in enumerate(sets):
        found.tested += len(starts) * len(candidates)
        rows, near = _nearest(reader.read_next(starts, candidates, reading), span, guess=guess)
        came_from, last = rows // max(1, len(candidates)), candidates[rows % max(1, len(candidates))]
        if at:
            for k in sorted(set(range(len(starts))) - set(came_from.tolist())):
                found.add(starts[k], float(so_far[k]), fits=not guess)
        total = near + so_far[came_from]
        if len(rows) > keep:
            found.crowded |= not guess
            best = total.argsort()[:keep]
            came_from, last, total = came_from[best], last[best], total[best]
        starts, so_far = torch.cat([starts[came_from], last[:, None]], 1), total
        if len(starts) == 0:
            break
    for k in so_far.argsort().tolist():
        found.add(starts[k], float(so_far[k]), fits=not guess)
    return found


def by_rank(
    reader: TextReader,
    reading: Reading,
    span: RowSpan,
    sets: Sequence[Tensor],
    size: int,
    *,
    share: float,
    by_place: bool,
) -> list[Tensor]:
    """For a decoder whose batch fills the span: sentences that are nearer to it than others at every place, best first.

    Extends every beginning by the candidates whose smooth distance is at most ``share`` of the median of all candidates there: almost all
    of them are wrong. One that cannot be extended ends. The best have the lowest mean logarithm of these shares. A decoder that does not
    read places (``by_place``) reads the same however often the first token is repeated, so that is not done.
    """
    keep = WIDER * size
    ended: list[tuple[float, Tensor]] = []
    starts = torch.zeros(1, 0, dtype=torch.long, device=span.basis.device)
    so_far = span.values.new_zeros(1)
    for at, candidates in enumerate(sets):
        if len(starts) == 0 or len(candidates) == 0:
            break
        found = torch.cat([span.distance(part) for part in reader.read_next(starts, candidates, reading)])
        found = found.view(len(starts), -1)
        share_of_others = found / found.median(1, keepdim=True).values.clamp_min(torch.finfo(found.dtype).tiny)
        near = share_of_others <= share
        if at and not by_place:
            near &= (starts[:, None] != candidates[:, None]).any(2)
        came_from, column = near.nonzero(as_tuple=True)
        if at:
            last = sorted(set(range(len(starts))) - set(came_from.tolist()))
            ended.extend((float(so_far[k]) / at, starts[k]) for k in last)
        total = so_far[came_from] + share_of_others[came_from, column].clamp_min(CLOSEST).log()
        best = total.argsort()[:keep]
        came_from, column, so_far = came_from[best], column[best], total[best]
        starts = torch.cat([starts[came_from], candidates[column][:, None]], 1)
    ended.extend((float(value) / starts.shape[1], ids) for value, ids in zip(so_far, starts, strict=True) if len(ids))
    return [ids for _, ids in sorted(ended, key=lambda one: one[0])]


def _nearest(parts: Iterable[Tensor], span: RowSpan, *, guess: bool) -> tuple[Tensor, Tensor]:
    """Which of the vectors, given in parts, are in the span (with ``guess``: near it), and their smooth distances."""
    rows, near, begin = [], [], 0
    for vectors in parts:
        if guess:
            distance = span.distance(vectors)
            held = (distance <= MUCH_NEARER * span.random_distance).nonzero().flatten()
            near.append(distance[held])
        else:
            held = span.holds(vectors).nonzero().flatten()
            near.append(span.distance(vectors[held]))
        rows.append(begin + held)
        begin += len(vectors)
    if not rows:
        return torch.zeros(0, dtype=torch.long, device=span.basis.device), span.values[:0]
    return torch.cat(rows), torch.cat(near)


def by_descent(
    reader: TextReader, reading: Reading, span: RowSpan, sets: Sequence[Tensor], size: int, *, tries: int, seed: int
) -> Found:
    """For an encoder: lowers Σ_p distance(z_p), place by place to the best token, then by exchanging two, from many starts.

    Each wrong token moves what the layer reads at every place, so the sum falls with every right one. A start holds a token that no found
    sentence explains, and that token stays until the end. ``tries`` limits the starts for each sentence.
    """
    found, rng = Found(), torch.Generator().manual_seed(seed)
    length = len(sets)
    if any(len(one) == 0 for one in sets):
        return found
    best: list[tuple[float, Tensor]] = []
    for _ in range(tries * size):
        missing = [
            (at, token)
            for at, candidates in enumerate(sets)
            for token in candidates.tolist()
            if not any(int(ids[at]) == token for ids in found.ids)
        ]
        if len(found.ids) == size or not missing:
            break
        pinned, token = missing[int(torch.randint(len(missing), (1,), generator=rng))]
        drawn = [one[int(torch.randint(len(one), (1,), generator=rng))] for one in sets]
        ids = torch.stack(drawn)
        ids[pinned] = token
        for kept in (pinned, -1):  # the pin may be of no sentence
            value, ids = _descend(reader, reading, span, sets, ids, kept, found)
        vectors = reader.read(ids[None], reading)[0]
        if bool((span.outside(vectors) <= 1).all()):
            found.add(ids, value, fits=True)
        else:
            best.append((value, ids))
    for value, ids in sorted(best, key=lambda one: one[0]):
        if len(found.ids) >= size:
            break
        found.add(ids, value, fits=False)
    assert all(len(ids) == length for ids in found.ids)
    return found


def _descend(
    reader: TextReader, reading: Reading, span: RowSpan, sets: Sequence[Tensor], ids: Tensor, pinned: int, found: Found
) -> tuple[float, Tensor]:
    def values(many: Tensor) -> Tensor:
        found.tested += len(many)
        vectors = reader.read(many, reading)
        return span.distance(vectors.flatten(0, 1)).view(len(many), -1).sum(1)

    value, changed = float(values(ids[None])[0]), True
    while changed:
        changed = False
        for at in (*(at for at in range(len(sets)) if at != pinned), None):
            if at is None and changed:  # exchanges are tried only where no single token can be improved
                break
            many = _exchanges(ids, sets, pinned) if at is None else _replacements(ids, sets[at], at)
            if len(many) == 0:
                continue
            scored = values(many)
            best = int(scored.argmin())
            if float(scored[best]) < value:
                value, ids, changed = float(scored[best]), many[best], True
    return value, ids


def _replacements(ids: Tensor, candidates: Tensor, at: int) -> Tensor:
    others = candidates[candidates != ids[at]]
    rows = ids.repeat(len(others), 1)
    rows[:, at] = others
    return rows


def _exchanges(ids: Tensor, sets: Sequence[Tensor], pinned: int) -> Tensor:
    """Two places with each other's tokens, where both may be there."""
    rows = [ids[:0].view(0, len(ids))]
    for a in range(len(ids)):
        for b in range(a):
            if pinned in (a, b) or ids[a] == ids[b] or not ((sets[a] == ids[b]).any() and (sets[b] == ids[a]).any()):
                continue
            swapped = ids.clone()
            swapped[[a, b]] = ids[[b, a]]
            rows.append(swapped[None])
    return torch.cat(rows)
