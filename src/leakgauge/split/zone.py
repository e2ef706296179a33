"""Finds the shallowest cut that a trained decoder cannot invert well, with few decoders trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leakgauge.errors import BadInput
from leakgauge.split.envelope import envelope

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


def find_zone(
    names: Sequence[str],
    cheap: Sequence[float],
    attacked: Attacked,
    *,
    threshold: float = 0.7,
    rungs: Sequence[int] = (20, 50),
    ahead: int | None = None,
    confirm: int = 0,
) -> Zone:
    """From the FVU of a cheap attack at every cut (``cheap``, by depth) to the cut that holds against ``rungs[-1]`` epochs.

    A cut below the threshold leaks, whatever attack showed it, and so does every shallower one (data processing): the
    cheap curve rules out all cuts before its crossing without any decoder. What counts from there on is the full effort at
    the shallowest cut that is left: if it holds, it is the answer. If not, scouts go ahead with the smaller efforts until
    one holds, and halve the way back, to find where the next full effort is worth its price. The sooner the last decoder had
    broken its cut, the farther the next scout goes (``FAR``, ``NEAR``); where decoders do not stop early, steps double.
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
    held = search.by_scouts(first, confirm) if ahead is None else search.by_windows(first, ahead)
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
    share: float | None = None
    """Of the full effort, which the decoder took that broke a cut last; None where decoders do not stop by themselves."""

    def by_scouts(self, start: int, confirm: int) -> int | None:
        """The shallowest cut from ``start`` on that holds against the full effort, and ``confirm`` cuts behind it too, or None."""
        unbroken: set[int] = set()
        while start < len(self.names):
            broken = start
            if self._fully(start) >= self.threshold:
                behind = range(start + 1, min(start + 1 + confirm, len(self.names)))
                broken = max((cut for cut in behind if self._fully(cut) < self.threshold), default=-1)
                if broken < 0:
                    return start
                unbroken |= {cut for cut, fvu in self.full.items() if fvu >= self.threshold}  # no scout need go there
            start = self._scouted(broken + 1, unbroken)
        return None

    def _fully(self, cut: int) -> float:
        """The FVU after the full effort, which no cut is given twice."""
        if cut not in self.full:
            self.full[cut] = self._fvu(cut, self.rungs[-1])
        return self.full[cut]

    def _scouted(self, start: int, unbroken: set[int]) -> int:
        """The first cut from ``start`` on that is worth the full effort; ``unbroken`` are those that scouts gave up."""
        wall, broken = min((cut for cut in unbroken if cut >= start), default=len(self.names)), 1
        while wall - start > 1:  # a single cut is not worth a scout
            at = min(start - 1 + self._stride(broken), (start + wall) // 2)  # the deepest, dearest cuts last
            if at == start:
                break
            if self._breaks(at):
                start, broken = at + 1, broken + 1
            else:
                unbroken.add(at)
                wall = at
        return start

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
