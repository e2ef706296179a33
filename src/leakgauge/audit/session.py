"""What a case is run on: the victim, its private data, and other images of the same kind; loaded once in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.audit import evidence
from leakgauge.audit.case import SETUP, AuxiliaryImages, Case, PublicImages
from leakgauge.audit.cause import Client
from leakgauge.audit.evaluate import observe
from leakgauge.core import Auxiliary, ChangesModel, Labels, Observation, Pixels, Reveal, Series, Table, Tokens, Victim
from leakgauge.core.randomness import own_stream, private_randomness
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.data.facts import USUAL, DataFacts
from leakgauge.data.reader import read_given
from leakgauge.errors import BadInput, LeakgaugeError, one_line
from leakgauge.models.pretrained import PRETRAINED, pretrained

POOL = 200
"""How many other images a reconstruction must be distinguished from."""


@dataclass(frozen=True, eq=False)
class Setup:
    """``images`` (N, C, H, W) in [0, 1] and ``labels`` (N,) are the data the case takes its batch from; ``facts`` are about them.

    For a text model ``images`` are token ids (N, length), and ``labels`` are what it is asked for. ``tokens`` gives the pieces of text of
    one sentence; without it ids are shown as numbers.
    """

    victim: Victim
    images: Tensor
    labels: Tensor
    facts: DataFacts = USUAL
    tokens: Callable[[Tensor], list[str]] | None = None

    @property
    def classes(self) -> bool:
        """Whether a label is the number of a class. Other targets (values, several labels, masks, probabilities) need a loss of the user's
        own, and are given to the adversary, which is declared.
        """
        return self.labels.dim() == 1 and not self.labels.is_floating_point()

    def private(self, case: Case) -> tuple[Tensor, Tensor]:
        """The case's batch, in model space, on the victim's device."""
        rows = slice(case.first, case.first + case.images)
        if rows.stop > len(self.images):
            raise BadInput(
                f"the case needs images {rows.start} to {rows.stop - 1}, but the data holds {len(self.images)}; "
                "give more data or a smaller batch"
            )
        x, y = self.images[rows], self.labels[rows]
        return self.victim.to_input(self.victim.space.encode(x)), y.clone().to(self.victim.device)

    def truth(self, case: Case) -> tuple[Tensor, Tensor | None]:
        """What an attack on the case is scored against: its images, and its labels unless they are made up."""
        x, y = self.private(case)
        return x, y if self.facts.labelled and self.classes else None

    def client(self, case: Case) -> Client:
        """What only the client of the case knows."""
        return Client(self.private(case)[1], case.build_channel(), own_stream(case.seed, "client"))

    def example(self) -> dict[str, Tensor]:
        """The first image of the data and its label, on which controls are run."""
        x = self.victim.to_input(self.victim.space.encode(self.images[:1]))
        return {"x": x, "y": self.labels[:1].clone().to(self.victim.device)}

    def sent(self, case: Case) -> Setup:
        """The set-up with the model that the case's channel needs, or that its server sends, which knows the auxiliary images."""
        server, channel = case.build_server(), case.build_channel()
        if isinstance(channel, ChangesModel):
            return replace(self, victim=channel.changed(self.victim))
        if server is None:
            return self
        auxiliary = next((known.images for known in self.reveal(case) if isinstance(known, Auxiliary)), None)
        return replace(self, victim=server(self.victim, auxiliary=auxiliary, seed=case.seed))

    def observation(self, case: Case) -> Observation:
        """What the adversary of the case holds."""
        x, y = self.private(case)
        return observe(
            self.victim,
            case.build_channel(),
            x,
            y,
            defenses=case.build_defenses(),
            reveal=self.reveal(case),
            seed=case.seed,
        )

    def pool(self, case: Case) -> Tensor | None:
        """Other images of the data, for re-identification; None where the batch is all there is."""
        rows = torch.arange(len(self.images))
        others = (rows < case.first) | (rows >= case.first + case.images)
        return self.pictures(self.images[others][:POOL]) if bool(others.any()) else None

    def pictures(self, samples: Tensor) -> Tensor:
        """Samples of the data as image measures take them: series one pixel high, anything else as it is."""
        return self.victim.space.picture(samples) if isinstance(self.victim.space, Series) else samples

    def reveal(self, case: Case) -> tuple[Reveal, ...]:
        """What the case reveals; auxiliary images come from the end of the data, the pool from its beginning."""
        known = tuple(self._revealed(case, known) for known in case.build_reveal())
        given = self.classes or isinstance(self.victim.space, Tokens) or any(isinstance(one, Labels) for one in known)
        return known if given else (*known, Labels())

    def _revealed(self, case: Case, known: Reveal | AuxiliaryImages | PublicImages) -> Reveal:
        match known:
            case AuxiliaryImages(count=count):
                return Auxiliary(self._auxiliary(case, count))
            case PublicImages():
                return Auxiliary(public_images(known, self.victim, resize=case.resize))
            case _:
                return known

    def _auxiliary(self, case: Case, count: int) -> Tensor:
        """The last images of the data that are not private, nor copies of a private one (recognised by their sums)."""
        sums = self.images.flatten(1).double().sum(1)
        private = torch.isin(sums, sums[case.first : case.first + case.images])
        others = (~private).nonzero()[:, 0]
        if len(others) < count:
            raise BadInput(
                f"the case wants {count} auxiliary images, but the data holds {len(others)} besides the private ones; "
                "give more data or ask for fewer"
            )
        return self.victim.to_input(self.victim.space.encode(self.images[others[-count:]]))


