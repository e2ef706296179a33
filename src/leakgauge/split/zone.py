"""Finds the shallowest cut that a trained decoder cannot invert well, by training few decoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leakgauge.errors import BadInput
from leakgauge.split.envelope import envelope

GAIN = 1.25
"""A full decoder's FVU is about that of ridge to this power: 1.26 is the median of 46 decoders at the cuts of the embedded VGG."""
SCOUT = 0.1
"""Effort of a scout as a share of the full effort."""
RECOGNISED = 0.2
"""Most images that may be re-identified at a cut that is recommended, beyond those that the class alone gives away."""
FAR, NEAR = 0.2, 0.3
"""Shares of the full effort: a decoder that showed the leak by then is assumed to be 4, or 2, cuts before the crossing."""


@dataclass(frozen=True)
class Attempt:
    """One decoder trained at a cut: the epochs it took and its FVU, NaN if training was refused.

    ``stops``: it stops as soon as it has shown that the cut leaks, so its epochs indicate how near the threshold is.
    """

    cut: str
    epochs: int
    fvu: float
    stops: bool = False


CutAttack = Callable[[str, int], Attempt]
"""``attack(cut, epochs)`` trains a decoder at the cut for at most that many epochs."""


@dataclass(frozen=True)
class Zone:
    """``recommended`` is the shallowest cut that held against the full effort, or None if no cut did.

    ``bracket`` holds the last cut known to leak (None if even the first cut holds) and the recommended one.
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
        """The result in one sentence, with the effort behind it."""
        effort = (
            f"{len({attempt.cut for attempt in self.attempts})} cuts attacked, {self.spent} epochs of {self.exhaustive}"
        )
        if self.recommended is None:
            return f"No cut keeps an FVU of {self.threshold:g} ({effort})."
        *_, last = (
            attempt.fvu for attempt in self.attempts if attempt.cut == self.recommended
        )  # the full effort comes last
        return f"Recommended cut: {self.recommended} (FVU {last:.2f}, threshold {self.threshold:g}; {effort})."


def kept(fvu: float, reidentified: float, *, threshold: float, recognised: float) -> float:
    """The FVU that counts against ``threshold``: lower where more images than ``recognised`` are re-identified.

    A blurred image may leave much of the variance and still name its original. So a cut is safe only if both hold: the result is
    below the threshold if either does not. Where re-identification is unknown (NaN), the FVU alone counts.

    >>> kept(0.6, 0.1, threshold=0.25, recognised=0.2)
    0.6
    >>> kept(0.6, 0.8, threshold=0.25, recognised=0.2)
    0.0625
    """
    if not reidentified > recognised:
        return fvu
    return min(fvu, threshold * recognised / reidentified)


def crossing(names: Sequence[str], fvu: Sequence[float], *, threshold: float) -> int:
    """Index of the first cut, by depth, with an envelope that reaches the threshold; ``len(names)`` if there is none."""
    if len(names) != len(fvu):
        raise BadInput(f"a curve needs one FVU per cut, got {len(fvu)} for {len(names)}")
    return next((i for i, value in enumerate(envelope(fvu)) if value >= threshold), len(names))


def expected_crossing(cheap: Sequence[float], first: int, *, threshold: float) -> int:
    """Index of the cut, ``first`` or deeper, where a full decoder should cross the threshold, judging by ``cheap``.

    Among cuts that the cheap attack cannot distinguish, as before and after a flattening, it is the first. It is the very last cut,
    where nothing is left to split, only if no other remains.
    """
    curve = envelope(cheap)
    last = max(first, len(curve) - 2)
    at = next((i for i in range(first, last) if curve[i] ** GAIN >= threshold), last)
    while at > first and curve[at] <= curve[at - 1]:
        at -= 1
    return at


def advance(
    names: Sequence[str], cheap: Sequence[float], compute: Callable[[str], float], *, threshold: float
) -> list[float]:
    """The curve ``cheap`` after an attack that needs no training: it halves the way to the shallowest cut that it cannot break.

    ``compute(cut)`` gives its FVU, NaN if it refused. It begins where a decoder would (:func:`expected_crossing`).
    """
    curve = list(cheap)
    low, high = crossing(names, curve, threshold=threshold), len(names)
    at = expected_crossing(curve, low, threshold=threshold) if low < high else high
    while low < high:
        found = compute(names[at])
        if found < threshold:
            curve[at], low = found, at + 1
        else:
            high = at
        at = (low + high) // 2
    return curve


def find_zone(
    names: Sequence[str],
    cheap: Sequence[float],
    attack: CutAttack,
    *,
    threshold: float = 0.7,
    epochs: int = 50,
    scout: int | None = None,
    confirm: int = 0,
) -> Zone:
    """From the FVU of a cheap attack at every cut (``cheap``, by depth) to the cut that holds against ``epochs`` of a decoder.

    A cut below the threshold leaks, whichever attack showed it, and so does every shallower one (data processing). So the cheap
    curve rules out all cuts before its crossing without any decoder. The first full effort goes where a decoder is expected to
    cross the threshold, a little deeper (:func:`expected_crossing`). If that cut holds, the one before it is next, until one breaks.
    If it breaks, scouts (``scout`` epochs, by default a tenth) go ahead until one holds, and then halve the way back, to find
    where the next full effort is worthwhile. The sooner the last decoder broke its cut, the farther the next scout goes (``FAR``,
    ``NEAR``); if decoders do not stop early, the steps double. A cut that a scout breaks is broken for good; a cut that it does not
    break is not proven to hold. Refused training (NaN) decides nothing: the cut stays unproven and is skipped.

    Decoders are not all trained equally well: one at a deeper cut may still break it, and then the cut that held leaks too. With
    ``confirm``, that many deeper cuts also get the full effort before one is recommended.

    Ref: Jamieson and Talwalkar 2016, Figure 1 — successive halving, here with the threshold as the rule that drops
    """
    scout = max(1, round(SCOUT * epochs)) if scout is None else scout
    if not names or not threshold > 0:
        raise BadInput(f"a search needs cuts and a positive threshold, got {len(names)} cuts and {threshold}")
    if epochs < 1 or scout < 1:
        raise BadInput(f"a search needs at least 1 epoch for decoders and scouts, got {epochs} and {scout}")
    if confirm < 0:
        raise BadInput(f"a search needs at least 0 cuts to confirm with, got {confirm}")
    first = crossing(names, cheap, threshold=threshold)
    search = _Search(names, attack, threshold, epochs, scout, leaking=first - 1)
    held = None if first == len(names) else search(expected_crossing(cheap, first, threshold=threshold), confirm)
    return _zone(names, held, search.leaking, threshold, search.attempts, epochs)


@dataclass
class _Search:
    """A search in progress: what it has trained, and the deepest cut known to leak."""

    names: Sequence[str]
    attack: CutAttack
    threshold: float
    epochs: int
    scout: int
    leaking: int
    attempts: list[Attempt] = field(default_factory=list)
    full: dict[int, float] = field(default_factory=dict)
    """FVU of every cut that got the full effort, in that order."""
    unbroken: set[int] = field(default_factory=set)
    """Cuts that scouts could not break."""
    share: float | None = None
    """The share of the full effort after which the last decoder broke its cut; None if decoders do not stop early."""

    def __call__(self, aim: int, confirm: int) -> int | None:
        """The shallowest cut that holds against the full effort, as do ``confirm`` deeper cuts; or None."""
        at: int | None = aim
        while at is not None or not self._confirm(confirm):
            if at is not None:
                self._fully(at)
            at = self._next()
        return None if self._wall() == len(self.names) else self._wall()

    def _confirm(self, behind: int) -> bool:
        """Whether the cut that holds still does after ``behind`` deeper cuts got the full effort."""
        held = self._wall()
        for cut in range(held + 1, min(held + 1 + behind, len(self.names))):
            self._fully(cut)
        return self._wall() == held

    def _wall(self) -> int:
        """The shallowest cut that held against the full effort and is not known to leak; the end if there is none."""
        holding = (cut for cut, fvu in self.full.items() if cut > self.leaking and fvu >= self.threshold)
        return min(holding, default=len(self.names))

    def _remaining(self) -> list[int]:
        """Cuts that may be the answer and did not get the full effort."""
        return [cut for cut in range(self.leaking + 1, self._wall()) if cut not in self.full]

    def _next(self) -> int | None:
        """The cut that deserves the full effort now; None if the search is finished."""
        if next(reversed(self.full.values())) >= self.threshold:
            return max(self._remaining(), default=None)  # is the cut before it broken?
        self._scout()
        return min(self._remaining(), default=None)

    def _fully(self, cut: int) -> None:
        """Makes the full effort, at most once per cut."""
        if cut not in self.full:
            self.full[cut] = self._fvu(cut, self.epochs)

    def _scout(self) -> None:
        """Small efforts beyond the cut that was broken last, until the next one is a single cut away."""
        broken = 1
        while left := self._remaining():
            start, wall = left[0], min((cut for cut in self.unbroken if cut >= left[0]), default=left[-1] + 1)
            at = min(start - 1 + self._stride(broken), (start + wall) // 2)  # the deepest, most expensive cuts last
            if at == start:  # a single cut is not worth a scout
                break
            if self._breaks(at):
                broken += 1
            else:
                self.unbroken.add(at)

    def _stride(self, broken: int) -> int:
        """How far the crossing may be from the last broken cut, the ``broken``-th in a row."""
        if self.share is None:
            return 2**broken
        return 4 if self.share <= FAR else 2 if self.share <= NEAR else 1

    def _breaks(self, cut: int) -> bool:
        """Whether a scout brings the cut below the threshold; with the full effort it would not be a scout."""
        return self.scout < self.epochs and self._fvu(cut, self.scout) < self.threshold

    def _fvu(self, cut: int, epochs: int) -> float:
        attempt = self.attack(self.names[cut], epochs)
        self.attempts.append(attempt)
        if attempt.fvu < self.threshold:
            self.leaking = max(self.leaking, cut)
            self.share = attempt.epochs / self.epochs if attempt.stops else None
        return attempt.fvu


def _zone(
    names: Sequence[str], held: int | None, leaking: int, threshold: float, attempts: list[Attempt], epochs: int
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


def bisect(names: Sequence[str], attack: CutAttack, *, threshold: float = 0.7, epochs: int = 50) -> Zone:
    """The plain alternative: full decoders at cuts chosen by bisection; correct if the curve rises with depth."""
    low, high, attempts = -1, len(names), list[Attempt]()
    while high - low > 1:
        middle = (low + high) // 2
        attempts.append(attack(names[middle], epochs))
        low, high = (low, middle) if attempts[-1].fvu >= threshold else (middle, high)
    return _zone(names, None if high == len(names) else high, low, threshold, attempts, epochs)


def exhaustive(names: Sequence[str], attack: CutAttack, *, threshold: float = 0.7, epochs: int = 50) -> Zone:
    """The reference: a full decoder at every cut, then the crossing of their envelope."""
    attempts = [attack(name, epochs) for name in names]
    first = crossing(names, [attempt.fvu for attempt in attempts], threshold=threshold)
    return _zone(names, None if first == len(names) else first, first - 1, threshold, attempts, epochs)
