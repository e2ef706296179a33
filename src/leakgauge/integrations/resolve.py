"""From what a user writes to a model: ``file.py:factory``, ``package.module:factory``, ``timm:NAME`` or ``hf:NAME``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.audit.case import REARRANGED, Case
from leakgauge.core import Loss, Pixels, Series, Space, Table, Tokens, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.core.running import refuse_without_values, refuse_wrapped
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.families import attention_first, find_roles
from leakgauge.families.nearest import nearest
from leakgauge.integrations import huggingface, timm
from leakgauge.integrations.language import LanguageModel, is_text, load_language
from leakgauge.integrations.tensor_files import read_tensors, with_weights
from leakgauge.integrations.user_code import called, function, import_file, import_package, place
from leakgauge.models.pretrained import PRETRAINED

FORMS = "file.py:factory, package.module:factory, timm:NAME, timm32:NAME (adapted to 32×32 images) or hf:NAME"


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model, what it takes where its source says so, and its loss where that is not cross entropy.

    ``language`` is set for a text model that comes with a tokenizer.
    """

    model: nn.Module
    space: Pixels | Series | Table | Tokens | None = None
    loss: Loss = F.cross_entropy
    language: LanguageModel | None = None

    def __post_init__(self) -> None:
        refuse_wrapped(self.model)
        refuse_without_values(self.model)  # before it is moved to a device

    def victim(self, case: Case, space: Space) -> Victim:
        """The model as the case runs it, on what it takes."""
        return Victim(self.model.to(case.device), space, loss=self.loss, mode=case.mode, name=case.model)


def load_model(
    spec: str, *, seed: int = 0, classes: int | None = None, weights: str = "", size: int | None = None
) -> Loaded:
    """The model that ``spec`` names, with the tensors of the file ``weights`` if one is given.

    A factory is called without arguments and returns a module, a module and its ``Pixels``, ``Series``, ``Table`` or ``Tokens``, a
    ``LanguageModel``, or a ``Victim`` (whose mode does not count: the case decides on it); a module in the file under that name
    serves as well. Weights that are drawn at random are drawn from ``seed``. A folder with safetensors given as ``hf:FOLDER`` is
    loaded with its weights. ``classes`` is for timm and Hugging Face, whose models come with a number of classes of their own, ``size``
    (of the images) for timm; a factory decides for itself. ``attention_first:`` before any of these rearranges a transformer as
    architecture A of the APRIL paper.
    """
    if spec.startswith(REARRANGED):
        plain = load_model(spec.removeprefix(REARRANGED), seed=seed, classes=classes, weights=weights, size=size)
        return replace(plain, model=rearranged(plain.model))
    made = _made(spec, seed=seed, classes=classes, size=size)
    return replace(made, model=filled(made.model, weights)) if weights else made


def filled(model: nn.Module, weights: str) -> nn.Module:
    """The model with the tensors of a file."""
    return with_weights(model, read_tensors(Path(weights)), source=weights)


def _made(spec: str, *, seed: int, classes: int | None, size: int | None) -> Loaded:
    source, _, name = spec.rpartition(":")
    if spec.startswith("timm:") and name:
        return Loaded(*timm.load(spec.removeprefix("timm:"), classes=classes, size=size, seed=seed))
    if size is not None:
        raise BadInput(
            f"--size is for models of timm (timm:NAME), and {spec} is none; let it say which Pixels it takes"
        )
    if spec.startswith("timm32:") and name:
        adapted = timm.stem_adapted(name, classes=classes or 10, seed=seed)
        return Loaded(adapted.model, adapted.space)
    if spec.startswith("hf:") and name:
        name = spec.removeprefix("hf:")
        if is_text(name):
            return _of_language(load_language(name, classes=classes, seed=seed))
        return Loaded(*huggingface.load(name, classes=classes, seed=seed, pretrained=huggingface.has_weights(name)))
    if not source or not name:
        close = nearest(spec, PRETRAINED)
        meant = f"{close} " if close.startswith("did you mean") else ""
        raise BadInput(f"cannot read {spec!r} as a model; {meant}write {', '.join(PRETRAINED)} (embedded), {FORMS}")
    importing = import_file if source.endswith(".py") else import_package
    with private_randomness(seed, torch.device("cpu")), importing(source) as module:
        found = vars(module).get(name)
        if isinstance(found, nn.Module):
            return Loaded(found)
        factory = function(vars(module), name, source, returns="a model")
        return _checked(called(factory, name, source), place(factory, name, source))


def is_code(spec: str) -> bool:
    """Whether loading the model runs a Python file or package of the user's.

    >>> is_code("cnn"), is_code("timm:resnet18"), is_code("attention_first:model.py:make")
    (False, False, True)
    """
    spec = spec.removeprefix(REARRANGED)
    return spec not in PRETRAINED and not spec.startswith(("timm:", "timm32:", "hf:"))


def rearranged(model: nn.Module) -> nn.Module:
    """The model as architecture A, or ``BadInput`` if it is no transformer of a known layout."""
    try:
        return attention_first(model, find_roles(model))
    except Inapplicable as refusal:
        raise BadInput(f"{REARRANGED} needs a vision transformer: {refusal}") from refusal


def _of_language(found: LanguageModel) -> Loaded:
    return Loaded(found.model, None, found.loss, found)


def _checked(made: object, where: str) -> Loaded:
    match made:
        case LanguageModel():
            return _of_language(made)
        case nn.Module():
            return Loaded(made)
        case (nn.Module() as model, (Pixels() | Series() | Table() | Tokens()) as space):
            return Loaded(model, space)
        case Victim(space=(Pixels() | Series() | Table() | Tokens()) as space):
            return Loaded(made.model, space, made.loss)
        case Victim():
            got = f"a Victim of {type(made.space).__name__}"
        case tuple():
            got = f"({', '.join(type(part).__name__ for part in made)})"
        case _:
            got = type(made).__name__
    raise BadInput(
        f"{where} must return a torch.nn.Module, a module and its Pixels (or Series, Table, Tokens), a Victim or a LanguageModel; got {got}"
    )