def public_images(known: PublicImages, victim: Victim, *, resize: bool) -> Tensor:
    """The images of a folder as the victim takes them."""
    if not isinstance(victim.space, Pixels):
        raise BadInput(f"public images are for models that take images, and {victim.name} takes {victim.space!r}")
    channels, height, width = victim.space.shape
    given = read_given(known.folder, shape=(channels, height, width), resize=resize)
    return victim.to_input(victim.space.encode(given.images))


Load = Callable[[Case], Setup]
"""Finds what a case names. Passed in, so the audit needs no framework and a case stays plain data."""


class Session:
    """A ``Load`` that asks another one once for each source: model, data, and what changes how they are loaded.

    What it loaded is never run. Every case gets a copy of the model in the mode it asks for, and the same images and labels,
    which nobody writes into. A session that travels to another process starts empty there and loads once for that process.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._loaded: dict[tuple[object, ...], Setup] = {}

    def __call__(self, case: Case) -> Setup:
        """The set-up of the case."""
        source = (case.model, *(getattr(case, name) for name in SETUP), case.seed)
        if source not in self._loaded:
            self._loaded[source] = self._load(case)
        found = self._loaded[source]
        return replace(found, victim=replace(found.victim, mode=case.mode))

    def __reduce__(self) -> tuple[type[Session], tuple[Load]]:
        return Session, (self._load,)


def keep_evidence(folder: Path, cases: Iterable[Case], load: Load) -> None:
    """Hashes of every model and data that ``cases`` name, into the run folder; refused if it holds others from before."""
    by_name: dict[str, list[Case]] = {}
    for case in cases:
        by_name.setdefault(case.model, []).append(case)
    for name, those in by_name.items():
        setup = load(those[0])
        settings = {"cases": [asdict(case) for case in those]}
        evidence.keep(folder, name, setup.victim.model, (setup.images, setup.labels), settings)


def set_up(case: Case, load: Load) -> Setup:
    """What the case names, with the model that its server sends."""
    return load(case).sent(case)


def embedded(case: Case) -> Setup:
    """The set-up of a case on a model and data that travel with the package; one image per class, then the next ones."""
    if case.model not in PRETRAINED:
        raise BadInput(f"{case.model!r} is not embedded; embedded are {', '.join(PRETRAINED)}")
    images, labels = fashion("test")
    order = one_of_each_class(labels)
    space = Pixels((1, 28, 28), mean=MEAN, std=STD)
    victim = Victim(pretrained(case.model).to(case.device), space, mode=case.mode, name=case.model)
    return Setup(victim, images[order], labels[order])


def one_of_each_class(labels: Tensor) -> Tensor:
    """Order in which the first image of every class comes first, then the second of every class, and so on."""
    seen = torch.zeros(int(labels.max()) + 1, dtype=torch.long)
    turn = torch.empty_like(labels)
    for i, label in enumerate(labels.tolist()):
        turn[i] = seen[label]
        seen[label] += 1
    return torch.argsort(turn * len(seen) + labels, stable=True)


def check_runs(setup: Setup) -> None:
    """As :func:`check_fits`, for what takes text too; ids were checked when they were read."""
    if not isinstance(setup.victim.space, Tokens):
        check_fits(setup)


def check_fits(setup: Setup) -> int:
    """Number of classes, 0 where the targets are no classes. Refuses, in one sentence, a model that does not take the data or targets it
    cannot have."""
    victim = setup.victim
    if isinstance(victim.space, Table):
        raise BadInput(f"{victim.name} reads rows of a table, and this command takes images; use leakgauge attack")
    if isinstance(victim.space, Tokens):
        raise BadInput(
            f"{victim.name} reads text, and this takes images; leakgauge audit --only updates, attack and scan take text"
        )
    probe = victim.to_input(victim.space.encode(setup.images[:2]))
    try:
        with torch.no_grad():
            output = victim(probe)
    except LeakgaugeError:
        raise
    except Exception as error:
        shape = "x".join(map(str, victim.space.shape))
        what = "series" if isinstance(victim.space, Series) else "images"
        raise BadInput(f"the model {victim.name} does not take {what} of shape {shape}: {one_line(error)}") from error
    if not setup.classes:
        _check_targets(setup, probe)
        return 0
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(probe) or output.is_complex():
        got = type(output).__name__
        if isinstance(output, Tensor):
            got = "complex numbers" if output.is_complex() else tuple(output.shape)
        raise BadInput(
            f"the model {victim.name} must return class scores of shape (batch, classes), it returned {got}; wrap it in a module "
            "that returns the scores alone"
        )
    classes = output.shape[1]
    if int(setup.labels.min()) < 0 or int(setup.labels.max()) >= classes:
        raise BadInput(
            f"labels must be in 0..{classes - 1} for a model with {classes} classes, "
            f"the data has {int(setup.labels.min())}..{int(setup.labels.max())}"
        )
    return classes


def _check_targets(setup: Setup, probe: Tensor) -> None:
    """Refuses targets that the model's loss does not take."""
    victim, targets = setup.victim, setup.labels[:2].to(setup.victim.device)
    shape = tuple(targets.shape[1:]) or "one value each"
    with torch.no_grad():
        output = victim(probe)
    try:
        with torch.no_grad():
            loss = victim.loss(output, targets)
    except Exception as error:
        made = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise BadInput(
            f"the loss of {victim.name} does not take its output {made} with targets of {targets.dtype} ({shape}): {one_line(error)}"
        ) from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise BadInput(f"the loss of {victim.name} must return one number, the mean over the batch")


def modes_differ(setup: Setup) -> bool:
    """Whether train and eval mode differ for the model: by its layers or, where a layer asks for itself, by what it makes of two images."""
    victim = setup.victim
    if victim.depends_on_mode():
        return True
    x = victim.to_input(victim.space.encode(setup.images[:2]))
    with torch.no_grad(), private_randomness(0, victim.device):
        training, evaluated = (replace(victim, mode=mode)(x) for mode in ("train", "eval"))
    return not torch.equal(training, evaluated)
