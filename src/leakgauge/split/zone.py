"""Finds the shallowest cut that a trained decoder cannot invert well, with few decoders trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leakgauge.errors import BadInput
from leakgauge.split.envelope import envelope

GAIN = 1.25
"""A full decoder's FVU is about that of ridge to this power: in the middle of 46 decoders at the cuts of the embedded VGG, 1.26."""
SCOUT = 0.1
"""Effort of a scout as a share of the full one."""
FAR, NEAR = 0.2, 0.3
"""Shares of the full effort: a decoder that had shown the leak by then is taken to be 4, or 2, cuts before the crossing."""


@dataclass(frozen=True)
class Attempt:
    """One decoder trained at a cut: the epochs it took and its FVU, NaN where training refused.

    ``stops``: it would have stopped as soon as it had shown that the cut leaks, so its epochs tell how near the threshold is.
    """

    cut: str
    epochs: int
    fvu: float
    stops: bool = False


Attacked = Callable[[str, int], Attempt]
"""``attacked(cut, epochs)`` trains a decoder at the cut for at most so many epochs."""


@dataclass(frozen=True)
class Zone:
    """``recommended`` is the shallowest cut that held against the full effort, or None if no cut did.

    ``bracket`` holds the last cut that is known to leak (None if even the first cut holds) and the recommended one.
    ``spent`` counts epochs of decoder training, ``exhaustive`` what training every cut fully would have cost.
    ``threshold`` is the FVU that a cut must keep.
    """

    recommended: str | None
    bracket: tuple[str | None, str | None]
    threshold: float
    attempts: tuple[Attempt, ...]
    spent: int
    exhaustive: int

    def sentence(self) -> str:
        """The result in one sentence, with the effort it rests on."""
        effort = (
            f"{len({attempt.cut for attempt in self.attempts})} cuts attacked, {self.spent} epochs of {self.exhaustive}"
        )
        if self.recommended is None:
            return f"No cut keeps an FVU of {self.threshold:g} ({effort})."
        *_, last = (
            attempt.fvu for attempt in self.attempts if attempt.cut == self.recommended
        )  # the full effort comes last
        return f"Recommended cut: {self.recommended} (FVU {last:.2f}, threshold {self.threshold:g}; {effort})."


def crossing(names: Sequence[str], fvu: Sequence[float], *, threshold: float) -> int:
    """Index of the first cut, by depth, whose envelope reaches the threshold; ``len(names)`` if none does."""
    if len(names) != len(fvu):
        raise BadInput(f"a curve needs one FVU per cut, got {len(fvu)} for {len(names)}")
    return next((i for i, value in enumerate(envelope(fvu)) if value >= threshold), len(names))


def aimed(cheap: Sequence[float], first: int, *, threshold: float) -> int:
    """Index of the cut, ``first`` or behind it, at which a full decoder will cross the threshold by what ``cheap`` tells.

    Of cuts that the cheap attack cannot tell apart, as before and after a flattening, it is the first; the last cut of all,
    where nothing is left to split, only where no other remains.
    """
    curve = envelope(cheap)
    last = max(first, len(curve) - 2)
    at = next((i for i in range(first, last) if curve[i] ** GAIN >= threshold), last)
    while at > first and curve[at] <= curve[at - 1]:
        at -= 1
    return at


def find_zone(
    names: Sequence[str],
    cheap: Sequence[float],
    attacked: Attacked,
    *,
    threshold: float = 0.7,
    epochs: int = 50,
    scout: int | None = None,
    confirm: int = 0,
) -> Zone:
    """From the FVU of a cheap attack at every cut (``cheap``, by depth) to the cut that holds against ``epochs`` of a decoder.

    A cut below the threshold leaks, whatever attack showed it, and so does every shallower one (data processing): the
    cheap curve rules out all cuts before its crossing without any decoder. The first full effort goes where a decoder is
    expected to cross the threshold, a little deeper (:func:`aimed`). If the cut holds, the one before it is next, until
    one breaks. If it breaks, scouts (``scout`` epochs, by default a tenth) go ahead until one holds, and halve the way back, to
    find where the next full effort is worth its price. The sooner the last decoder had broken its cut, the farther the next
    scout goes (``FAR``, ``NEAR``); where decoders do not stop early, steps double.
    What a scout breaks is broken for good; that it did not break a cut proves nothing. Training refused (NaN) decides
    nothing: the cut stays unproven and is passed over.

    Decoders are not all trained equally well: one at a deeper cut may still break, and then the cut that held leaks too. With
    ``confirm``, the full effort is also made at so many deeper cuts before one is recommended.

    Ref: Jamieson and Talwalkar 2016, Figure 1 — successive halving, here with the threshold as the rule that drops
    """
    scout = max(1, round(SCOUT * epochs)) if scout is None else scout
    if not names or not threshold > 0:
        raise BadInput(f"a search needs cuts and a positive threshold, got {len(names)} cuts and {threshold}")
    if epochs < 1 or scout < 1:
        raise BadInput(f"a search needs at least 1 epoch for decoders and scouts, got {epochs} and {scout}")
    if confirm < 0:
        raise BadInput(f"a search confirms with 0 cuts or more, got {confirm}")
    first = crossing(names, cheap, threshold=threshold)
    search = _Search(names, attacked, threshold, epochs, scout, leaking=first - 1)
    held = None if first == len(names) else search(aimed(cheap, first, threshold=threshold), confirm)
    return _zone(names, held, search.leaking, threshold, search.attempts, epochs)


