"""The strongest attack of those that apply: closed forms first, then a race of recipes, and the rest of the effort on the best."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from leakgauge.attacks.april.closed_form import april_closed_form
from leakgauge.attacks.diffusion import diffusion
from leakgauge.attacks.dlg import dlg
from leakgauge.attacks.feasibility import feasibility
from leakgauge.attacks.feature_matching import feature_matching
from leakgauge.attacks.federated_averaging import federated_averaging
from leakgauge.attacks.generative_prior import generative_prior
from leakgauge.attacks.inverting_gradients import inverting_gradients
from leakgauge.attacks.linear import linear
from leakgauge.attacks.linear_rows import linear_rows
from leakgauge.attacks.patch_positions import patch_positions
from leakgauge.attacks.r_gap import r_gap
from leakgauge.attacks.relu_batches import relu_batches
from leakgauge.attacks.sentences import sentences
from leakgauge.attacks.small_batches import small_batches
from leakgauge.attacks.smooth_series import smooth_series
from leakgauge.attacks.tables import tables
from leakgauge.attacks.tag_read_labels import tag_read_labels
from leakgauge.channels import ShuffledFedAvg
from leakgauge.channels.facts import searches_draws, single_client
from leakgauge.core import (
    Attack,
    Observation,
    PerSample,
    Raced,
    Reconstruction,
    Series,
    Table,
    Targets,
    Tokens,
    Trace,
    Use,
    Victim,
    uses,
)
from leakgauge.core.examples import example
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import (
    LBFGS,
    Adam,
    CosineDecay,
    Descent,
    FromSpace,
    Given,
    HeadFeatures,
    Matching,
    Sign,
    TotalVariation,
    infer_labels,
)
from leakgauge.inversion.distances import Cosine
from leakgauge.inversion.labels import ReadLabels, as_targets, batch_size, read_or_none
from leakgauge.inversion.matching import too_narrow, widen
from leakgauge.inversion.mismatch import label_images, layer_mismatch
from leakgauge.inversion.output_gradient import FEATURES, along_output, mismatch_along
from leakgauge.inversion.progress import as_part
from leakgauge.inversion.solvers import SignPerRestart
from leakgauge.inversion.terms import Candidate, PerRestart

HEAT, LONGEST_HEAT = 0.05, 150
"""Share of the steps that each recipe gets in the race, and the most it gets."""
EVERY = 3
"""In the race every third layer is held back, to compare recipes by."""
EXACT = 1e-9
"""A candidate with a smaller mismatch explains what was sent up to rounding; nothing is left to search."""
EXACT_ALONG = 1e-12
"""The same along the gradient at the output, where a sample counts with the square of its p − y and one that the network is sure of
hardly shows."""
AS_GOOD = 1.25
"""Candidates whose mismatch is within this factor of the lowest explain the observation as well; two searches differ by as much. Of
these the smoothest is taken, since a rougher one fits the noise."""
DESCENTS: dict[str, tuple[float, bool]] = {
    "cosine_descent": (0.1, False),
    "signed_descent": (0.1, True),
    "cosine_descent:tv=0.03": (0.03, False),
}
"""The portfolio's own searches: weight of total variation, and whether only signs of the gradient count. No one of them is best on all
models."""
RATE = 0.3
"""First rate of these searches. With 0.1, the rate of :func:`inverting_gradients`, they stay near where they began on deep networks."""
SAMPLES = 32
"""Most samples of a batch that are separated behind a ReLU beforehand: about four seconds. The time grows with the cube."""
UNKNOWNS = 1024
"""Largest system of R-GAP that is solved beforehand: about two seconds. The time grows with the cube."""
CLOSE, PLAYOFF = 1.25, 0.12
"""Another kind of search whose mismatch is within this factor of the leader's may still win: both get this share of the steps, and then
the better of them gets the rest."""
EARLY = 0.25
"""Share of the remaining steps for a leader that converges early; the best of the others gets the rest."""
POOLED = 30
"""Least restarts on a table, whose answers are pooled."""
LEAST_RUNS = 4
"""Searches of a race on updates, one after the other: descents together, two more heats and the one that gets the rest."""
PLAIN_TV = 0.01
"""Of the one search where a client's secret draws are searched too: recipes are compared by replays, which need these draws."""
NEAR = 0.02
"""Step of a search that starts at what a closed form found."""
PROMISING = 0.5
"""Mismatch from which on a closed form found nothing to start from: it read noise."""


