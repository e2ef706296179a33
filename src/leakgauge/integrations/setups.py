"""Finds what a case names: embedded models, files, packages, timm and Hugging Face, with the user's data or ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.audit.case import REARRANGED, Case
from leakgauge.audit.session import Setup, check_fits, embedded, one_of_each_class
from leakgauge.core import Loss, Pixels, Series, Table, Tokens, Victim
from leakgauge.data.arrays import TargetKind, from_arrays, load_npz, read_series, read_targets
from leakgauge.data.embedded import fashion, photographs
from leakgauge.data.facts import DataFacts
from leakgauge.data.fit import Shape, fit
from leakgauge.data.levels import Given, levels_of
from leakgauge.data.reader import is_image_folder, read_given
from leakgauge.data.sentences import Sentences, is_text_file, read_sentences
from leakgauge.data.tables import TableData, read_table
from leakgauge.errors import BadInput, one_line
from leakgauge.integrations.language import read_ids
from leakgauge.integrations.plan_file import EMBEDDED, is_function, returned_data
from leakgauge.integrations.resolve import Loaded, filled, load_model, rearranged
from leakgauge.integrations.timm import adaptable
from leakgauge.models.pretrained import PRETRAINED


def find(case: Case) -> Setup:
    """The set-up of any case. Without data of its own a model gets embedded photographs, resized to what it takes."""
    if case.in_memory:
        raise BadInput(
            f"the model {case.model} was in memory, and no file says how to make it; run the audit again in Python, into a new folder"
        )
    _check_device(case.device)
    inner = case.model.removeprefix(REARRANGED)
    if inner != case.model and inner in PRETRAINED:
        plain = find(replace(case, model=inner))
        victim = Victim(rearranged(plain.victim.model), plain.victim.space, mode=case.mode, name=case.model)
        return replace(plain, victim=victim)
    if case.model in PRETRAINED:
        if case.size is not None:
            raise BadInput(f"the embedded {case.model} takes images of 28×28; --size is for models of timm")
        small = embedded(case)
        victim = small.victim
        if case.weights:
            victim = replace(victim, model=filled(victim.model, case.weights))
        if case.data == "fashion":
            return replace(small, victim=victim)
        return set_up_given(victim, data_of(case, victim.space.shape))
    loaded = load_model(case.model, seed=case.seed, classes=case.classes, weights=case.weights, size=case.size)
    data = _data(case)
    if loaded.language is not None or isinstance(loaded.space, Tokens):
        return _text(case, loaded, data)
    if isinstance(loaded.space, Table) or isinstance(data, TableData) or _is_csv(data):
        return _table(case, loaded, data)
    if is_text_file(case.data):
        raise BadInput(f"{case.data} holds sentences, but {case.model} is no text model that comes with a tokenizer")
    if isinstance(loaded.space, Series):
        return _series(case, loaded, loaded.space, data)
    given = data_of(
        case,
        loaded.space.shape if loaded.space is not None else None,
        targets=targets_of(loaded.loss),
        data=data,
    )
    space = loaded.space or Pixels(tuple(given.images.shape[1:]))
    return set_up_given(loaded.victim(case, space), given)


Data = str | Sentences | TableData | tuple[np.ndarray, np.ndarray, str]
"""The name or path of data, or what a function of a plan file returned."""


def targets_of(loss: Loss) -> TargetKind:
    """What a model's targets may be, by its loss."""
    return "cross_entropy" if loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss) else "own"


def _data(case: Case) -> Data:
    return case.data if not is_function(case.data) else returned_data(case.data, seed=case.seed)


def _is_csv(data: Data) -> bool:
    return isinstance(data, str) and Path(data).suffix.lower() == ".csv"


