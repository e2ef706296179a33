"""Finds the shallowest cut that a trained decoder cannot invert well, with few decoders trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leakgauge.errors import BadInput
from leakgauge.split.envelope import envelope

GAIN = 1.25
"""A full decoder's FVU is about that of ridge to this power: in the middle of 46 decoders at the cuts of the embedded VGG, 1.26."""
FAR, NEAR = 0.2, 0.3
"""Shares of the full effort: a decoder that had shown the leak by then is taken to be 4, or 2, cuts before the crossing."""


@dataclass(frozen=True)
class Outcome:
    """FVU of a decoder (NaN where training refused) and the epochs that it took, fewer if it stopped once the cut had leaked."""

    fvu: float
    trained: int


Attacked = Callable[[str, int], float | Outcome]
"""``attacked(cut, epochs)``: a decoder trained at the cut for at most so many epochs. A plain FVU means that it took them all."""


@dataclass(frozen=True)
class Trial:
    """One decoder that was trained; ``epochs`` are those it really took."""

    cut: str
    epochs: int
    fvu: float


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
    trials: tuple[Trial, ...]
    spent: int
    exhaustive: int

    def sentence(self) -> str:
        """The result in one sentence, with the effort it rests on."""
        effort = f"{len({trial.cut for trial in self.trials})} cuts attacked, {self.spent} epochs of {self.exhaustive}"
        if self.recommended is None:
            return f"No cut keeps an FVU of {self.threshold:g} ({effort})."
        last = [trial.fvu for trial in self.trials if trial.cut == self.recommended][
            -1
        ]  # a cut's full effort comes last
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
    rungs: Sequence[int] = (5, 50),
    ahead: int | None = None,
    confirm: int = 0,
) -> Zone:
    """From the FVU of a cheap attack at every cut (``cheap``, by depth) to the cut that holds against ``rungs[-1]`` epochs.

    A cut below the threshold leaks, whatever attack showed it, and so does every shallower one (data processing): the
    cheap curve rules out all cuts before its crossing without any decoder. The first full effort goes where a decoder is
    expected to cross the threshold, a little behind that (:func:`aimed`). If the cut holds, the one before it is next, until
    one breaks. If it breaks, scouts go ahead with the smaller efforts until one holds, and halve the way back, to find where
    the next full effort is worth its price. The sooner the last decoder had broken its cut, the farther the next scout goes
    (``FAR``, ``NEAR``); where decoders do not stop early, steps double.
    What a scout breaks is broken for good; that it did not break a cut proves nothing. Training refused (NaN) decides
    nothing: the cut stays unproven and is passed over.

    Decoders are not all trained equally well: one behind the cut that held may still break, and then that cut leaks too. With
    ``confirm``, the full effort is also made at so many cuts behind it before it is recommended.

    With ``ahead``, so many cuts at a time are trained side by side instead, all to the same effort, and those that fall below
    the threshold are dropped: dearer, but it gives a curve around the crossing, and its length can be told beforehand.

    Ref: Jamieson and Talwalkar 2016, Figure 1 — successive halving, here with the threshold as the rule that drops
    """
    if not names or not threshold > 0 or not rungs or list(rungs) != sorted(set(rungs)) or rungs[0] < 1:
        raise BadInput(
            f"a search needs cuts, a positive threshold and rising rungs, got {threshold} and {tuple(rungs)}"
        )
    if ahead is not None and ahead < 1:
        raise BadInput(f"a search looks at least 1 cut ahead, got {ahead}")
    if confirm < 0 or (confirm and ahead is not None):
        raise BadInput(
            f"a search by scouts confirms with 0 cuts or more, one by windows has no such option, got {confirm}"
        )
    first = crossing(names, cheap, threshold=threshold)
    search = _Search(names, attacked, threshold, rungs, leaking=first - 1)
    if first == len(names):
        held = None
    elif ahead is None:
        held = search.by_scouts(aimed(cheap, first, threshold=threshold), confirm)
    else:
        held = search.by_windows(first, ahead)
    return _zone(names, held, search.leaking, threshold, search.trials, rungs)