@dataclass(frozen=True)
class Entrant:
    """One recipe of the portfolio. ``make`` builds it for a number of replays and of restarts; a closed form takes neither."""

    name: str
    make: Callable[[int, int], Attack]
    searches: bool = True
    joint: bool = False
    """Looks for the labels together with the image; all others get those that were read once."""
    early: bool = False
    """Converges within its first steps, so its lead in a heat does not say who would win."""
    most: int | None = None
    """Largest batch for which it is quick enough."""
    series: bool = False
    """For series only."""


@dataclass(frozen=True, eq=False)
class _Result:
    entrant: Entrant
    attack: Attack
    found: Reconstruction
    mismatch: float | None
    roughness: float
    steps: int
    unseen: float | None = None
    """Mismatch of the layers that were held back from this run, if any were."""

    @property
    def certified(self) -> bool:
        """Whether the attack proved every sample to be exact; then wrong labels do not speak against it."""
        return self.found.certified is not None and bool(self.found.certified.all())

    def raced(self, *, chosen: bool) -> Raced:
        return Raced(self.entrant.name, self.steps, self.mismatch, chosen=chosen, unseen=self.unseen)


@dataclass(frozen=True)
class Strongest:
    """The attack made by :func:`strongest`."""

    steps: int
    restarts: int

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("restarts", self.restarts)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadInput(f"an attack needs an integer number of {name} of at least 1, got {value!r}")

    def sample(self) -> tuple[Attack, int]:
        """One of its searches with as many steps, to time a step with, and how many searches there are at least."""
        return _descent("cosine_descent", self.steps, 1), LEAST_RUNS

    def effort(self) -> tuple[str, int]:
        return "strongest", self.steps

    def uses(self) -> frozenset[Use]:
        """Whatever one of its entrants can use."""
        every = (uses(one.make(LBFGS.iterations, 1)) for one in SEARCHES)
        return frozenset[Use]().union(*every)

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        if isinstance(victim.space, Tokens):
            return sentences()(victim, seen, seed=seed)
        if isinstance(victim.space, Table):
            attack = tables(steps=self.steps, restarts=max(POOLED, self.restarts))
            return replace(attack(victim, seen, seed=seed), by=attack)
        batch_size(seen)
        if searches_draws(seen.channel):
            attack = inverting_gradients(tv=PLAIN_TV, steps=self.steps, restarts=self.restarts)
            return replace(attack(victim, seen, seed=seed), by=attack)
        if too_narrow(victim):
            victim, (seen,) = widen(victim, [seen])
        race = _Race(victim, seen, seed, self.steps)
        if not isinstance(seen.channel, PerSample):  # closed forms read gradients
            for entrant in CLOSED:
                if not race.solved:
                    race.run(entrant, 1, steps=0)
        if not race.solved:
            self._search(race)
        if not race.results:
            raise Inapplicable(race.reason())
        best = race.best()
        raced = (*(one.raced(chosen=one is best) for one in race.results), *race.refused)
        return replace(
            best.found,
            seconds=time.perf_counter() - began,
            notes=(f"the best of {len(race.results)} runs: {best.entrant.name}", *best.found.notes),
            raced=raced,
            by=_unaided(best.attack),
        )

    def _search(self, race: _Race) -> None:
        features = isinstance(race.seen.channel, PerSample)
        series = isinstance(race.victim.space, Series)
        kind = [
            one
            for one in SEARCHES
            if ("features" in uses(one.make(LBFGS.iterations, 1))) == features and (series or not one.series)
        ]
        entrants = [*kind, *_from_closed_forms(race.results)]
        heat = min(LONGEST_HEAT, round(HEAT * self.steps))
        if not heat:  # too few steps for a race: they go to the first that applies
            for entrant in entrants:
                if not race.spent:
                    race.run(entrant, self.restarts, steps=self.steps)
            return
        race.hold_back()
        together = [one for one in entrants if one.name in DESCENTS]
        if race.labels is None or not together or not race.run_together(together, steps=heat):
            for entrant in together:
                race.run(entrant, 1, steps=heat)
        for entrant in entrants:
            if race.solved:
                return
            if entrant not in together:
                race.run(entrant, 1, steps=min(heat, LBFGS.iterations) if entrant.early else heat)
        playoff = round(PLAYOFF * self.steps)
        if playoff >= LBFGS.iterations:
            for one in race.rivals():
                race.go_on(one, 1, steps=playoff)
        ahead = race.leaders()
        race.give_all()
        if not ahead:
            return
        best, others = ahead[0], [one for one in ahead if not one.entrant.early]
        if best.entrant.early and others:
            race.go_on(best, self.restarts, steps=max(LBFGS.iterations, round(EARLY * (self.steps - race.spent))))
            best = others[0]
        race.go_on(best, self.restarts, steps=max(1, self.steps - race.spent))


