"""One search over rows of candidates: judges them and keeps the best of each row with its loss, on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.channels.output import Along
from leakgauge.channels.twice import refuse_once_only
from leakgauge.core import Channel, Explains, PerSample, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.engine import (
    Observed,
    Precision,
    Reference,
    Replay,
    Replayer,
    VmapReplay,
    choose,
    rows_that_fit,
    saved_bytes,
)
from leakgauge.errors import Inapplicable
from leakgauge.inversion.defended import FIRST, DefendedReplay, WeighedReplay, precision, trust
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.free_targets import FreeTargets
from leakgauge.inversion.terms import Candidate, Term

Rows = slice | Tensor
"""Which rows: a slice, or their indices."""


KNOWN = {
    True: "compared through the defense, which takes whole gradients",
    False: "the defense is known, and loses so little that what was sent is compared with itself",
}


WEIGHED = "the defense is known, and tensors are weighed by how noisy it makes them"


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that stays fixed while candidates move. ``labels`` (rows, B), or None if they are optimised.

    Rows are ordered by observation: ``draws.restarts`` rows each.
    """

    objective: Term
    victim: Victim
    channel: Channel
    observed: Observed
    labels: Tensor | None
    precision: Precision
    draws: Draws
    defenses: tuple[Explains, ...] = ()
    """Those that the adversary knows and compares through."""
    free: FreeTargets | None = None
    """How targets that are searched follow from free numbers."""
    unknowns: int = 0
    """Numbers that the client drew for each sample, searched after the free numbers of its target (if that is searched too)."""
    scores: int = 0
    """Classes, where there are unknown draws."""

    def take(self, rows: Rows) -> Problem:
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, observed=self.observed.take(rows), labels=labels, draws=self.draws.take(rows))

    def found_labels(self) -> Tensor:
        """The labels (rows, B, …); of gradients at the output (rows, B, C + D), the class whose score the client's step raises most."""
        assert self.labels is not None
        loss = self.victim.loss
        if not isinstance(loss, Along):
            return self.labels
        inputs = self.victim.model.get_parameter(f"{loss.layer}.weight").shape[1]
        return self.labels[..., : self.labels.shape[-1] - inputs].argmin(-1)

    def classes(self) -> Tensor | None:
        """One class per sample, (rows, B), where these are known."""
        known = None if self.labels is None else self.found_labels()
        return None if known is None or known.is_floating_point() else known

    def target_logits(self, logits: Tensor) -> Tensor:
        """Of the numbers searched beside the samples, those of their targets."""
        return logits[..., : -self.unknowns] if self.unknowns else logits

    def targets(self, logits: Tensor | None, rows: Rows) -> Tensor:
        """What the channel takes as targets of the rows: their labels, and what the client drew, as far as these are searched."""
        if logits is None:
            assert self.labels is not None
            return self.labels[rows]
        if self.labels is None:
            assert self.free is not None
            known = self.free(self.target_logits(logits))
        else:
            known = self.labels[rows]
            known = known if known.is_floating_point() else torch.nn.functional.one_hot(known, self.scores)
            known = known.to(logits)
        return torch.cat([known, logits[..., -self.unknowns :]], -1) if self.unknowns else known