@dataclass
class _Search:
    """A search under way: what it has trained, and the deepest cut that is known to leak."""

    names: Sequence[str]
    attacked: Attacked
    threshold: float
    epochs: int
    scout: int
    leaking: int
    attempts: list[Attempt] = field(default_factory=list)
    full: dict[int, float] = field(default_factory=dict)
    """FVU of every cut that was given the full effort, in that order."""
    unbroken: set[int] = field(default_factory=set)
    """Cuts that scouts gave up."""
    share: float | None = None
    """Of the full effort, which the decoder took that broke a cut last; None where it does not stop by itself."""

    def __call__(self, aim: int, confirm: int) -> int | None:
        """The shallowest cut that holds against the full effort, and ``confirm`` deeper cuts too, or None."""
        at: int | None = aim
        while at is not None or not self._confirmed(confirm):
            if at is not None:
                self._fully(at)
            at = self._next()
        return None if self._wall() == len(self.names) else self._wall()

    def _confirmed(self, behind: int) -> bool:
        """Whether the cut that holds still does once ``behind`` cuts after it were given the full effort."""
        held = self._wall()
        for cut in range(held + 1, min(held + 1 + behind, len(self.names))):
            self._fully(cut)
        return self._wall() == held

    def _wall(self) -> int:
        """The shallowest cut that held against the full effort and is not known to leak; the end if there is none."""
        holding = (cut for cut, fvu in self.full.items() if cut > self.leaking and fvu >= self.threshold)
        return min(holding, default=len(self.names))

    def _left(self) -> list[int]:
        """Cuts that may be the answer and were not given the full effort."""
        return [cut for cut in range(self.leaking + 1, self._wall()) if cut not in self.full]

    def _next(self) -> int | None:
        """The cut that is worth the full effort now; None if all is settled."""
        if next(reversed(self.full.values())) >= self.threshold:
            return max(self._left(), default=None)  # is the cut before it broken?
        self._scout()
        return min(self._left(), default=None)

    def _fully(self, cut: int) -> None:
        """Makes the full effort, which no cut is given twice."""
        if cut not in self.full:
            self.full[cut] = self._fvu(cut, self.epochs)

    def _scout(self) -> None:
        """Small efforts ahead of the cut that was broken last, until the next one is a single cut away."""
        broken = 1
        while left := self._left():
            start, wall = left[0], min((cut for cut in self.unbroken if cut >= left[0]), default=left[-1] + 1)
            at = min(start - 1 + self._stride(broken), (start + wall) // 2)  # the deepest, dearest cuts last
            if at == start:  # a single cut is not worth a scout
                break
            if self._breaks(at):
                broken += 1
            else:
                self.unbroken.add(at)

    def _stride(self, broken: int) -> int:
        """How far the crossing may be from the cut that was broken last, the ``broken``-th in a row."""
        if self.share is None:
            return 2**broken
        return 4 if self.share <= FAR else 2 if self.share <= NEAR else 1

    def _breaks(self, cut: int) -> bool:
        """Whether a scout brings the cut below the threshold; one as long as the full effort would be no scout."""
        return self.scout < self.epochs and self._fvu(cut, self.scout) < self.threshold

    def _fvu(self, cut: int, epochs: int) -> float:
        attempt = self.attacked(self.names[cut], epochs)
        self.attempts.append(attempt)
        if attempt.fvu < self.threshold:
            self.leaking = max(self.leaking, cut)
            self.share = attempt.epochs / self.epochs if attempt.stops else None
        return attempt.fvu


def _zone(
    names: Sequence[str],
    held: int | None,
    leaking: int,
    threshold: float,
    attempts: list[Attempt],
    epochs: int,
) -> Zone:
    recommended = None if held is None else names[held]
    return Zone(
        recommended=recommended,
        bracket=(None if leaking < 0 else names[leaking], recommended),
        threshold=threshold,
        attempts=tuple(attempts),
        spent=sum(attempt.epochs for attempt in attempts),
        exhaustive=len(names) * epochs,
    )


def bisect(names: Sequence[str], attacked: Attacked, *, threshold: float = 0.7, epochs: int = 50) -> Zone:
    """The plain alternative: full decoders at cuts chosen by halving the depth; right where the curve rises with depth."""
    low, high, attempts = -1, len(names), list[Attempt]()
    while high - low > 1:
        middle = (low + high) // 2
        attempts.append(attacked(names[middle], epochs))
        low, high = (low, middle) if attempts[-1].fvu >= threshold else (middle, high)
    return _zone(names, None if high == len(names) else high, low, threshold, attempts, epochs)


def exhaustive(names: Sequence[str], attacked: Attacked, *, threshold: float = 0.7, epochs: int = 50) -> Zone:
    """The reference: a full decoder at every cut, then the crossing of their envelope."""
    attempts = [attacked(name, epochs) for name in names]
    first = crossing(names, [attempt.fvu for attempt in attempts], threshold=threshold)
    return _zone(names, None if first == len(names) else first, first - 1, threshold, attempts, epochs)