class _Race:
    """Runs entrants and keeps what each reached, and why others were refused."""

    def __init__(self, victim: Victim, seen: Observation, seed: int, steps: int) -> None:
        self.victim, self.seen, self.seed, self.steps = victim, seen, seed, steps
        read = read_or_none(infer_labels(), victim, seen, seed=seed) if seen.labels is None else ReadLabels(None)
        self.labels: Targets | None = read.labels if seen.labels is None else seen.labels
        self.label_accuracy = read.accuracy
        self.results: list[_Result] = []
        self.refused: list[Raced] = []
        self.spent = 0
        self.given, self.held = seen, None
        self.separated = batch_size(seen) > 1 and along_output(victim, [seen]) is not None
        """Whether the samples of this batch are separated at the head."""
        self.exact = EXACT_ALONG if self.separated else EXACT

    def hold_back(self) -> None:
        """From here on runs are given only part of the tensors; the others tell which one found more than it was shown."""
        held = _held_back(self.seen)
        if held:
            self.given = replace(self.seen, signal={n: v for n, v in self.seen.signal.items() if n not in held})
            self.held = replace(self.seen, signal={n: v for n, v in self.seen.signal.items() if n in held})

    def give_all(self) -> None:
        self.given, self.held = self.seen, None

    def run(self, entrant: Entrant, restarts: int, *, steps: int, start: Tensor | None = None) -> None:
        """One entrant, from the images ``start`` where these are given and it is a search that can begin there."""
        try:
            attack = entrant.make(steps, restarts)
            if entrant.most is not None and batch_size(self.seen) > entrant.most:
                raise Inapplicable(f"tried for at most {entrant.most} samples, since the time grows with their cube")
            if missing := _missing(attack, self.seen):
                raise Inapplicable(missing)
            with as_part(self.spent, steps, self.steps):
                found = _begun(attack, start)(self.victim, self._known(entrant), seed=self.seed)
        except Inapplicable as refusal:
            self.refused.append(Raced(entrant.name, refused=str(refusal)))
            return
        self._keep(entrant, attack, found, steps)

    def run_together(self, entrants: Sequence[Entrant], *, steps: int) -> bool:
        """All of these descents as one batch of the engine, with one start each; False where they do not run like that."""
        weights, signs = zip(*(DESCENTS[one.name] for one in entrants), strict=True)
        attack = replace(
            _descent(entrants[0].name, steps, len(entrants)),
            objective=Cosine() + PerRestart(weights, TotalVariation()) + FEATURES * HeadFeatures(),
            solver=Descent(Adam(RATE), steps, gradient=(SignPerRestart(signs),), schedule=CosineDecay()),
        )
        try:
            with as_part(self.spent, len(entrants) * steps, self.steps):
                found = attack(self.victim, self._known(entrants[0]), seed=self.seed)
        except Inapplicable:
            return False
        for entrant, x, loss in zip(entrants, found.candidates, found.losses, strict=True):
            own = replace(
                found, x=x, loss=float(loss), candidates=x[None], losses=loss[None], made_by=entrant.name, trace=Trace()
            )
            self._keep(entrant, entrant.make(steps, 1), own, steps)
        return True

    def go_on(self, best: _Result, restarts: int, *, steps: int) -> None:
        """The entrant once more, from what it found; with several restarts from starts of its own."""
        self.run(best.entrant, restarts, steps=steps, start=best.found.x if restarts == 1 else None)

    def _known(self, entrant: Entrant) -> Observation:
        return self.given if entrant.joint else replace(self.given, labels=self.labels)

    def _keep(self, entrant: Entrant, attack: Attack, found: Reconstruction, steps: int) -> None:
        if not entrant.joint and found.label_accuracy is None:
            found = replace(found, label_accuracy=self.label_accuracy)
        found, y = self._labelled(found)
        y = as_targets(self.victim, y) if isinstance(y, Tensor) and self.seen.labels is None else y

        def mismatch(seen: Observation | None) -> float | None:
            if seen is None or y is None:
                return None
            replayed = layer_mismatch(self.victim, seen, found.x, y, seed=self.seed)
            along = mismatch_along(self.victim, self.seen, found.x, on=seen, seed=self.seed) if self.separated else None
            return replayed if along is None else min(replayed, along)

        rough = float(TotalVariation()(Candidate(found.x[None], self.victim, None, 1)))
        self.results.append(_Result(entrant, attack, found, mismatch(self.seen), rough, steps, mismatch(self.held)))
        self.spent += steps

    def _labelled(self, found: Reconstruction) -> tuple[Reconstruction, Targets | None]:
        """Closed forms for batches find images without labels; the observation says which label fits which image."""
        if found.y is not None or self.seen.labels is not None or not isinstance(self.labels, Tensor):
            return found, self.labels if found.y is None else found.y
        labels = label_images(self.victim, self.seen, found.x, self.labels.to(found.x.device), seed=self.seed)
        return replace(found, y=labels), labels

    def reason(self) -> str:
        """Why nothing ran: what stopped the searches that take any update, or any features. Others need more than that."""
        general = {SEARCHES[0].name, SEARCHES[-1].name}
        return next(one.refused for one in self.refused if one.name in general)

    @property
    def solved(self) -> bool:
        return any(one.certified or (one.mismatch is not None and one.mismatch < self.exact) for one in self.results)

    def leaders(self) -> list[_Result]:
        """The latest result of every kind of search, the best first.

        Of the descents, which differ in how much they smooth, the one that explains best what was held back from it: a rougher one fits
        more of what it was shown. Kinds are compared by everything that was sent, since layers differ in what they tell about the image.
        """
        latest = {one.entrant.name: one for one in self.results if one.entrant.searches}
        descents = [one for name, one in latest.items() if name in DESCENTS]
        kinds = [one for name, one in latest.items() if name not in DESCENTS]
        if descents:
            kinds.append(min(descents, key=lambda one: _last(one.mismatch if one.unseen is None else one.unseen)))
        return sorted(kinds, key=lambda one: _last(one.mismatch))

    def rivals(self) -> list[_Result]:
        """The two best kinds, where they are close; nobody where they are not."""
        first = self.leaders()[:2]
        return first if len(first) == 2 and _last(first[1].mismatch) <= CLOSE * _last(first[0].mismatch) else []

    def best(self, among: Sequence[_Result] | None = None) -> _Result:
        """One that certifies every sample, or else the smoothest of those that explain the observation as well as any. One that cannot
        be compared comes last."""
        certain = [one for one in among or self.results if one.certified]
        known = certain or [one for one in among or self.results if one.mismatch is not None]
        if not known:
            return (among or self.results)[0]
        least = min(one.mismatch or 0.0 for one in known)
        alike = [one for one in known if (one.mismatch or 0.0) <= max(AS_GOOD * least, self.exact)]
        return min(alike, key=lambda one: one.roughness)