class Search:
    """Candidates x (R, B, ...) and, if labels are optimised, logits (R, B, classes)."""

    def __init__(self, problem: Problem, x: Tensor, logits: Tensor | None, *, together: bool) -> None:
        self.problem, self.together = problem, together
        self.best = torch.full((len(x),), torch.inf, device=x.device)
        self.latest = self.best.clone()
        self.best_x = x.detach().clone()
        self.best_logits = None if logits is None else logits.detach().clone()
        self._final = self._weigh(x, logits) if problem.defenses and _reads_signal(problem) else 0.0
        self._precision = precision(problem.defenses, problem.observed)
        self._trust = torch.tensor(self._final, device=x.device)  # a tensor, since a recorded step reads it again
        self._replay, chosen = self._choose(x, logits)
        said = (term.note(problem.victim) for weight, term in problem.objective.parts() if weight)
        known = WEIGHED if self._precision else KNOWN[bool(self._final)]
        known = known if problem.defenses and self._replay is not None else ""
        self.notes = tuple(filter(None, [chosen, known, *said]))

    def _choose(self, x: Tensor, logits: Tensor | None) -> tuple[Replayer | None, str]:
        problem = self.problem
        capture = problem.objective.captures(problem.victim)
        if not capture and not _reads_signal(problem):
            return None, "replay: none (blind run)"
        if not isinstance(problem.channel, PerSample):  # features are only differentiated once
            refuse_once_only(problem.victim.model)
        if not self.together:
            reference = Reference(problem.victim, problem.channel, problem.observed, capture)
            return reference, "replay: reference (the solver moves one restart at a time)"
        y = problem.targets(None if logits is None else logits.detach(), slice(None))
        formed = bool(self._final) or any(w and term.needs_gradients for w, term in problem.objective.parts())
        choice = choose(
            problem.victim, problem.channel, problem.observed, x.detach(), y, capture=capture, gradients=formed
        )
        return choice.replay, choice.note

    def losses(self, x: Tensor, logits: Tensor | None, rows: Rows) -> Tensor:
        """The objective of the given candidates, which belong to ``rows``; better ones are kept."""
        losses = self.objective(x, logits, rows)
        with torch.no_grad():
            better = (
                losses <= self.best[rows]
            )  # False for NaN; of equal ones the later, as where a blind run has no objective
            self.latest[rows] = losses
            self.best[rows] = torch.where(better, losses, self.best[rows])
            self.best_x[rows] = torch.where(_column(better, x), x, self.best_x[rows])
            if logits is not None and self.best_logits is not None:
                self.best_logits[rows] = torch.where(_column(better, logits), logits, self.best_logits[rows])
        return losses

    def objective(self, x: Tensor, logits: Tensor | None, rows: Rows) -> Tensor:
        replayed, targets = None, None
        if self._replay is not None:
            targets = self.problem.targets(logits, rows)
            replayed = self._known(self._of(rows)(x, targets), rows)
        group = min(len(x), self.problem.draws.restarts)  # fewer if only some rows are given
        return self.problem.objective(Candidate(x, self.problem.victim, replayed, group, targets)).float()

    def _weigh(self, x: Tensor, logits: Tensor | None) -> float:
        """How far the bounds are trusted, from the signal of a random image; it is the same for every candidate."""
        victim, channel = self.problem.victim, self.problem.channel
        image = victim.to_input(victim.space.start(x.shape[1], torch.Generator().manual_seed(0)))
        y = self.problem.targets(None if logits is None else logits.detach()[:1], slice(0, 1))[0]
        with private_randomness(0, victim.device):
            signal = channel(victim, image, y)
        plain = {name: signal[name].detach() for name in self.problem.observed.signal}
        if isinstance(channel, PerSample):
            plain = {name: t[0] for name, t in plain.items()}
        return trust(self.problem.defenses, plain)

    def begin(self, number: int, steps: int) -> None:
        """Called before each step of a search that knows the defenses: it compares with what was sent first, and through them later."""
        if not self._final:
            return
        switch = int(FIRST * steps)
        if number in (0, switch):
            self._trust.fill_(self._final if number == switch else 0.0)
            self.best.fill_(torch.inf)  # the objective is another one from here on

    def _known(self, replayed: Replay, rows: Rows) -> Replay:
        """The replay as an adversary compares it who knows the defenses."""
        problem = self.problem
        if self._precision:
            replayed = WeighedReplay(replayed, self._precision)
        if not self._final:
            return replayed
        per_sample = isinstance(problem.channel, PerSample)
        return DefendedReplay(replayed, problem.observed.take(rows), problem.defenses, self._trust, per_sample)

    def _of(self, rows: Rows) -> Replayer:
        """The replay for some rows only; it differs from the whole if each row has its own observation."""
        assert self._replay is not None
        everything = isinstance(rows, slice) and rows == slice(None)
        if everything or not self.problem.observed.per_row:
            return self._replay
        return replace(self._replay, observed=self.problem.observed.take(rows))  # pyright: ignore[reportArgumentType]

    def fitting(self, x: Tensor, logits: Tensor | None) -> int:
        """How many rows fit into memory, estimated from what one row keeps for its backward pass.

        The observations of all rows are already in memory. So are the parameters, but they still count for every row: they
        account for the gradients of the same size that exist temporarily during a step.
        """
        one = slice(0, 1)
        if self._replay is None or len(x) == 1:
            return len(x)
        trial = x.detach()[one].clone().requires_grad_()  # a view would count all rows
        label = None if logits is None else logits.detach()[one].clone()
        measured = self
        if isinstance(self._replay, VmapReplay):  # torch.func hides its saved tensors; the reference does not
            measured = Search(self.problem.take(one), trial, label, together=False)
        kept = saved_bytes(lambda: measured.objective(trial, label, one), besides=self.problem.observed.signal.values())
        return rows_that_fit(len(x), kept, x.device)


def _reads_signal(problem: Problem) -> bool:
    return any(w and term.reads_signal for w, term in problem.objective.parts())


def _column(flags: Tensor, like: Tensor) -> Tensor:
    return flags.view(-1, *[1] * (like.dim() - 1))


def require_finite(losses: Tensor) -> None:
    """Refuses a search without any finite objective: then no candidate is the best."""
    if not torch.isfinite(losses).any():
        raise Inapplicable(
            "the objective was never finite; the model returns NaN or Inf for the adversary's candidates"
        )
