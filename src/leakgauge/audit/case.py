"""A case is plain data: one set-up to be attacked. The same case gives the same record (but for seconds and memory)."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from leakgauge.attacks import ATTACKS
from leakgauge.audit.parse import made_from
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Attack, Buffers, Channel, Defense, Labels, Mode, NoisyCopy, Reveal, Size
from leakgauge.defenses import DEFENSES
from leakgauge.errors import BadInput
from leakgauge.models.pretrained import PRETRAINED


@dataclass(frozen=True)
class AuxiliaryImages:
    """Other images of the same data, as many as ``count``; the set-up, which has the data, puts them in."""

    count: int = 64

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 1:
            raise BadInput(f"auxiliary needs a number of images of at least 1, got {self.count!r}")


REVEALS: dict[str, Any] = {
    "size": Size,
    "labels": Labels,
    "buffers": Buffers,
    "noisy_copy": NoisyCopy,
    "auxiliary": AuxiliaryImages,
}


REARRANGED = "attention_first:"
"""Before a model's name: the first block of a vision transformer is stacked as architecture A of the APRIL paper."""


def default_data(model: str) -> str:
    """The embedded data that a model gets when none is named: what it was trained on, or photographs."""
    return "fashion" if model.removeprefix(REARRANGED) in PRETRAINED else "photographs"


@dataclass(frozen=True)
class Case:
    """``attack``, ``defenses`` and ``reveal`` are written as NAME or NAME:option=value,…; ``options`` go to the attack.

    ``first`` is the index of the first private image in the data; the batch is that one and those after it. ``classes``
    (where a library's model can be built for any number) and ``resize`` (images to the model's size) are for loading.
    """

    model: str = "cnn"
    data: str = "fashion"
    mode: Mode = "eval"
    batch_size: int = 1
    local_steps: int = 1
    local_lr: float = 0.01
    attack: str = "inverting_gradients"
    options: Mapping[str, Any] = field(default_factory=dict)
    defenses: tuple[str, ...] = ()
    reveal: tuple[str, ...] = ("size",)
    seed: int = 0
    first: int = 0
    classes: int | None = None
    resize: bool = False
    device: str = "cpu"
    name: str = ""

    def __post_init__(self) -> None:
        sizes = {
            "batch size": self.batch_size,
            "number of local steps": self.local_steps,
            "number of classes": self.classes,
        }
        for what, value in sizes.items():
            if value is not None and value < 1:
                raise BadInput(f"the {what} must be at least 1, got {value}")
        if self.first < 0:
            raise BadInput(f"the index of the first image must be at least 0, got {self.first}")
        if self.seed < 0:
            raise BadInput(f"the seed must be at least 0, got {self.seed}")
        if self.mode not in ("train", "eval"):
            raise BadInput(f"the mode must be 'train' or 'eval', got {self.mode!r}")
        object.__setattr__(self, "name", self.name or self._described())

    def _described(self) -> str:
        parts = [self.model, f"{self.mode} mode", f"batch {self.batch_size}"]
        if self.local_steps > 1:
            parts.append(f"{self.local_steps} local steps")
        return ", ".join([*parts, *self.defenses, self.attack])

    def key(self) -> str:
        """Identifies the case in a run; ``--resume`` skips cases whose key has a record."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    def deed(self) -> str:
        """Identifies what the case does, whatever its name."""
        return replace(self, name="").key()

    def build_attack(self) -> Attack:
        return made_from(self.attack, ATTACKS, kind="attack", extra=self.options)

    def build_defenses(self) -> tuple[Defense, ...]:
        return tuple(made_from(spec, DEFENSES, kind="defense") for spec in self.defenses)

    def build_reveal(self) -> tuple[Reveal | AuxiliaryImages, ...]:
        return tuple(made_from(spec, REVEALS, kind="knowledge to reveal") for spec in self.reveal)

    def build_channel(self) -> Channel:
        return Gradient() if self.local_steps == 1 else FedAvg(steps=self.local_steps, lr=self.local_lr)

    def command(self) -> str:
        """The command line that runs this case alone."""
        words = ["leakgauge", "attack", self.model, "--mode", self.mode, "--batch-size", str(self.batch_size)]
        words += ["--attack", self.attack, "--seed", str(self.seed), "--first", str(self.first)]
        if self.data != default_data(self.model):
            words += ["--data", self.data]
        if (self.local_steps, self.local_lr) != (Case.local_steps, Case.local_lr):
            words += ["--local-steps", str(self.local_steps), "--local-lr", str(self.local_lr)]
        words += [] if self.classes is None else ["--classes", str(self.classes)]
        words += ["--resize"] if self.resize else []
        words += [] if self.device == "cpu" else ["--device", self.device]
        for name, value in self.options.items():
            words += ["--option", f"{name}={value}"]
        for spec in self.defenses:
            words += ["--defense", spec]
        for spec in self.reveal:
            words += [] if spec == "size" else ["--reveal", spec]
        return shlex.join(words)