def _replays(make: Callable[..., Attack], steps: int, restarts: int) -> Attack:
    return make(steps=steps, restarts=restarts)


def _descent(name: str, steps: int, restarts: int) -> Matching:
    """The objective of :func:`inverting_gradients`, descended at a rate that falls to zero along half a cosine."""
    tv, signed = DESCENTS[name]
    solver = Descent(Adam(RATE), steps, gradient=(Sign(),) if signed else (), schedule=CosineDecay())
    return replace(inverting_gradients(tv=tv, restarts=restarts, along=True), solver=solver, name=name)


def _begun(attack: Attack, start: Tensor | None) -> Attack:
    if start is None or not isinstance(attack, Matching) or not isinstance(attack.start, FromSpace):
        return attack
    return replace(attack, start=Given(start))


def _last(mismatch: float | None) -> float:
    """What cannot be compared comes last."""
    return math.inf if mismatch is None else mismatch


def _unaided(attack: Attack) -> Attack:
    """The attack from its own start: its null run must not begin at what was found in the observation."""
    if isinstance(attack, Matching) and isinstance(attack.start, Given):
        return replace(attack, start=FromSpace())
    return attack


def _held_back(seen: Observation) -> frozenset[str]:
    """Names of the tensors of every third layer, none for features. The first layer, which knows most about pixels, and the last, which
    knows the labels, are not among them."""
    layers: dict[str, list[str]] = {}
    for name in seen.signal:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    if isinstance(seen.channel, PerSample):
        return frozenset()
    return frozenset(name for layer in list(layers.values())[1:-1:EVERY] for name in layer)


def _dlg(steps: int, restarts: int) -> Attack:
    outer = steps // LBFGS.iterations
    if not outer:
        raise Inapplicable(f"one step of L-BFGS replays the channel {LBFGS.iterations} times, but a heat has {steps}")
    return dlg(steps=outer, restarts=restarts)