def _text(case: Case, loaded: Loaded, data: Data) -> Setup:
    """A text model with sentences, or with ids as tensors where it has no tokenizer."""
    language = loaded.language
    if isinstance(data, Sentences) or (isinstance(data, str) and is_text_file(data)):
        given = read_sentences(data) if isinstance(data, str) else data
        if language is None:
            raise BadInput(f"{case.model} has no tokenizer, so its data must be token ids; return them from data()")
        ids, labels = read_ids(language, given)
        x, y = language.private(ids, labels, seed=case.seed)
        victim = replace(language.victim(ids.shape[1]), mode=case.mode, name=case.model)
        return Setup(replace(victim, model=victim.model.to(case.device)), x, y, tokens=language.tokens)
    if isinstance(data, str | TableData) or language is not None:
        raise BadInput(
            f"{case.model} reads text; give sentences, one a line, as --data FILE.txt, or let data() of a plan file return them"
        )
    x, y, where = data
    ids, labels = torch.as_tensor(x), torch.as_tensor(y)
    space = loaded.space
    assert isinstance(space, Tokens)
    if ids.is_floating_point() or ids.dim() != 2 or ids.shape[1] != space.length:
        raise BadInput(
            f"{where} must return token ids of shape (N, {space.length}), got {tuple(ids.shape)} {ids.dtype}"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= space.vocab:
        raise BadInput(
            f"{where} returns ids from {int(ids.min())} to {int(ids.max())}; the model has {space.vocab} tokens"
        )
    return Setup(loaded.victim(case, space), ids.long(), labels.long())


def _table(case: Case, loaded: Loaded, data: Data) -> Setup:
    """A model that reads rows, with a CSV file and the column that it predicts, or what ``read_table`` made of one in a plan file."""
    if isinstance(data, str):
        if not _is_csv(data):
            raise BadInput(
                f"{case.model} reads rows of a table; give --data FILE.csv with --target COLUMN, or let data() of a plan file return what "
                "read_table makes of one"
            )
        if not case.target:
            raise BadInput(f"{data} is a table; say which column the model predicts with --target COLUMN")
        data = read_table(data, label=case.target)
    if not isinstance(data, TableData):
        raise BadInput(
            f"{case.model} reads rows of a table; data() of a plan file must return what read_table makes of one, or the path of a CSV file"
        )
    space = loaded.space or data.space
    if not isinstance(space, Table):
        raise BadInput(f"{case.data} is a table, but {case.model} takes {space!r}")
    own, given = ([column.name for column in one.columns] for one in (space, data.space))
    if own != given:
        raise BadInput(f"the columns of the table are {', '.join(given)}, but {case.model} takes {', '.join(own)}")
    setup = Setup(loaded.victim(case, space), data.rows, data.labels)
    _check_rows(setup, data)
    return setup


def _check_rows(setup: Setup, data: TableData) -> None:
    """Refuses a model that does not take the rows, or has another number of classes."""
    victim = setup.victim
    entries = victim.space.shape[0]
    try:
        with torch.no_grad():
            scores = victim(victim.to_input(victim.space.encode(data.rows[:2])))
    except Exception as error:
        raise BadInput(
            f"the model {victim.name} does not take rows of {entries} entries ({len(data.space.columns)} columns, one entry per number and "
            f"per value of a category): {one_line(error)}"
        ) from error
    if victim.loss is F.cross_entropy and (
        not isinstance(scores, Tensor) or scores.dim() != 2 or scores.shape[1] < len(data.classes)
    ):
        raise BadInput(f"the model {victim.name} must return scores for the {len(data.classes)} classes of the target")


def _series(case: Case, loaded: Loaded, space: Series, data: Data) -> Setup:
    """A model that takes series, with arrays of a plan file or of a .npz file."""
    if isinstance(data, str) and Path(data).suffix.lower() == ".npz":
        data = (*load_npz(Path(data)), data)
    if isinstance(data, str | Sentences | TableData):
        raise BadInput(
            f"{case.model} takes series; give --data FILE.npz with arrays x (count, {space.channels}, {space.length}) and y, or let data() "
            "of a plan file return them"
        )
    return set_up_series(loaded.victim(case, space), *data)


def set_up_series(victim: Victim, x: np.ndarray, y: np.ndarray, source: str) -> Setup:
    """A victim that takes series, with an array of them and their targets."""
    space = victim.space
    assert isinstance(space, Series)
    values = read_series(x, source, channels=space.channels, length=space.length)
    space.refuse_outside(space.encode(values))
    return Setup(victim, values, read_targets(y, len(values), source, targets=targets_of(victim.loss)))


def smaller(case: Case) -> dict[str, str]:
    """Relaxations of the network itself, by name: timm's models with a stem for 32×32 images where one is known.

    Not for weights from a file: those of the other stem would be random, and two things would change at once.
    """
    name = case.model.removeprefix("timm:")
    if name == case.model or case.weights or case.size is not None or not adaptable(name):
        return {}
    return {"stem and resolution of 32×32": f"timm32:{name}"}


def data_of(case: Case, shape: Shape | None, *, targets: TargetKind = "classes", data: Data | None = None) -> Given:
    """The case's data. Photographs have no labels, because none of the model's classes is theirs.

    A folder has no order but that of its names, in which a batch would hold one class and the auxiliary images another; so one
    image of each class comes first, then the next ones, as in the embedded data.
    """
    data = _data(case) if data is None else data
    if isinstance(data, Sentences | TableData):
        what = "sentences" if isinstance(data, Sentences) else "a table"
        raise BadInput(f"{case.data} returns {what}, but {case.model} takes images")
    if isinstance(data, tuple):
        x, y, source = data
        images, labels = from_arrays(
            x, y, source=source, shape=shape, resize=case.resize, window=case.window, targets=targets
        )
        return Given(images, labels, levels_of(case.window))
    if data in EMBEDDED and case.window:
        raise BadInput(f"the embedded {data} need no window; leave it out")
    if data == "fashion":
        images, labels = fashion("test")
        return Given(fit(images, shape=shape, resize=case.resize, source="the embedded Fashion-MNIST"), labels)
    if data == "photographs":
        if shape is None:
            raise BadInput(
                "the model does not say which images it takes; return (model, Pixels(shape)) from the factory or give --data"
            )
        return Given(
            fit(photographs(max(shape[1:])), shape=shape, resize=True, source="the embedded photographs"), None
        )
    given = read_given(data, shape=shape, resize=case.resize, window=case.window, targets=targets)
    if given.labels is None or not is_image_folder(data):
        return given
    order = one_of_each_class(given.labels)
    return replace(given, images=given.images[order], labels=given.labels[order])


def set_up_given(victim: Victim, given: Given) -> Setup:
    """The victim with its data. Images without labels get 0, 1, 2, …, as far as the model has classes: a gradient needs some."""
    images, labels = given.images, given.labels
    if labels is not None:
        return Setup(victim, images, labels, DataFacts(levels=given.levels))
    numbers = torch.arange(len(images))
    classes = check_fits(Setup(victim, images, torch.zeros_like(numbers)))
    return Setup(victim, images, numbers % classes, DataFacts(labelled=False, levels=given.levels))


def _check_device(device: str) -> None:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise BadInput("no CUDA device is available here; leave --device at cpu")
    if device != "cpu" and not device.startswith("cuda"):
        raise BadInput(f"the device must be cpu or cuda, got {device!r}")
