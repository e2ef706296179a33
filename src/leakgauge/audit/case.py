"""A case is plain data: one set-up to be attacked. The same case gives the same record (but for seconds and memory).

Its parts are written ``NAME`` or ``NAME:option=value,…``, as on the command line.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from leakgauge.attacks import ATTACKS
from leakgauge.audit.migrate import migrated_case
from leakgauge.audit.specs import made_from, options_in, written_options
from leakgauge.audit.typed import Misfit
from leakgauge.channels import CHANNELS, DPSGD, SGD, FedAvg, Gradient, ShuffledFedAvg
from leakgauge.channels.facts import LocalTraining, clients, is_weight_update, local_training
from leakgauge.channels.optimizers import OPTIMIZERS, Optimizer
from leakgauge.core import (
    AddsNoise,
    Attack,
    Blindable,
    Buffers,
    Channel,
    Defended,
    Defense,
    Labels,
    LimitsBatch,
    Mode,
    NoisyCopy,
    PerSample,
    Protects,
    Reveal,
    Searches,
    Size,
    Use,
    uses,
)
from leakgauge.defenses import DEFENSES, Withhold
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.models.pretrained import PRETRAINED
from leakgauge.servers import SERVERS, Server


@checked
@dataclass(frozen=True)
class AuxiliaryImages:
    """Other images of the same data, as many as ``count``; the set-up, which has the data, puts them in."""

    count: int = 64

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadInput(f"auxiliary needs a number of images of at least 1, got {self.count!r}")


@checked
@dataclass(frozen=True)
class PublicImages:
    """The images of a folder (or file of images) that the server holds; the set-up, which knows the victim's shape, reads them."""

    folder: str

    def __post_init__(self) -> None:
        if not Path(self.folder).exists():
            raise BadInput(f"there are no public images at {self.folder!r}; give a folder of images")


BY_FIELDS = (Gradient, FedAvg, ShuffledFedAvg)
"""Channels that the fields of a case say: local steps, epochs, learning rate and optimizer."""
AUXILIARY, PUBLIC = "auxiliary", "public"
REVEALS: dict[str, Any] = {
    "size": Size,
    "labels": Labels,
    "buffers": Buffers,
    "defended": Defended,
    "noisy_copy": NoisyCopy,
    AUXILIARY: AuxiliaryImages,
    PUBLIC: PublicImages,
}


SALT = 1_000_003

REARRANGED = "attention_first:"
"""Before a model's name: the first block of a vision transformer is stacked as architecture A of the APRIL paper."""


def protects(channel: str) -> bool:
    """Whether a channel, written as in a case, is one of those that protect; anything else, such as a defense, is not."""
    found = CHANNELS.get(channel.partition(":")[0])
    return found is not None and issubclass(found, Protects)


def clients_of(channel: str) -> int:
    """How many clients a channel, written as in a case, adds up.

    >>> clients_of("aggregate:clients=4"), clients_of("dpsgd:clip=1"), clients_of("")
    (4, 1, 1)
    """
    return clients(made_from(channel, CHANNELS, kind="channel")) if _adds_clients(channel) else 1


def _adds_clients(channel: str) -> bool:
    return "of" in _options_of_channel(channel)


def _options_of_channel(channel: str) -> Mapping[str, object]:
    """The options that a channel, written as in a case, takes; none for one that is not registered."""
    found = CHANNELS.get(channel.partition(":")[0])
    return {} if found is None else inspect.signature(found).parameters


def default_data(model: str) -> str:
    """The embedded data that a model gets when none is named: what it was trained on, or photographs."""
    return "fashion" if model.removeprefix(REARRANGED) in PRETRAINED else "photographs"


MOST_CLASSES = 100_000
EXPLICIT = ("mode", "batch_size", "attack", "seed", "first")
"""Fields that a recorded command always names."""
TRAINING = ("local_steps", "local_lr", "local_epochs", "optimizer")
"""Fields that say how a client trains on its images."""
SETUP = ("data", "target", "weights", "size", "classes", "resize", "window", "device")
"""Fields that every command takes, beside the model: what decides what is loaded."""


@checked
@dataclass(frozen=True)
class Change:
    """One change of a set-up. A relaxation makes the adversary's work easier, a restriction makes it harder."""

    name: str
    kind: Literal["relaxation", "restriction"]


