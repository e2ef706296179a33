"""From what a user writes to a model: ``file.py:factory``, ``package.module:factory``, ``timm:NAME`` or ``hf:NAME``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from leakgauge.audit.case import REARRANGED
from leakgauge.core import Pixels, private_randomness
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.families import attention_first, find_roles
from leakgauge.families.nearest import nearest
from leakgauge.integrations import huggingface, timm
from leakgauge.integrations.user_code import import_file, import_package, one_line

FORMS = "file.py:factory, package.module:factory, timm:NAME, timm32:NAME (adapted to 32×32 images) or hf:NAME"


def load_model(spec: str, *, seed: int = 0, classes: int | None = None) -> tuple[nn.Module, Pixels | None]:
    """The model that ``spec`` names, and the images it takes where the source says so.

    A factory is called without arguments and returns a module, or a module and its ``Pixels``; a module standing in
    the file under that name serves as well. Weights that are drawn at random are drawn from ``seed``. A folder with
    safetensors given as ``hf:FOLDER`` is loaded with its weights. ``classes`` is for timm and Hugging Face, whose
    models come with a number of classes of their own; a factory decides for itself. ``attention_first:`` before any of
    these rearranges a transformer as architecture A of the APRIL paper.
    """
    if spec.startswith(REARRANGED):
        model, space = load_model(spec.removeprefix(REARRANGED), seed=seed, classes=classes)
        return rearranged(model), space
    source, _, name = spec.rpartition(":")
    if spec.startswith("timm:") and name:
        return timm.load(spec.removeprefix("timm:"), classes=classes, seed=seed)
    if spec.startswith("timm32:") and name:
        adapted = timm.stem_adapted(name, classes=classes or 10, seed=seed)
        return adapted.model, adapted.space
    if spec.startswith("hf:") and name:
        name = spec.removeprefix("hf:")
        return huggingface.load(name, classes=classes, seed=seed, pretrained=huggingface.has_weights(name))
    if not source or not name:
        raise BadInput(f"cannot read {spec!r} as a model; write {FORMS}")
    importing = import_file if source.endswith(".py") else import_package
    with private_randomness(seed, torch.device("cpu")), importing(source) as module:
        return _checked(_make(vars(module), name, source), spec)


def rearranged(model: nn.Module) -> nn.Module:
    """The model as architecture A, or ``BadInput`` if it is no transformer of a known layout."""
    try:
        return attention_first(model, find_roles(model))
    except Inapplicable as refusal:
        raise BadInput(f"{REARRANGED} needs a vision transformer: {refusal}") from refusal


def _make(names: dict[str, Any], name: str, source: str) -> object:
    if name not in names:
        own = [n for n, value in names.items() if callable(value) and not n.startswith("_")]
        raise BadInput(f"{source} has no {name!r}; {nearest(name, own)}")
    factory = names[name]
    if isinstance(factory, nn.Module):
        return factory
    if not callable(factory):
        raise BadInput(f"{name!r} in {source} is a {type(factory).__name__}; a function that returns a model is needed")
    try:
        return factory()
    except Exception as error:  # the user's own code may raise anything; it is told, with its cause
        raise BadInput(f"{name}() in {source} raised {one_line(error)}") from error


def _checked(made: object, spec: str) -> tuple[nn.Module, Pixels | None]:
    match made:
        case nn.Module():
            return made, None
        case (nn.Module() as model, Pixels() as space):
            return model, space
        case tuple():
            got = f"({', '.join(type(part).__name__ for part in made)})"
        case _:
            got = type(made).__name__
    raise BadInput(f"{spec} must return a torch.nn.Module, or a module and its Pixels; got {got}")
