"""Finds the shallowest cut that a trained decoder cannot invert well, with few decoders trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leakgauge.errors import BadInput
from leakgauge.split.envelope import envelope

Attacked = Callable[[str, int], float]
"""``attacked(cut, epochs)``: FVU of a decoder trained at the cut for so many epochs; NaN where it refused."""


@dataclass(frozen=True)
class Trial:
    """One decoder that was trained."""

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
        last = [trial.fvu for trial in self.trials if trial.cut == self.recommended][-1]
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
    rungs: Sequence[int] = (1, 3, 12, 50),
    ahead: int = 3,
) -> Zone:
    """From the FVU of a cheap attack at every cut (``cheap``, by depth) to the cut that holds against ``rungs[-1]`` epochs.

    A cut below the threshold leaks, whatever attack showed it, and so does every shallower one (data processing): the
    cheap curve rules out all cuts before its crossing without any decoder. From there on, ``ahead`` cuts at a time, decoders
    are trained in rungs: a cut that falls below the threshold at a small effort needs no larger one, and with it go all
    shallower cuts. The shallowest cut that is left after the last rung is the answer. Training refused (NaN) decides nothing:
    the cut stays unproven and is passed over.

    Ref: Jamieson and Talwalkar 2016, Figure 1 — successive halving, here with the threshold as the rule that drops
    """
    if not names or not threshold > 0 or not rungs or list(rungs) != sorted(set(rungs)) or rungs[0] < 1:
        raise BadInput(
            f"a search needs cuts, a positive threshold and rising rungs, got {threshold} and {tuple(rungs)}"
        )
    if ahead < 1:
        raise BadInput(f"a search looks at least 1 cut ahead, got {ahead}")
    first = crossing(names, cheap, threshold=threshold)
    leaking, start, trials = first - 1, first, list[Trial]()
    while start < len(names):
        window = list(range(start, min(start + ahead, len(names))))
        held, leaking = _rungs(window, leaking, names, attacked, threshold, rungs, trials)
        if held is not None:
            return _zone(names, held, leaking, threshold, trials, rungs)
        start = window[-1] + 1
    return _zone(names, None, leaking, threshold, trials, rungs)


def _rungs(
    window: list[int],
    leaking: int,
    names: Sequence[str],
    attacked: Attacked,
    threshold: float,
    rungs: Sequence[int],
    trials: list[Trial],
) -> tuple[int | None, int]:
    """The shallowest cut of the window that holds after every rung, or None; and the deepest cut known to leak.

    Small rungs go from deep to shallow, since a deep cut that leaks settles all before it. The last, expensive rung goes
    from shallow to deep and stops at the first that holds.
    """
    for epochs in rungs[:-1]:
        for i in reversed(window):
            fvu = attacked(names[i], epochs)
            trials.append(Trial(names[i], epochs, fvu))
            if fvu < threshold:
                leaking = max(leaking, i)
                break
        window = [i for i in window if i > leaking]
    for i in window:
        fvu = attacked(names[i], rungs[-1])
        trials.append(Trial(names[i], rungs[-1], fvu))
        if fvu >= threshold:
            return i, leaking
        if fvu < threshold:
            leaking = max(leaking, i)
    return None, leaking


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
        fvu = attacked(names[middle], epochs)
        trials.append(Trial(names[middle], epochs, fvu))
        low, high = (low, middle) if fvu >= threshold else (middle, high)
    return _zone(names, None if high == len(names) else high, low, threshold, trials, (epochs,))


def exhaustive(names: Sequence[str], attacked: Attacked, *, threshold: float = 0.7, epochs: int = 50) -> Zone:
    """The reference: a full decoder at every cut, then the crossing of their envelope."""
    trials = [Trial(name, epochs, attacked(name, epochs)) for name in names]
    first = crossing(names, [trial.fvu for trial in trials], threshold=threshold)
    return _zone(names, None if first == len(names) else first, first - 1, threshold, trials, (epochs,))