@checked(nan=True)
@dataclass(frozen=True)
class Case:
    """``attack``, ``channel``, ``server``, ``defenses`` and ``reveal`` are written as NAME or NAME:option=value,…; ``options`` go to
    the attack.

    A client takes ``local_steps`` steps, each on the next ``batch_size`` images, and passes over all of these ``local_epochs`` times,
    in an order of its own each time; every step has the rate ``local_lr`` and is made by the ``optimizer`` (sgd, adam or adamw, with
    options). So 5 steps are 5 minibatches, and 5 epochs of one step are the same batch five times. One plain step shares the
    gradient, more share the change of the weights. With a ``channel`` the update is made otherwise: ``aggregate:clients=4`` adds up
    what four clients share, who hold each batch together. What a client draws for itself comes from the seed.
    Without a ``server`` it is honest, and sends the model as it is.
    ``first`` is the index of the first private image in the data; ``images`` of them, from that one on, are in the update. ``classes``
    (where a library's model can be built for any number), ``weights`` (a file), ``size`` (of the images that a timm model takes),
    ``resize`` (images to the model's size), ``window`` (stored values of black and white) and ``target`` (the column of a table that the
    model predicts) are for loading. ``change`` is what
    sets a case apart from the set-up that it explains; None for a set-up of its own. ``in_memory``: the model was given as a Python object,
    ``model`` is only what it is called, and no command line can load it.
    """

    model: str = "cnn"
    data: str = "fashion"
    mode: Mode = "eval"
    batch_size: int = 1
    local_steps: int = 1
    local_lr: float = 0.01
    local_epochs: int = 1
    optimizer: str = "sgd"
    channel: str = ""
    server: str = ""
    attack: str = "strongest"
    options: Mapping[str, Any] = field(default_factory=dict)
    defenses: tuple[str, ...] = ()
    reveal: tuple[str, ...] = ("size",)
    seed: int = 0
    first: int = 0
    classes: int | None = None
    resize: bool = False
    device: str = "cpu"
    name: str = ""
    change: Change | None = None
    in_memory: bool = False
    weights: str = ""
    size: int | None = None
    window: str = ""
    target: str = ""

    def __post_init__(self) -> None:
        sizes = {
            "batch size": self.batch_size,
            "number of local steps": self.local_steps,
            "number of local epochs": self.local_epochs,
            "number of classes": self.classes,
            "size": self.size,
        }
        for what, value in sizes.items():
            if value is not None and value < 1:
                raise BadInput(f"the {what} must be at least 1, got {value}")
        if self.classes is not None and self.classes > MOST_CLASSES:
            raise BadInput(f"the number of classes must be at most {MOST_CLASSES}, got {self.classes}")
        if self.first < 0:
            raise BadInput(f"the index of the first image must be at least 0, got {self.first}")
        if not 0 < self.local_lr < math.inf:  # NaN is refused too
            raise BadInput(f"local steps need a positive learning rate, got {self.local_lr}")
        if self.seed < 0:
            raise BadInput(f"the seed must be at least 0, got {self.seed}")
        self._settle_attack()
        object.__setattr__(self, "name", self.name or self._described())

    def _settle_attack(self) -> None:
        """Options behind the attack's name are options like all others, for whoever reads the case."""
        name, colon, _ = self.attack.partition(":")
        if colon and name in ATTACKS:
            object.__setattr__(self, "options", {**options_in(self.attack, ATTACKS[name]), **self.options})
            object.__setattr__(self, "attack", name)

    def _described(self) -> str:
        return f"{self.model}, {self._without_model()}"

    def _without_model(self) -> str:
        described = f"{self.setting()}, {self.attack}"
        return described if self.change is None else f"{described} ({self.change.kind}: {self.change.name})"

    def short_name(self) -> str:
        """The name without the model, unless the user gave one."""
        return self._without_model() if self.name == self._described() else self.name

    def setting(self) -> str:
        """The set-up without its model and attack."""
        parts = [f"{self.mode} mode", f"batch {self.batch_size}"]
        parts += [f"{self.local_steps} local steps"] if self.local_steps > 1 else []
        parts += [f"{self.local_epochs} local epochs"] if self.local_epochs > 1 else []
        parts += [self.optimizer] if self.optimizer != Case.optimizer else []
        sent = f"malicious {self.server}" if self.server else ""
        return ", ".join([*parts, *filter(None, [self.channel, sent]), *self.defenses])

    def key(self) -> str:
        """Identifies the case in a run; ``--resume`` skips cases whose key has a record."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:12]

    def identity(self) -> dict[str, Any]:
        """The fields that a key is made of; those that older versions do not know only where they say something.

        ``change`` is not among them: it says why the case is run, not what it does. ``local_steps`` were steps on the same batch
        until 0.2, which are epochs now, so old keys stay as they are.
        """
        fields = asdict(self)
        fields["minibatches"], fields["local_steps"] = fields["local_steps"], fields.pop("local_epochs")
        usual = {
            "channel": "", "server": "", "in_memory": False, "minibatches": 1, "optimizer": Case.optimizer, "weights": "",
            "size": None, "window": "", "target": "",
        }  # fmt: skip
        return {name: v for name, v in fields.items() if name != "change" and (name not in usual or v != usual[name])}

    def content_key(self) -> str:
        """Identifies what the case does, whatever its name."""
        return replace(self, name="", change=None).key()

    def build_attack(self) -> Attack:
        return made_from(self.attack, ATTACKS, kind="attack", extra=self.options)

    def build_server(self) -> Server | None:
        return made_from(self.server, SERVERS, kind="server") if self.server else None

    def build_defenses(self) -> tuple[Defense, ...]:
        return tuple(map(_defense, self.defenses))

    def build_reveal(self) -> tuple[Reveal | AuxiliaryImages | PublicImages, ...]:
        return tuple(made_from(spec, REVEALS, kind="knowledge to reveal") for spec in self.reveal)

    @property
    def images(self) -> int:
        """Private images in the update, of all clients together."""
        return self.batch_size * self.local_steps

    @property
    def steps(self) -> int | None:
        """Steps that the case gives its attack; None where it leaves them to the attack, or that takes none."""
        found = self.options.get("steps")
        return found if isinstance(found, int) else None

    @property
    def _trains_plainly(self) -> bool:
        """Whether nothing is said about local training."""
        return all(getattr(self, name) == getattr(Case, name) for name in TRAINING)

    @property
    def _secret(self) -> int:
        """The seed of what the client draws: another stream than the adversary's own draws from the seed."""
        return SALT * (self.seed + 1) + self.first

    def build_optimizer(self) -> Optimizer:
        return made_from(self.optimizer, OPTIMIZERS, kind="optimizer")

    def _of_one_client(self, of: int = 1) -> Channel:
        """What one of ``of`` clients sends, who hold each batch together."""
        optimizer, size = self.build_optimizer(), max(1, self.batch_size // of)
        if self.local_steps == 1:  # every step uses all images, so their order means nothing
            if self.local_epochs == 1 and optimizer == SGD():
                return Gradient()
            return FedAvg(steps=self.local_epochs, lr=self.local_lr, optimizer=optimizer)
        if self.local_epochs == 1:
            return FedAvg(steps=self.local_steps, lr=self.local_lr, minibatch=size, optimizer=optimizer)
        return ShuffledFedAvg(self.local_epochs, self.local_lr, size, optimizer, seed=self._secret)

    def build_channel(self) -> Channel:
        if not self.channel:
            return self._of_one_client()
        name = self.channel.partition(":")[0]
        if _adds_clients(name):
            if "of=" in self.channel:
                raise BadInput(f"{self.channel} cannot say what each client sends; drop of=…, the local steps say it")
            plain = made_from(self.channel, CHANNELS, kind="channel")
            return made_from(self.channel, CHANNELS, kind="channel", extra={"of": self._of_one_client(clients(plain))})
        if CHANNELS.get(name) in BY_FIELDS:
            raise BadInput(_said_by_fields(self))
        if not self._trains_plainly:
            raise BadInput(
                f"channel {name} says itself how the update is made; drop local steps, epochs, learning rate and optimizer"
            )
        drawn = {"seed": self._secret} if "seed" in _options_of_channel(name) and "seed=" not in self.channel else {}
        made = made_from(self.channel, CHANNELS, kind="channel", extra=drawn)
        if isinstance(made, DPSGD) and made.noise and made.seed is None:
            raise BadInput(f"{self.channel} draws no noise, since it has no seed; drop seed=None, or take noise=0")
        return made

    def local_training(self) -> LocalTraining | None:
        """The steps that each client really takes; None where it sends a gradient or features."""
        return local_training(self.build_channel(), self.images)

    def without_training(self) -> Case:
        """The case of one plain step, which shares the gradient of the same images per step."""
        plain = {one.name: one.default for one in fields(self) if one.name in TRAINING}
        return replace(self, name="", **plain)

    def shares_weights(self) -> bool:
        """Whether a weight update leaves the device, for which the client's learning rate matters."""
        return is_weight_update(self.build_channel())

    def protections(self) -> tuple[str, ...]:
        """What is between the data and the adversary: a channel that protects, then the defenses."""
        return (*((self.channel,) if protects(self.channel) else ()), *self.defenses)

    def fits(self) -> bool:
        """Whether mode, batch and local steps go together with the channel."""
        if not self.channel:
            return True
        if self._in_the_wrong_mode():
            return False
        if not self._trains_plainly and not _adds_clients(self.channel):
            return False
        return self.batch_size in self.batch_sizes()

    def require_fit(self) -> None:
        """Refuses a batch that is too small for the channel's clients, or not whole in minibatches."""
        if self._in_the_wrong_mode():
            raise BadInput(f"{self.channel} is sent by inference, which runs in eval mode; use mode eval")
        if not self.fits():
            sizes = self.batch_sizes()
            wanted = f"at least {sizes.start}" if sizes.step == 1 else f"{sizes.start} or a multiple of it"
            raise BadInput(f"{self.channel} needs a batch of {wanted}, got {self.batch_size}; change the batch size")

    def _in_the_wrong_mode(self) -> bool:
        found = CHANNELS.get(self.channel.partition(":")[0])
        return self.mode != "eval" and found is not None and issubclass(found, PerSample)

    def batch_sizes(self) -> range:
        """The sizes of a batch that the channel takes; several clients share each of several batches evenly."""
        channel = self.build_channel()
        sizes = channel.batch_sizes() if isinstance(channel, LimitsBatch) else range(1, sys.maxsize)
        if self.local_steps == 1:
            return sizes
        return range(clients(channel), sys.maxsize, clients(channel))

    def as_options(self, *names: str) -> list[str]:
        """The fields ``names`` as options of the command line; a field with its usual value is left out unless it is explicit."""
        usual = {one.name: one.default for one in fields(self)} | {"data": default_data(self.model)}
        words: list[str] = []
        for name in names:
            value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
            if isinstance(value, Mapping):
                value = tuple(f"{key}={one}" for key, one in value.items())
            if isinstance(value, tuple):
                words += [word for spec in value if spec != "size" for word in (flag.removesuffix("s"), spec)]
            elif name in EXPLICIT or value != usual[name]:
                words += [flag] if value is True else [flag, str(value)]
        return words

    def command(self) -> str:
        """The command line that runs this case alone; none for a model in memory."""
        if self.in_memory:
            return ""
        names = (one.name for one in fields(self) if one.name not in ("model", "name", "change", "in_memory"))
        return shlex.join(["leakgauge", "attack", self.model, *self.as_options(*names)])


def _defense(spec: str) -> Defense:
    """Refuses what would be shown as a defended set-up though it defends nothing, or is no defense but a channel."""
    if protects(spec):
        raise BadInput(f"{spec} is a way to compute the update, not a change of it; use --channel {spec}")
    made = made_from(spec, DEFENSES, kind="defense")
    if isinstance(made, Withhold) and not made.roles:
        raise BadInput(f"{spec} keeps nothing back without a role; say which, e.g. withhold:head")
    return made


def same_protection(spec: str) -> str:
    """What a defense does, however its options are written; a name that is not registered stays as it is.

    >>> same_protection("prune:0.90") == same_protection("prune:fraction=0.9")
    True
    """
    registry = CHANNELS if protects(spec) else DEFENSES
    if spec.partition(":")[0] not in registry:
        return spec
    return repr(made_from(spec, registry, kind="defense"))


def _training_fields(channel: str, batch_size: int) -> dict[str, Any]:
    """The fields of a case that say what a channel of local training, written as in a case, says about ``batch_size`` images."""
    name, _, written = channel.partition(":")
    given = written_options(written, ("epochs",) if name == "shuffled_fedavg" else ("steps",), channel)
    size, rate = given.get("minibatch") or batch_size, given.get("lr", FedAvg.lr)
    optimizer = given.get("optimizer") or (f"sgd:momentum={given['momentum']}" if given.get("momentum") else "sgd")
    if name == "shuffled_fedavg":
        steps, epochs = max(1, batch_size // size), given.get("epochs", 1)
    else:
        steps, epochs = given.get("steps", 1), 1
    return {
        "batch_size": size, "local_steps": steps, "local_epochs": epochs, "local_lr": rate, "optimizer": optimizer, "channel": "",
    }  # fmt: skip


def _said_by_fields(case: Case) -> str:
    """Refuses a channel of local training, with the right way to say the same."""
    name = case.channel.partition(":")[0]
    if name == "gradient":
        return "channel gradient is what one local step shares anyway; drop it"
    found = _training_fields(case.channel, case.batch_size)
    said = {field: v for field, v in found.items() if field == "batch_size" or v != getattr(Case, field)}
    options = " ".join(f"--{field.replace('_', '-')} {value}" for field, value in said.items())
    fields = ", ".join(f"{field}={value!r}" for field, value in said.items())
    return f"local training has options of its own; instead of channel {case.channel} write {options} (in a plan file: {fields})"


def present_fields(fields: Any) -> Any:
    """The fields of a case that this version or an older one wrote down, as this version writes them; what is no case is left alone."""
    if not isinstance(fields, Mapping):
        return fields
    fields = migrated_case(fields)
    channel, size = fields.get("channel"), fields.get("batch_size", 1)
    if isinstance(channel, str) and channel.partition(":")[0] == "shuffled_fedavg" and isinstance(size, int):
        try:
            return fields | _training_fields(channel, size)  # until 0.2 a channel, with all images as the batch
        except (BadInput, TypeError) as error:
            raise Misfit(f"channel is {channel!r}, which cannot be read") from error
    return fields


def accepted_options(case: Case) -> Mapping[str, object]:
    """The options that the case's attack takes, with their defaults; none for an attack that is not registered."""
    factory: Callable[..., object] | None = ATTACKS.get(case.attack.partition(":")[0])
    taken = {} if factory is None else inspect.signature(factory).parameters
    return {name: parameter.default for name, parameter in taken.items()}


ENOUGH = 0.1
"""Share of an attack's own number of steps below which a negative says nothing."""


def enough_steps(case: Case) -> int:
    """The fewest steps after which a negative of the case's attack counts; 0 for an attack that takes none.

    >>> enough_steps(Case()), enough_steps(Case(attack="linear"))
    (200, 0)
    """
    usual = accepted_options(case).get("steps")
    return math.ceil(ENOUGH * usual) if isinstance(usual, int) else 0


def tries_enough(case: Case) -> bool:
    """Whether a negative of the case would count."""
    return case.steps is None or case.steps >= enough_steps(case)


def earns_negative(attack: Attack) -> bool:
    """Whether a negative of ``attack`` would count: as :func:`tries_enough`, for an attack made in Python.

    A recipe that is not registered has no usual number of steps to compare with.

    >>> from leakgauge.attacks import inverting_gradients
    >>> earns_negative(inverting_gradients(steps=479)), earns_negative(inverting_gradients(steps=480))
    (False, True)
    """
    if not isinstance(attack, Searches):
        return True
    name, steps = attack.effort()
    return steps >= enough_steps(Case(attack=name)) if name in ATTACKS else True


def with_steps(case: Case, steps: int) -> Case:
    """The case with so many steps, where its attack takes any."""
    if "steps" not in accepted_options(case):
        return case
    return replace(case, options={**case.options, "steps": steps})


def uses_of(attack: str) -> frozenset[Use]:
    """What a registered attack uses that others do not; nothing for a name that is not registered."""
    factory = ATTACKS.get(attack.partition(":")[0])
    return frozenset() if factory is None else uses(factory())


def has_prior(attack: str) -> bool | None:
    """Whether an attack on updates looks for images with what it learned of other images.

    None for one that looks for none: a closed form, an attack on features.
    """
    factory = ATTACKS.get(attack.partition(":")[0])
    if factory is None or not isinstance(factory(), Blindable) or "features" in uses_of(attack):
        return None
    return "learned_prior" in uses_of(attack)


def adds_noise(defense: str) -> bool:
    """Whether a defense, written as in a case, adds noise; DP-SGD, which clips each sample first, is a channel."""
    found = DEFENSES.get(defense.partition(":")[0])
    return found is not None and issubclass(found, AddsNoise)
