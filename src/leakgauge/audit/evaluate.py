"""One attack on one batch, from the private data to a verdict. A case, a trial of a defense and a notebook all come through here."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Unpack, runtime_checkable

import torch
from torch import Tensor

from leakgauge.attacks import inverting_gradients, strongest
from leakgauge.audit.bounds import Bound, Unbounded, bound_of
from leakgauge.audit.case import earns_negative
from leakgauge.audit.cause import Cause, Client, TruthTest, explain
from leakgauge.audit.control import Control, Controls
from leakgauge.audit.files import strip
from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import (
    Paired,
    Perceptual,
    Scores,
    pair_images,
    require_images,
    score_images,
    score_images_in_order,
    series_bounds,
    trivial_baseline,
)
from leakgauge.audit.verdict import Outcome, Verdict, judge, judge_series
from leakgauge.channels import Rounds, share_rounds
from leakgauge.channels.facts import is_weight_update
from leakgauge.channels.rounds import client_in_round
from leakgauge.core import (
    Assumption,
    Attack,
    Channel,
    Defense,
    Doubtful,
    Observation,
    Reconstruction,
    Reveal,
    Sent,
    Signal,
    Size,
    Victim,
    apply_defenses,
    as_images,
    share,
)
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.randomness import own_stream, private_randomness
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families.patches import patch_side
from leakgauge.inversion.labels import infer_labels, read_or_none
from leakgauge.measures import baseline
from leakgauge.measures.lpips import load_lpips

BY_RESTART = ("mse", "psnr", "ssim", "lpips", "layout", "ssim_reduced", "psnr_reduced", "correlation", "smape")
"""Metrics that need nothing but the two images, and that every restart is scored by."""


@checked(nan=True)
@dataclass(frozen=True, eq=False)
class Result:
    """What an attack came to, and what it is measured against.

    ``scores`` are of the attack, ``null`` of the same attack without the signal (``nothing``), ``baseline`` of a crude picture of the
    truth, ``start`` of what was revealed to start from. ``test`` says why the attack failed, if it did, ``control`` how the same attack
    does where it must work; None where that was not tried. ``restarts`` maps a metric to its mean over the batch for each restart.
    ``images`` maps truth / reconstruction / null / baseline to images in [0, 1], all in the order of the truth; ``order`` says which
    image of ``reconstruction`` is which of these. ``bound`` is what no attack can exceed, or why there is no such bound.
    """

    verdict: Verdict
    scores: Scores
    null: Scores
    baseline: Scores
    reconstruction: Reconstruction
    nothing: Reconstruction
    assumptions: tuple[Assumption, ...]
    victim: str
    channel: str
    start: Scores | None = None
    test: TruthTest | None = None
    control: Control | None = None
    restarts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    images: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    order: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long), repr=False)
    bound: Bound | Unbounded = Unbounded.UNKNOWN

    @property
    def outcome(self) -> Outcome:
        return self.verdict.outcome

    def __str__(self) -> str:
        from leakgauge.audit.wording import evaluation  # which words whole audits too, and they are made of results

        return evaluation(self)

    def _repr_html_(self) -> str:
        """The verdict and the pictures, for notebooks."""
        rows = [
            f"<tr><td>{name}</td><td><img alt='{name}' style='image-rendering: pixelated; height: {HEIGHT}px' "
            f"src='data:image/png;base64,{base64.b64encode(strip(images)).decode()}'></td></tr>"
            for name, images in self.images.items()
        ]
        return f"<pre>{html.escape(str(self))}</pre><table>{''.join(rows)}</table>"


class ControlOf(Protocol):
    """Runs the positive control of an attack on the architecture of a victim."""

    def __call__(self, attack: Attack, victim: Victim, seen: Observation, /, *, starts: bool) -> Control: ...


HEIGHT = 96
"""Of a picture in a notebook, in pixels."""


@checked
@plain_defaults()
def evaluate(
    victim: Victim | Sequence[Victim],
    channel: Channel,
    x: Tensor,
    y: Tensor,
    *,
    attack: Attack | None = None,
    defenses: Sequence[Defense] = (),
    reveal: Sequence[Reveal] = (Size(),),
    seed: int = 0,
    pool: Tensor | None = None,
) -> Result:
    """Shares ``x, y`` (model space) through ``channel``, attacks what was sent, and judges what the attack found.

    Several victims are one model at the weights of several rounds, in each of which the same batch is shared: the objective is summed over
    the rounds (:class:`~leakgauge.channels.Rounds`), labels are those that the rule is surest of in any round, and a bound, where there is
    one, is that of all rounds together.

    ``attack`` is :func:`~leakgauge.attacks.strongest` unless another is named (:func:`~leakgauge.attacks.inverting_gradients` for several
    rounds, which only attacks by matching take). It sees what ``share`` gives it and never the truth. An
    attack that finds nothing after fewer steps than :func:`earns_negative` asks for is inconclusive; after enough of them, its positive
    control is run too. ``reveal`` is what it knows beyond the signal; the verdict lists it.
    ``pool`` holds other images, in [0, 1] (or series, one pixel high: ``Series.picture``): with at least twenty, a reconstruction counts
    only if it is closest to its own original.

    >>> from leakgauge import testing
    >>> from leakgauge.attacks import linear
    >>> from leakgauge.channels import Gradient
    >>> victim, x, y = testing.tiny_case("mlp")
    >>> print(evaluate(victim, Gradient(), x, y, attack=linear()).outcome.label)
    feasible
    """
    sent: Sent = {"defenses": defenses, "reveal": reveal, "seed": seed}
    if isinstance(victim, Victim):
        seen, stream = observe(victim, channel, x, y, **sent), "client"
        attack = strongest() if attack is None else attack
    else:
        rounds = share_rounds(victim, channel, x, y, **sent)
        victim, seen = rounds.joint()
        seen, stream = replace(seen, labels=read_in_rounds(rounds, seed=seed)), client_in_round(0)
        attack = inverting_gradients() if attack is None else attack
    return assess(
        attack,
        victim,
        seen,
        x,
        y,
        seed=seed,
        pool=pool,
        enough=earns_negative(attack),
        client=Client(y, channel, own_stream(seed, stream)),
        control_of=partial(Controls(), x=x[:1], y=y[:1], seed=seed),
        defenses=defenses,
    )


def read_in_rounds(rounds: Rounds, *, seed: int = 0) -> Tensor:
    """The labels of the batch: revealed, or read in the round of which the rule expects most to be right."""
    known = rounds.seen[0].labels
    if isinstance(known, Tensor):
        return known
    read = [
        read_or_none(infer_labels(), victim, seen, seed=seed)
        for victim, seen in zip(rounds.victims, rounds.seen, strict=True)
    ]
    sure = [(one.accuracy or 0.0, one.labels) for one in read if one.labels is not None]
    if not sure:
        raise Inapplicable("the labels cannot be read in any of the rounds; reveal them")
    return max(sure, key=lambda one: one[0])[1]


def observe(victim: Victim, channel: Channel, x: Tensor, y: Tensor, **sent: Unpack[Sent]) -> Observation:
    """What the adversary gets to see. An update that is not finite is refused, with the reason: there is nothing to attack."""
    seen = share(victim, channel, x, y, **sent)
    defenses = sent.get("defenses", ())
    if _finite(seen.signal) or not _finite(victim.parameters()):
        return seen
    plain = share(victim, channel, x, y, **{**sent, "defenses": ()}) if defenses else seen
    if _finite(plain.signal):
        kind = str(victim.dtype).removeprefix("torch.")
        raise Inapplicable(f"what is sent under {' + '.join(map(repr, defenses))} is not finite in {kind}")
    if is_weight_update(seen.channel):
        raise Inapplicable("the client's update is not finite: its training diverged; lower its learning rate")
    return seen


def _finite(signal: Signal) -> bool:
    return all(bool(value.isfinite().all()) for value in signal.values())


def assess(
    attack: Attack,
    victim: Victim,
    seen: Observation,
    x: Tensor,
    y: Tensor | None,
    *,
    seed: int = 0,
    pool: Tensor | None = None,
    nothing: Reconstruction | None = None,
    enough: bool = True,
    client: Client | None = None,
    control_of: ControlOf | None = None,
    leaks_undefended: bool | None = None,
    defenses: Sequence[Defense] | None = None,
) -> Result:
    """Attacks an observation of ``x, y`` and judges; labels are not scored if ``y`` is None.

    ``nothing`` is the null run, where it is known already; ``enough`` is whether the attack tried enough. ``client`` is what only the
    client knows, for the truth test; without it the labels ``y`` are. ``control_of`` runs the positive control where
    nothing was found; ``leaks_undefended``, of the same attack on the same images, takes its place. ``defenses`` are those that changed
    what was seen, None if that is not known.
    """
    require_images(victim.space)
    found = attack(victim, seen, seed=seed)
    attack = attack if found.by is None else found.by
    nothing = null_run(attack, victim, seen, seed=seed) if nothing is None else nothing
    truths, bounds = as_images(victim.space, x).cpu(), series_bounds(victim.space)
    lpips = load_lpips() if bounds is None else None
    tile = patch_side(victim.model, victim.space.shape)

    def paired(one: Reconstruction) -> Paired:
        guesses = as_images(victim.space, one.x)
        return pair_images(guesses, truths, labels=one.y, truth=y, pool=pool, lpips=lpips, tile=tile, bounds=bounds)

    own, blind = paired(found), paired(nothing)
    trivial, known = trivial_baseline(truths, lpips=lpips, bounds=bounds), assumed(attack, seen)
    by = judge if bounds is None else judge_series

    def judged(scores: Scores, **tested: Any) -> Verdict:
        return by(scores, blind.scores, trivial, known, enough=enough, **tested)

    def shows(image: Tensor) -> bool:
        shown = as_images(victim.space, image)
        return judged(score_images(shown, truths, pool=pool, lpips=lpips, tile=tile, bounds=bounds)).outcome.leaks

    client = Client(y, seen.channel, None) if client is None and y is not None else client
    test = control = None
    negative = not judged(own.scores).outcome.leaks
    if client is not None and len(found.x) == len(x):
        test = explain(
            attack,
            victim,
            seen,
            found,
            x,
            client,
            nothing=nothing,
            shows=shows,
            thorough=enough and negative,
            seed=seed,
        )
    if client is not None and any(isinstance(one, Doubtful) for one in defenses or ()):
        found = replace(found, notes=(*found.notes, *_doubts(victim, client, x, defenses or ())))
    verdict = judged(own.scores, test=test, control=leaks_undefended)
    if control_of is not None and test is not None and enough and negative:
        control = control_of(attack, victim, seen, starts=test.cause is Cause.SEARCH)
        verdict = judged(own.scores, test=test, control=control.passed)
    return Result(
        verdict=replace(verdict, certified=sum(certified_samples(found))),
        test=test,
        control=control,
        scores=own.scores,
        null=blind.scores,
        baseline=trivial,
        reconstruction=found,
        nothing=nothing,
        assumptions=known,
        victim=f"{victim.name} in {victim.mode} mode",
        channel=repr(seen.channel),
        start=None
        if seen.near is None
        else score_images_in_order(as_images(victim.space, seen.near).cpu(), truths, bounds=bounds),
        restarts=_by_restart(found, own, truths, victim, lpips),
        images={
            "truth": truths,
            "reconstruction": own.images,
            "null": blind.images,
            "baseline": baseline.blur(truths),
        },
        order=own.order,
        bound=bound_of(victim, seen, defenses, x, pool=pool),
    )


def _doubts(victim: Victim, client: Client, x: Tensor, defenses: Sequence[Defense]) -> list[str]:
    """What the defenses fail to do to this update, although their options say so."""
    with private_randomness(client.secret or 0, victim.device):
        signal = {name: value.detach() for name, value in client.channel(victim, x, client.labels).items()}
    said: list[str] = []
    for defense in defenses:
        said += defense.doubts(signal) if isinstance(defense, Doubtful) else ()
        signal = apply_defenses(victim, client.channel, signal, (defense,), rng=torch.Generator().manual_seed(0))
    return said


def certified_samples(found: Reconstruction) -> tuple[bool, ...]:
    """Which samples of the result the attack certified, in its own order; none where it has no certificate."""
    return () if found.certified is None else tuple(bool(one) for one in found.certified)


def _by_restart(
    found: Reconstruction, own: Paired, truths: Tensor, victim: Victim, lpips: Perceptual | None
) -> dict[str, list[float]]:
    """The restart that the attack chose has been scored already."""
    scored = [
        own.scores
        if torch.equal(candidate, found.x)
        else score_images(as_images(victim.space, candidate), truths, lpips=lpips, bounds=series_bounds(victim.space))
        for candidate in found.candidates
    ]
    means = [one.means() for one in scored]
    return {name: [one[name] for one in means] for name in BY_RESTART if name in means[0]}


@runtime_checkable
class Assuming(Protocol):
    """An attack whose settings hold knowledge about the client, such as the size of its noise."""

    def assumptions(self) -> tuple[Assumption, ...]: ...


def assumed(attack: Attack, seen: Observation) -> tuple[Assumption, ...]:
    """Everything that the result of ``attack`` on ``seen`` rests on."""
    own = attack.assumptions() if isinstance(attack, Assuming) else ()
    return (*seen.assumptions, *own)
