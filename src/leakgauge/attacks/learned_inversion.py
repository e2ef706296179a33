"""An inverter learned from simulated updates: the adversary defends the gradients of its own images and learns to undo that."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from leakgauge.attacks.decoder.fitting import FittedDecoder, fit_on
from leakgauge.core import (
    Channel,
    Observation,
    PerSample,
    Pixels,
    Reconstruction,
    Signal,
    Simulates,
    Use,
    Victim,
    apply_defenses,
)
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.core.randomness import own_stream, private_randomness
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import batch_size, infer_labels, read_or_none
from leakgauge.measures.image import pair
from leakgauge.measures.sketch import SignBucket, SketchPlan
from leakgauge.priors.decoders import FEWEST, Decoder, Narrowed, Vector

HELD_OUT = 0.1
"""Share of the adversary's images that the decoder is not trained on."""
FEW_IMAGES = 4
"""Batches of up to this size are compared in every order."""
LEAST = 1e-6


def set_loss(made: Tensor, true: Tensor, *, size: int) -> Tensor:
    """Mean squared error of ``size`` images side by side in the channels, in the order that makes it least.

    >>> both = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)], 1)
    >>> float(set_loss(both.flip(1).flatten(1, 2), both.flatten(1, 2), size=2))
    0.0
    """
    ours, theirs = (t.unflatten(1, (size, -1)) for t in (made, true))
    if size > FEW_IMAGES:
        with torch.no_grad():
            order = torch.stack([pair(a, b) for a, b in zip(ours, theirs, strict=True)])
        return (ours - theirs[torch.arange(len(theirs), device=theirs.device)[:, None], order]).square().mean()
    apart = (ours[:, :, None] - theirs[:, None]).square().flatten(3).mean(3)  # (N, ours, theirs)
    return apart[:, torch.arange(size, device=made.device), _orders(size, made.device)].mean(2).amin(1).mean()


@lru_cache(maxsize=8)
def _orders(size: int, device: torch.device) -> Tensor:
    """All orders of so many images, kept: a step that is recorded on a GPU must not copy them there again."""
    return torch.tensor(list(itertools.permutations(range(size))), device=device)


@dataclass(frozen=True)
class SetLoss:
    """:func:`set_loss` for batches of ``size``."""

    size: int

    def __call__(self, made: Tensor, true: Tensor) -> Tensor:
        return set_loss(made, true, size=self.size)


