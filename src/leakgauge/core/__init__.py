"""The vocabulary of leakgauge: a victim sends data through a channel, an attack reads the observation.

    x, y ── share(victim, channel, defenses) ──► Observation ── attack(victim, ·) ──► Reconstruction

Only :func:`share` (here) and ``score`` (in :mod:`leakgauge.audit`) ever see the truth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core.defaults import plain_defaults
from leakgauge.core.randomness import own_stream, private_randomness
from leakgauge.core.running import (
    NO_GRADIENT,
    deep_copy,
    drop_rate,
    explaining_mistakes,
    keeps_statistics,
    output_at,
    refuse_samples,
    refuse_without_values,
    refuse_wrapped,
    switched,
)
from leakgauge.core.spaces import Pixels as Pixels  # re-exported: the vocabulary is read in one place
from leakgauge.core.spaces import Series as Series
from leakgauge.core.spaces import Space
from leakgauge.core.spaces import Tokens as Tokens
from leakgauge.core.spaces import as_images as as_images
from leakgauge.core.tables import Category as Category
from leakgauge.core.tables import Number as Number
from leakgauge.core.tables import Table as Table
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked

Signal = Mapping[str, Tensor]
"""What leaves the device, by parameter, buffer or cut NAME; never by position."""

Targets = Tensor | Mapping[str, Tensor]
"""Class labels, or boxes and classes for detection."""

Loss = Callable[[Any, Any], Tensor]
"""``loss(model_output, targets) -> scalar``, the mean over the batch."""

Mode = Literal["train", "eval"]


@checked
@dataclass(frozen=True, eq=False)
class Victim:
    """All that is public about the audited model.

    The victim copies the model and puts the copy into ``mode``; it never touches the user's module. The copy only runs
    functionally, on given parameters and on copies of the buffers. ``sent_by`` names the malicious server that sent this model
    instead of the agreed one (see :mod:`leakgauge.servers`); empty for an honest server.
    """

    model: nn.Module
    space: Space
    loss: Loss = F.cross_entropy
    mode: Mode = "eval"
    name: str = ""
    sent_by: str = ""

    def __post_init__(self) -> None:
        refuse_wrapped(self.model)
        model = switched(deep_copy(self.model), self.mode)
        if not any(p.requires_grad for p in model.parameters()):
            raise BadInput("the victim's model has no trainable parameter; nothing would be shared")
        model.zero_grad(set_to_none=True)
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "name", self.name or type(model).__name__)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type that the model takes."""
        return next(p.dtype for p in self.model.parameters() if p.is_floating_point())

    def to_input(self, x: Tensor) -> Tensor:
        """``x`` on the model's device, converted to the model's type unless it holds integers such as token ids."""
        return x.to(self.device, self.dtype if x.is_floating_point() else x.dtype)

    def parameters(self) -> dict[str, Tensor]:
        """Trainable parameters by name, detached from the module."""
        return {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers by name; a training-mode forward pass may write into them."""
        return {n: b.detach().clone() for n, b in self.model.named_buffers()}

    def __call__(self, x: Tensor, *, parameters: Signal | None = None, buffers: Signal | None = None) -> Any:
        """Output of the model at ``parameters`` (default: its own). ``buffers``, if given, are updated in place."""
        state = {**(self.buffers() if buffers is None else buffers), **(parameters or {})}
        try:
            return output_at(self.model, state, x)
        except ValueError as refusal:
            if "more than 1 value per channel" not in str(refusal):
                raise
            raise Inapplicable(
                "batch normalisation in train mode cannot compute statistics from a single value; use a larger batch"
            ) from refusal

    def depends_on_mode(self) -> bool:
        """Whether train and eval mode differ for this model (batch statistics, dropout, running statistics of single images)."""
        norm = nn.modules.batchnorm._BatchNorm
        return any(isinstance(m, norm) or drop_rate(m) > 0 or keeps_statistics(m) for m in self.model.modules())


class Channel(Protocol):
    """A pure function from data to what leaves the device, differentiable in x (and in y where y is soft)."""

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal: ...


@runtime_checkable
class SharesBuffers(Protocol):
    """A channel that also knows the client's buffers after its work (batch-norm statistics)."""

    def buffers(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal: ...


@runtime_checkable
class PerSample(Protocol):
    """A channel that sends one row per sample under its own names; a row depends on its own sample only."""

    def like(self, victim: Victim, size: int, /) -> Signal:
        """A signal of ``size`` samples with the right names, shapes and types; its values mean nothing."""
        ...


@runtime_checkable
class KeepsSecrets(Protocol):
    """A channel with a part that only the client knows; ``public`` is the channel as the adversary knows it."""

    def public(self) -> Channel: ...


@runtime_checkable
class Reseeds(Protocol):
    """A channel that draws noise or orders, from its option ``seed``; another client or round draws others."""

    def reseed(self, number: int, /) -> Channel:
        """The channel of client or round ``number``; number 0 is the channel itself."""
        ...


@runtime_checkable
class Smooths(Protocol):
    """A channel with steps that may have no useful derivative, such as Adam's; ``smooth`` is what an attack replays instead."""

    def smooth(self) -> Channel: ...


@runtime_checkable
class SendsGradient(Protocol):
    """A channel that may send the plain gradient of the whole batch."""

    def is_gradient(self, mode: Mode, /) -> bool:
        """Whether it does for a victim in ``mode``."""
        ...


@runtime_checkable
class TrainsLocally(Protocol):
    """A channel that sends the change of the weights after local steps of size ``lr``; all other updates are gradients."""

    @property
    def lr(self) -> float: ...

    def batches(self, samples: int, /) -> Sequence[Sequence[int]]:
        """The samples that each local step is taken on, step by step."""
        ...


@runtime_checkable
class AddsClients(Protocol):
    """A channel that sends the mean over ``clients`` clients, each of which uses the channel ``of``."""

    @property
    def clients(self) -> int: ...

    @property
    def of(self) -> Channel: ...


@runtime_checkable
class LimitsBatch(Protocol):
    """A channel that does not take every number of samples."""

    def batch_sizes(self) -> range:
        """The numbers of samples that it takes."""
        ...


@runtime_checkable
class Protects(Protocol):
    """A channel that a client chooses in order to send less, as it would choose a defense."""

    def unprotected(self) -> Channel:
        """What the client would use otherwise."""
        ...


@runtime_checkable
class ChangesModel(Protocol):
    """A channel that needs a layer in the model, on which client and server agree."""

    def changed(self, victim: Victim, /) -> Victim:
        """The victim with that layer."""
        ...


@runtime_checkable
class Simulates(Protocol):
    """A channel as the adversary knows it, whose secret draws it can make itself; another ``number`` gives others."""

    def simulated(self, number: int, /) -> Channel: ...


@runtime_checkable
class Adaptable(Protects, Protocol):
    """A channel that protects as long as nobody knows how. An adversary who does not know it replays ``unprotected``; one who does
    (:class:`Defended`) replays what :meth:`known` says."""

    def known(self, victim: Victim, sent: Signal, /) -> tuple[Channel, tuple[Defense, ...]]:
        """What to replay against the signal ``sent``, and the defenses that explain the rest."""
        ...


@runtime_checkable
class Encodes(Protocol):
    """A channel as the adversary knows it, with samples that were mixed and given secret signs. A search finds the encoded ones first,
    through :meth:`encodings`; those are ± the mixtures ``weights(n)`` · x of n samples."""

    def encodings(self) -> Channel: ...
    def weights(self, samples: int, /) -> Tensor: ...


@runtime_checkable
class HidesDraws(Protocol):
    """A channel as the adversary knows it, with ``unknowns`` numbers drawn for each sample that are searched with it. It takes them behind
    soft targets, as (batch, classes + unknowns)."""

    @property
    def unknowns(self) -> int: ...


class Defense(Protocol):
    """Changes what leaves the device, and nothing else. Anything that changes how it is computed is a channel."""

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal: ...


@runtime_checkable
class NeedsVictim(Protocol):
    """A defense defined by roles. It needs the model to look up the parameter names."""

    def for_victim(self, victim: Victim, /) -> Defense: ...


@runtime_checkable
class RowByRow(Protocol):
    """A defense that can treat each row of the tensors as a separate message, such as the features of one sample."""

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal: ...


@runtime_checkable
class Explains(Protocol):
    """A defense that says which signals it would have sent as the observed one; an adversary who knows the defense compares with these.

    Both methods treat each row of the tensors as a separate message.
    """

    def replayed(self, plain: Signal, /) -> Signal:
        """What the defense sends of ``plain``, without its random draws."""
        ...

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """The signal nearest to ``plain`` among those that the defense sends as ``sent``, up to its random draws."""
        ...


@runtime_checkable
class Masks(Protocol):
    """A defense that leaves out entries whatever their size, and shows which; an adversary who knows it compares the others only."""

    def shown(self, sent: Signal, /) -> Mapping[str, Tensor]:
        """True for each entry that was sent."""
        ...


@runtime_checkable
class Weighs(Protocol):
    """A defense that adds noise of another size to each tensor; an adversary who knows it weighs the tensors by that."""

    def precision(self, sent: Signal, /) -> Mapping[str, float]:
        """1/σ² of each tensor, up to a common factor."""
        ...


@runtime_checkable
class AddsNoise(Protocol):
    """A defense that adds random noise, which no accountant turns into a guarantee."""

    def deviation(self, signal: Signal, /) -> float:
        """Standard deviation of the noise on one entry of ``signal``."""
        ...


@runtime_checkable
class Doubtful(Protocol):
    """A defense that may silently do less than its options say."""

    def doubts(self, signal: Signal, /) -> tuple[str, ...]:
        """What it fails to do to ``signal``, a sentence each; none if it does what it says."""
        ...


Kind = Literal["deployable", "diagnostic", "malicious"]


@checked
@dataclass(frozen=True)
class Assumption:
    """One thing the adversary is assumed to know or to benefit from.

    ``deployable``: a real server has it in ordinary protocols. ``diagnostic``: it makes the result an upper bound. ``malicious``: a
    real server can do it, but breaks the protocol by doing so.
    """

    what: str
    kind: Kind


@checked
@dataclass(frozen=True)
class Observation:
    """Everything the adversary knows. What it does not know is None."""

    signal: Signal
    channel: Channel
    size: int | None = None
    labels: Targets | None = None
    buffers: Signal | None = None
    near: Tensor | None = None
    auxiliary: Tensor | None = None
    defenses: tuple[Defense, ...] | None = None
    assumptions: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise BadInput(f"an observation is of at least 1 sample, got size {self.size}")


class Reveal(Protocol):
    """Gives the adversary one more piece of knowledge and records that as an assumption."""

    def __call__(
        self, seen: Observation, victim: Victim, x: Tensor, y: Targets, /, *, rng: torch.Generator
    ) -> Observation: ...


def _assume(seen: Observation, what: str, kind: Kind, **known: Any) -> Observation:
    return replace(seen, assumptions=(*seen.assumptions, Assumption(what, kind)), **known)


@dataclass(frozen=True)
class Size:
    """The number of samples in the update. Federated averaging sends it as the client's weight."""

    def __call__(
        self, seen: Observation, victim: Victim, x: Tensor, y: Targets, /, *, rng: torch.Generator
    ) -> Observation:
        return _assume(seen, f"batch size known ({len(x)})", "deployable", size=len(x))


LABELS_GIVEN = "true labels given to the adversary"
"""What :class:`Labels` assumes."""


@dataclass(frozen=True)
class Labels:
    """The true labels of the batch."""

    def __call__(
        self, seen: Observation, victim: Victim, x: Tensor, y: Targets, /, *, rng: torch.Generator
    ) -> Observation:
        return _assume(seen, LABELS_GIVEN, "diagnostic", labels=y)


@dataclass(frozen=True)
class Buffers:
    """The client's buffers after its work: running statistics of batch normalisation."""

    def __call__(
        self, seen: Observation, victim: Victim, x: Tensor, y: Targets, /, *, rng: torch.Generator
    ) -> Observation:
        if not isinstance(seen.channel, SharesBuffers):
            raise BadInput(f"{seen.channel!r} has no buffers to reveal; drop Buffers() from reveal")
        after = seen.channel.buffers(victim, x, y)
        return _assume(seen, "running statistics shared with the update", "deployable", buffers=after)


@dataclass(frozen=True)
class Defended:
    """The defenses of the client, with their settings but not their random draws. A protocol is agreed on, and the code is public.

    Ref: Balunović et al. 2022, breaking existing defenses — the adversary knows the defense mechanism
    """

    def __call__(
        self, seen: Observation, victim: Victim, x: Tensor, y: Targets, /, *, rng: torch.Generator
    ) -> Observation:
        channel = (seen.channel,) if isinstance(seen.channel, Adaptable) else ()
        parts = (*channel, *(seen.defenses or ()))
        if not parts:
            return seen
        named = " + ".join(type(part).__name__ for part in parts)
        return _assume(seen, f"defense known to the adversary ({named})", "deployable")


@checked
@dataclass(frozen=True)
class NoisyCopy:
    """The target itself with each pixel position, with probability ``p``, replaced by N(0, 1) in model space."""

    p: float

    def __call__(
        self, seen: Observation, victim: Victim, x: Tensor, y: Targets, /, *, rng: torch.Generator
    ) -> Observation:
        if not 0 <= self.p <= 1:
            raise BadInput(f"NoisyCopy needs a probability between 0 and 1, got {self.p}")
        if not x.is_floating_point():
            raise BadInput("NoisyCopy mixes noise into pixels, but these samples are token ids; drop it from reveal")
        mask = torch.rand(len(x), 1, *x.shape[2:], generator=rng) < self.p
        noise = torch.randn(x.shape, generator=rng)
        near = torch.where(mask.to(x.device), noise.to(x), x)
        return _assume(seen, f"start near the truth (noise on {self.p:.0%} of the pixels)", "diagnostic", near=near)


@checked
@dataclass(frozen=True, eq=False)
class Auxiliary:
    """Images (model space) that the server holds: the same kind as the client's, but not the client's own."""

    images: Tensor

    def __call__(
        self, seen: Observation, victim: Victim, x: Tensor, y: Targets, /, *, rng: torch.Generator
    ) -> Observation:
        if tuple(self.images.shape[1:]) != tuple(victim.space.shape) or len(self.images) == 0:
            raise BadInput(
                f"Auxiliary needs images of shape {tuple(victim.space.shape)}, got {tuple(self.images.shape)}"
            )
        _refuse_private(self.images, x)
        what = f"server holds {len(self.images)} auxiliary images of the same kind"
        return _assume(seen, what, "deployable", auxiliary=self.images)


def _refuse_private(images: Tensor, x: Tensor) -> None:
    """Refuse auxiliary images that the client holds too: what is learned from them would be the truth."""
    for number, private in enumerate(x):
        same = (images == private.to(images)).flatten(1).all(1)
        if bool(same.any()):
            raise BadInput(
                f"auxiliary image {int(same.nonzero()[0])} equals private image {number}; the server must not hold what it looks for, so "
                "leave it out"
            )


class Sent(TypedDict, total=False):
    """Options of :func:`share` that other functions hand on to it."""

    defenses: Sequence[Defense]
    reveal: Sequence[Reveal]
    seed: int


@checked
@plain_defaults()
def share(
    victim: Victim,
    channel: Channel,
    x: Tensor,
    y: Targets,
    *,
    defenses: Sequence[Defense] = (),
    reveal: Sequence[Reveal] = (Size(),),
    seed: int = 0,
    secret: int | None = None,
) -> Observation:
    """What the adversary gets to see when the client sends ``x, y`` (model space) through ``channel``.

    Defenses run in the given order. Everything revealed beyond the signal is recorded in ``assumptions``.
    The client's random draws (a defense's noise, the dropout masks of a train-mode victim) come from the seed ``secret``. Without
    one they come from a separate stream derived from ``seed``, so an attack with the same seed never draws the same numbers.
    """
    refuse_without_values(victim.model)
    refuse_samples(x, victim.space.shape)
    if isinstance(victim.space, Pixels | Series) and x.is_floating_point():
        victim.space.refuse_outside(x)
    x = x.clone()  # a model may change its input in place; the caller's stays as it is
    secret = own_stream(seed, "client") if secret is None else secret
    updates = not isinstance(channel, PerSample)  # features come from inference, which runs in eval mode

    def outputs() -> Any:
        with private_randomness(secret, victim.device):
            return victim(x)

    explained = explaining_mistakes(outputs, victim.loss, x, y, dtype=victim.dtype, before=x.is_cuda and updates)
    with explained, private_randomness(secret, victim.device):
        signal = _detach(channel(victim, x, y))
        if updates and not any(bool(value.any()) for value in signal.values()):
            with torch.enable_grad():  # by torch.func a loss without weights has a gradient of zero
                if not victim.loss(victim(x), y).requires_grad:
                    raise BadInput(NO_GRADIENT)
    signal = apply_defenses(victim, channel, signal, defenses, rng=torch.Generator().manual_seed(secret))
    seen = Observation(signal=signal, channel=channel, defenses=tuple(_bound(one, victim) for one in defenses))
    if victim.sent_by:
        seen = _assume(seen, f"server sends another model than the agreed one: {victim.sent_by}", "malicious")
    if updates and victim.mode == "eval" and victim.depends_on_mode():
        seen = _assume(seen, "client computes its update in eval mode (real training uses train mode)", "diagnostic")
    rng = torch.Generator().manual_seed(seed)
    for known in reveal:
        with private_randomness(secret, victim.device):  # the same dropout masks as the signal's
            seen = known(seen, victim, x, y, rng=rng)
    knows = any(isinstance(known, Defended) for known in reveal)
    return as_replayed(seen if knows else replace(seen, defenses=None), victim, knows=knows)


def as_replayed(seen: Observation, victim: Victim, *, knows: bool) -> Observation:
    """``seen`` with what an adversary can replay in place of the client's channel: no secret draws, and protection only if it is known
    (``knows``)."""
    channel = seen.channel
    if isinstance(channel, Adaptable):
        replayed, through = channel.known(victim, seen.signal) if knows else (channel.unprotected(), ())
        explained = (*(_bound(one, victim) for one in through), *(seen.defenses or ()))
        return replace(seen, channel=replayed, defenses=explained if knows else None)
    return replace(seen, channel=channel.public()) if isinstance(channel, KeepsSecrets) else seen


def _detach(signal: Signal) -> Signal:
    """Detach each tensor and give it its own memory: autograd can return a class token's gradient as a view of the position
    embedding's, and a defense that works in place would change both."""
    taken: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, value in signal.items():
        place = value.untyped_storage().data_ptr()
        found[name] = value.detach().clone() if place in taken else value.detach()
        taken.add(place)
    return found


def _bound(defense: Defense, victim: Victim) -> Defense:
    """The defense with the names of the victim's parameters, where it needs them."""
    return defense.for_victim(victim) if isinstance(defense, NeedsVictim) else defense


def apply_defenses(
    victim: Victim, channel: Channel, signal: Signal, defenses: Sequence[Defense], *, rng: torch.Generator
) -> Signal:
    """``signal`` after all defenses. Features are defended sample by sample, because each sample is a separate message."""
    for defense in defenses:
        bound = _bound(defense, victim)
        if isinstance(channel, PerSample) and isinstance(bound, RowByRow):
            signal = bound.by_row(signal, rng=rng)
        else:
            signal = bound(signal, rng=rng)
    return signal


@dataclass(frozen=True)
class Trace:
    """The course of an attack: the loss of every restart at ``steps``, and the chosen candidate at ``snapshot_steps``."""

    steps: tuple[int, ...] = ()
    losses: Tensor = field(default_factory=lambda: torch.empty(0, 0))  # (len(steps), restarts)
    snapshot_steps: tuple[int, ...] = ()
    snapshots: Tensor = field(default_factory=lambda: torch.empty(0))  # (len(snapshot_steps), batch, *shape)


@dataclass(frozen=True)
class Learned:
    """What a prior of the adversary learned from, and what it cannot make.

    Of ``images`` it learned from, in ``steps`` steps. At the noise ``levels`` (shares of noise), the error of ``held_out`` images that it
    denoises is the share ``unexplained`` of their variance. ``copies`` is the distance of its own samples to the nearest image that it
    learned from, divided by that of held-out images: far below 1 they are copies.
    """

    images: int
    held_out: int
    steps: int
    levels: tuple[float, ...]
    unexplained: tuple[float, ...]
    copies: float


@dataclass(frozen=True)
class Raced:
    """One run of an attack that tries several: what it is called, how many replays it took, and how well the result explains the
    observation (``mismatch``: 0 is fully; None where that cannot be computed). ``unseen`` is the mismatch of the tensors that this run was
    not given, where some were held back to compare runs by. ``refused`` is the reason where it does not apply.
    """

    name: str
    steps: int = 0
    mismatch: float | None = None
    refused: str = ""
    chosen: bool = False
    unseen: float | None = None


@checked(nan=True)
@dataclass(frozen=True)
class Reconstruction:
    """What an attack believes the data was, in model space. It holds no ground truth.

    ``candidates`` (restarts, batch, *shape) and ``losses`` (restarts,) cover all restarts; ``x`` is the restart with the
    lowest loss, which the adversary can see. ``y`` are class labels, or None where the attack could not infer them;
    ``label_accuracy`` is the share of them that the attack expects to be right, in any order, None where it does not state it or was
    given them. ``stated`` is what the attack predicted it could recover before it solved anything, as table rows (question, answer).
    ``certified`` (batch,) marks samples of ``x`` that the attack checked to be exact, without the truth; None if it has no such check.
    ``confidence`` (batch, columns) is how sure the attack is of each cell of a table, from 0 to 1; None if it does not say.
    An attack that tries several others says which ``raced`` and ``by`` which one this is; the null run is that one's.
    ``learned`` is what an attack with a prior learned, and ``gallery`` (N, C, H, W), in [0, 1], what that prior makes by itself.
    """

    x: Tensor
    y: Tensor | None
    loss: float
    candidates: Tensor
    losses: Tensor
    made_by: str
    seconds: float
    trace: Trace = field(default_factory=Trace)
    notes: tuple[str, ...] = ()
    stated: tuple[tuple[str, str], ...] = ()
    label_accuracy: float | None = None
    raced: tuple[Raced, ...] = ()
    by: Attack | None = None
    certified: Tensor | None = None
    confidence: Tensor | None = None
    learned: Learned | None = None
    gallery: Tensor | None = None

    @classmethod
    def single(
        cls,
        x: Tensor,
        y: Tensor | None,
        *,
        loss: float = 0.0,
        made_by: str,
        began: float,
        notes: tuple[str, ...] = (),
        stated: tuple[tuple[str, str], ...] = (),
        certified: Tensor | None = None,
    ) -> Reconstruction:
        """The result of an attack without restarts, such as a closed form. ``began`` is its start time (perf_counter)."""
        losses, seconds = torch.tensor([loss], dtype=torch.float64), time.perf_counter() - began
        return cls(x, y, loss, x[None], losses, made_by, seconds, notes=notes, stated=stated, certified=certified)


class Attack(Protocol):
    """Turns an observation into a reconstruction. Raises ``Inapplicable`` if something it needs is missing."""

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction: ...


@runtime_checkable
class Blindable(Protocol):
    """An attack that can run without the signal (the null run): same start, same priors, nothing observed."""

    def blind(self) -> Attack: ...


Use = Literal["statistics", "noisy_copy", "learned_prior", "features", "epochs"]
"""What some attacks use: normalisation statistics that the client shared, a noisy copy of the target, what they learned of images from
auxiliary ones, the features of a split in place of an update, several local epochs in unknown orders."""


@runtime_checkable
class Informed(Protocol):
    """An attack that uses something that others do not."""

    def uses(self) -> frozenset[Use]: ...


@runtime_checkable
class Sampled(Protocol):
    """An attack of many searches; one of them shows what they cost."""

    def sample(self) -> tuple[Attack, int]:
        """One search with as many steps, and how many there are."""
        ...


@runtime_checkable
class Searches(Protocol):
    """An attack that searches for a number of steps; fewer than usual make its negatives worthless."""

    def effort(self) -> tuple[str, int]:
        """The name of its recipe and the steps it takes."""
        ...


def uses(attack: Attack) -> frozenset[Use]:
    """What the attack uses that others do not."""
    return attack.uses() if isinstance(attack, Informed) else frozenset()