CLOSED: tuple[Entrant, ...] = (
    Entrant("linear", lambda _steps, _restarts: linear(), searches=False),
    Entrant("small_batches", lambda _steps, _restarts: small_batches(), searches=False),
    Entrant("linear_rows", lambda _steps, _restarts: linear_rows(), searches=False),
    Entrant("relu_batches", lambda _steps, _restarts: relu_batches(), searches=False, most=SAMPLES),
    Entrant("patch_positions", lambda _steps, _restarts: patch_positions(), searches=False),
    Entrant("april_closed_form", lambda _steps, _restarts: april_closed_form(), searches=False),
    Entrant("r_gap", lambda _steps, _restarts: r_gap(unknowns=UNKNOWNS), searches=False),
)
SEARCHES: tuple[Entrant, ...] = (
    *(Entrant(name, partial(_descent, name)) for name in DESCENTS),
    Entrant("smooth_series", partial(_replays, smooth_series), series=True),
    Entrant("tag_read_labels", partial(_replays, tag_read_labels)),
    Entrant("dlg", _dlg, joint=True, early=True),
    Entrant("feasibility", partial(_replays, feasibility)),
    Entrant("generative_prior", partial(_replays, generative_prior)),
    Entrant("diffusion", partial(_replays, partial(diffusion, training=300))),
    Entrant("federated_averaging", partial(_replays, federated_averaging)),
    Entrant("feature_matching", partial(_replays, feature_matching)),
)


def _missing(attack: Attack, seen: Observation) -> str:
    """What this attack uses that others do not, where there is none of it here; empty where it has all it needs."""
    used = uses(attack)
    if "statistics" in used and seen.buffers is None and seen.auxiliary is None and seen.near is None:
        return "no statistics of the batch are shared, and there are no similar images to estimate them from"
    if "learned_prior" in used and seen.auxiliary is None:
        return "the server has no similar images to learn from"
    if "epochs" in used and not isinstance(single_client(seen.channel), ShuffledFedAvg):
        return "the client does not train for several epochs in an unknown order"
    return ""


def _from_closed_forms(found: Sequence[_Result]) -> Iterator[Entrant]:
    """A search that begins at the best that a closed form found, where that explains something, but not everything."""
    known = [one for one in found if _last(one.mismatch) < PROMISING and not one.entrant.searches]
    if known:
        best = min(known, key=lambda one: one.mismatch or 0.0)
        yield Entrant(f"cosine_descent from {best.entrant.name}", partial(_near, best.found.x))


def _near(x: Tensor, steps: int, restarts: int) -> Attack:
    solver = Descent(Adam(NEAR), steps, schedule=CosineDecay())
    return replace(_descent("cosine_descent", steps, restarts), start=Given(x), solver=solver)


@example("cnn", steps=200)
@example("mlp", steps=40)
def strongest(*, steps: int = 2000, restarts: int = 1) -> Strongest:
    """Everything that applies, and the remaining effort on what the adversary itself finds best. Not from a paper.

    1. Closed forms, which take seconds: :func:`linear`, :func:`small_batches`, :func:`linear_rows`, :func:`relu_batches` for batches that
       are not large, :func:`patch_positions`, :func:`april_closed_form`, and :func:`r_gap` for small systems. One that explains the
       observation up to rounding, or certifies every sample, ends the attack.
    2. A race: every search that has what it uses gets a small share of the steps, and sees two thirds of the layers. Three descents on the
       objective of :func:`inverting_gradients` run as one batch (the gradient or its sign, two weights of total variation, a larger
       first rate that falls to zero along half a cosine). Then come :func:`smooth_series` for series, :func:`tag_read_labels`,
       :func:`dlg`, and where there is something to use :func:`feasibility` (shared statistics), :func:`generative_prior` and
       :func:`diffusion` (similar images), :func:`federated_averaging` (unknown orders), a search from what a closed form found; for
       features :func:`feature_matching`.
    3. The descent that explains best the layers that were held back goes on, unless a search of another kind explains everything better:
       the winner gets everything that was sent and all remaining steps, from what it found, or with ``restarts`` restarts. Where the
       other is close, both go on for a while first.
       L-BFGS converges early: if it leads, it shares the rest with the best of the others.

    Candidates are compared by :func:`~leakgauge.inversion.mismatch.layer_mismatch`, which the adversary can compute and which does not
    depend on any objective. At the end, of those that explain everything that was sent as well as the best, the smoothest wins. ``steps``
    counts the replays of the channel in all (a step of L-BFGS has 20), so it costs what one search of as many steps costs, beside the
    closed forms. The result says what raced, what each reached and why others were refused.

    Deviations: none, since no paper describes it.
    """
    return Strongest(steps=steps, restarts=restarts)