@dataclass
class _Search:
    """A search under way: what it has trained, and the deepest cut that is known to leak."""

    names: Sequence[str]
    attacked: Attacked
    threshold: float
    rungs: Sequence[int]
    leaking: int
    trials: list[Trial] = field(default_factory=list)
    full: dict[int, float] = field(default_factory=dict)
    """FVU of every cut that was given the full effort, in that order."""
    unbroken: set[int] = field(default_factory=set)
    """Cuts that scouts gave up."""
    share: float | None = None
    """Of the full effort, which the decoder took that broke a cut last; None where decoders do not stop by themselves."""

    def by_scouts(self, aim: int, confirm: int) -> int | None:
        """The shallowest cut that holds against the full effort, and ``confirm`` cuts behind it too, or None."""
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
            self.full[cut] = self._fvu(cut, self.rungs[-1])

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
        """Whether any of the small efforts brings the cut below the threshold."""
        return any(self._fvu(cut, epochs) < self.threshold for epochs in self.rungs[:-1])

    def _fvu(self, cut: int, epochs: int) -> float:
        found = self.attacked(self.names[cut], epochs)
        trial = _trial(self.names[cut], epochs, found)
        self.trials.append(trial)
        if trial.fvu < self.threshold:
            self.leaking = max(self.leaking, cut)
            self.share = trial.epochs / self.rungs[-1] if isinstance(found, Outcome) else None
        return trial.fvu

    def by_windows(self, start: int, ahead: int) -> int | None:
        """The same by ``ahead`` cuts at a time."""
        while start < len(self.names):
            held = self._window(range(start, min(start + ahead, len(self.names))))
            if held is not None:
                return held
            start += ahead
        return None

    def _window(self, window: Sequence[int]) -> int | None:
        """The shallowest cut of the window that holds after every rung, or None.

        Small rungs go from deep to shallow, since a deep cut that leaks settles all before it. The last, expensive rung goes
        from shallow to deep and stops at the first that holds.
        """
        for epochs in self.rungs[:-1]:
            for cut in reversed([i for i in window if i > self.leaking]):
                if self._fvu(cut, epochs) < self.threshold:
                    break
        for cut in [i for i in window if i > self.leaking]:
            if self._fvu(cut, self.rungs[-1]) >= self.threshold:
                return cut
        return None


def _trial(cut: str, epochs: int, found: float | Outcome) -> Trial:
    return Trial(cut, found.trained, found.fvu) if isinstance(found, Outcome) else Trial(cut, epochs, found)


def _zone(
    names: Sequence[str],
    held: int | None,
    leaking: int,
    threshold: float,
    trials: list[Trial],
    rungs: Sequence[int],
) -> Zone:
    recommended = None if held is None else names[held]
    return Zone(
        recommended=recommended,
        bracket=(None if leaking < 0 else names[leaking], recommended),
        threshold=threshold,
        trials=tuple(trials),
        spent=sum(trial.epochs for trial in trials),
        exhaustive=len(names) * rungs[-1],
    )


def bisect(names: Sequence[str], attacked: Attacked, *, threshold: float = 0.7, epochs: int = 50) -> Zone:
    """The plain alternative: full decoders at cuts chosen by halving the depth; right where the curve rises with depth."""
    low, high, trials = -1, len(names), list[Trial]()
    while high - low > 1:
        middle = (low + high) // 2
        trials.append(_trial(names[middle], epochs, attacked(names[middle], epochs)))
        low, high = (low, middle) if trials[-1].fvu >= threshold else (middle, high)
    return _zone(names, None if high == len(names) else high, low, threshold, trials, (epochs,))


def exhaustive(names: Sequence[str], attacked: Attacked, *, threshold: float = 0.7, epochs: int = 50) -> Zone:
    """The reference: a full decoder at every cut, then the crossing of their envelope."""
    trials = [_trial(name, epochs, attacked(name, epochs)) for name in names]
    first = crossing(names, [trial.fvu for trial in trials], threshold=threshold)
    return _zone(names, None if first == len(names) else first, first - 1, threshold, trials, (epochs,))