@dataclass(frozen=True)
class LearnedInversion:
    """The attack made by :func:`learned_inversion`. ``signal`` is False for the null run, which learns from shuffled pairs."""

    updates: int
    values: int
    epochs: int
    decoder: Decoder = field(default_factory=lambda: Narrowed(Vector(width=16), values=128))
    signal: bool = True

    def __post_init__(self) -> None:
        for name, least in (("updates", FEWEST), ("values", 1), ("epochs", 1)):
            if getattr(self, name) < least:
                raise BadInput(f"learned_inversion needs {name} of at least {least}, got {getattr(self, name)}")

    def uses(self) -> frozenset[Use]:
        return frozenset({"learned_prior"})

    def blind(self) -> LearnedInversion:
        """The same training on updates of other images than those it is shown: what is left is the mean image."""
        return replace(self, signal=False)

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        return self.many(victim, [seen], seed=seed)[0]

    def many(self, victim: Victim, seen: Sequence[Observation], /, *, seed: int = 0) -> list[Reconstruction]:
        """One decoder for several observations of one kind: the first says channel, defenses, batch size and auxiliary images."""
        began, first = time.perf_counter(), seen[0]
        images, size = self._images(victim, first), batch_size(first)
        plan = SignBucket(total=self.values).plan(
            {name: tuple(t.shape) for name, t in first.signal.items()},
            device=victim.device,
            seed=own_stream(seed, "sketch"),
        )
        members, held_out = self._members(len(images), size, seed)
        simulated = (_simulated(victim, first, images[rows], number, seed) for number, rows in enumerate(members))
        sketches = torch.stack([_sketch(plan, one) for one in simulated])
        if size > FEW_IMAGES:
            sketches = sketches.cpu()  # orders are then found there, which a recorded step cannot
        mean, spread = sketches.mean(0), sketches.std(0).clamp_min(LEAST)
        shown = victim.space.decode(images.float())[members].flatten(1, 2)
        if not self.signal:
            learn = torch.arange(len(held_out), len(members))
            order = learn[torch.randperm(len(learn), generator=torch.Generator().manual_seed(seed))]
            shown = torch.cat([shown[: len(held_out)], shown[order]])
        fitted = fit_on(
            (sketches - mean) / spread, shown, decoder=self.decoder, epochs=self.epochs, held_out=held_out,
            loss=SetLoss(size), device=victim.device, seed=seed,
        )  # fmt: skip
        observed = torch.stack([(_sketch(plan, one.signal).to(mean) - mean) / spread for one in seen]).to(victim.device)
        made = fitted.decode(observed).unflatten(1, (size, -1))
        notes = self._notes(fitted, len(images), first)
        return [self._result(victim, one, x, fitted, notes, began, seed) for one, x in zip(seen, made, strict=True)]

    def _result(
        self,
        victim: Victim,
        seen: Observation,
        x: Tensor,
        fitted: FittedDecoder,
        notes: tuple[str, ...],
        began: float,
        seed: int,
    ) -> Reconstruction:
        labels = read_or_none(infer_labels(), victim, seen, seed=seed).labels if seen.labels is None else seen.labels
        return Reconstruction.single(
            victim.space.project(victim.space.encode(x)).to(victim.dtype),
            labels if isinstance(labels, Tensor) and not labels.is_floating_point() else None,
            loss=fitted.history.held_out_mse,
            made_by=repr(self),
            began=began,
            notes=notes,
        )

    def _images(self, victim: Victim, seen: Observation) -> Tensor:
        if not isinstance(victim.space, Pixels):
            raise Inapplicable("a learned inverter makes images, but the victim does not take images")
        if isinstance(seen.channel, PerSample):
            raise Inapplicable("learned_inversion reads updates; for features fit a decoder (leakgauge scan)")
        count = 0 if seen.auxiliary is None else len(seen.auxiliary)
        if seen.auxiliary is None or count * (1 - HELD_OUT) < max(FEWEST, batch_size(seen)):
            raise Inapplicable(
                f"a learned inverter needs more of the adversary's own images than {count}; reveal some with Auxiliary(images), on the "
                "command line --reveal auxiliary:900"
            )
        return victim.to_input(seen.auxiliary)

    def _members(self, count: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Which images are in which update, (updates, size), and the places of the updates held out, which hold no image of the others."""
        rng = torch.Generator().manual_seed(own_stream(seed, "updates"))
        order = torch.randperm(count, generator=rng)
        aside = max(size, round(HELD_OUT * count))
        checked = max(1, round(HELD_OUT * self.updates))

        def drawn(images: Tensor, updates: int) -> Tensor:
            if size == 1:
                rounds = [images[torch.randperm(len(images), generator=rng)] for _ in range(-(-updates // len(images)))]
                return torch.cat(rounds)[:updates, None]
            return torch.stack([images[torch.randperm(len(images), generator=rng)[:size]] for _ in range(updates)])

        members = torch.cat([drawn(order[:aside], checked), drawn(order[aside:], self.updates - checked)])
        return members, torch.arange(checked)

    def _notes(self, fitted: FittedDecoder, count: int, seen: Observation) -> tuple[str, ...]:
        history = fitted.history
        more = "; more epochs would still help" if history.best_epoch == self.epochs else ""
        knows = "" if seen.defenses is None else ", defended as the client's"
        return (
            f"decoder of {history.trained_on} simulated updates{knows}, from {count} images; on updates of other images it leaves "
            f"{history.held_out_fvu:.2f} of the pixels' variance unexplained (best epoch {history.best_epoch} of {self.epochs}{more})",
        )


def _simulated(victim: Victim, seen: Observation, x: Tensor, number: int, seed: int) -> Signal:
    """What a client with the images ``x`` would have sent, as far as the adversary knows; what is drawn, it draws itself.

    Labels are drawn as the model expects them: what a trained one is sure of, and any for one that is not.
    """
    secret = own_stream(seed + number, "simulated client")
    rng = torch.Generator().manual_seed(secret)
    with torch.no_grad(), private_randomness(secret, victim.device):
        scores = victim(x)
    if not isinstance(scores, Tensor) or scores.dim() != 2:
        raise Inapplicable(
            "a learned inverter simulates clients of a classifier, and this model returns no class scores"
        )
    y = torch.multinomial(scores.float().softmax(-1).cpu(), 1, generator=rng)[:, 0].to(victim.device)
    channel: Channel = seen.channel.simulated(secret % 2**31) if isinstance(seen.channel, Simulates) else seen.channel
    with private_randomness(secret, victim.device):
        signal = {name: t.detach() for name, t in channel(victim, x, y).items()}
    sent = apply_defenses(victim, channel, signal, seen.defenses or (), rng=rng)
    return {name: sent[name] for name in seen.signal if name in sent}


def _sketch(plan: SketchPlan, signal: Signal) -> Tensor:
    """Each layer's sketch with length 1, one after another: the length says how sure the model is, and little of the image."""
    rows = plan(signal)
    return (rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)).flatten()


@example("cnn", auxiliary=True, updates=200, values=256, epochs=60)
@checked
def learned_inversion(*, updates: int = 3000, values: int = 2048, epochs: int = 20) -> LearnedInversion:
    """Wu et al. 2023: simulates ``updates`` of the adversary's own images and trains a network to read images from them.

        ĝ = argmin_g  E ‖g(S(defense(channel(x, y)))) − x‖²,    x̂ = ĝ(S(observed))

    x are auxiliary images that the server holds, in batches of the observed size; of a batch the loss takes the order in which the
    images fit best. S is a sketch of ``values`` numbers (:class:`~leakgauge.measures.sketch.SignBucket`), each layer scaled to length 1.
    Where the adversary knows the defense (``Defended``), its simulated updates are defended too, so any defense can be attacked that
    can be run; no derivative of it is needed. A tenth of the images is held out, and a note states what the network leaves unexplained
    there.

    Deviations: the paper trains on labelled images of the same dataset; here labels are drawn from the model's own scores. The network is
    the decoder of split features in place of a perceptron of three layers.

    Ref: Wu et al. 2023, learning to invert — a model from (compressed) gradients to data, trained on auxiliary data
    """
    return LearnedInversion(updates=updates, values=values, epochs=epochs)
