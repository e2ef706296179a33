"""The samples and targets that a user gives to share: what is wrong with them is told in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.errors import BadInput


def refuse_samples(x: Any, shape: tuple[int, ...]) -> None:
    """Refuses what is no batch of samples of ``shape``."""
    if not isinstance(x, Tensor):
        raise BadInput(f"share needs samples as a tensor of shape (batch, *{shape}), got {type(x).__name__}")
    if x.dim() == 0:
        raise BadInput(f"share needs samples as a tensor of shape (batch, *{shape}), got a single number")
    if len(x) == 0:
        raise BadInput("share needs at least one sample, got an empty batch")
    if tuple(x.shape[1:]) != tuple(shape):
        raise BadInput(f"share needs samples of shape {shape}, got {tuple(x.shape[1:])}")


@contextmanager
def explaining_mistakes(
    outputs: Callable[[], Any], loss: Callable[..., Any], x: Tensor, y: Any, *, dtype: torch.dtype, before: bool
) -> Iterator[None]:
    """Turns what PyTorch says of wrong samples and targets into one sentence.

    ``outputs`` gives what the model, whose numbers are of ``dtype``, makes of ``x``. ``before``: targets are looked at beforehand, as
    a GPU needs it, where a label out of range ends the process's use of the device.
    """
    if before:
        refuse_targets(outputs, loss, x, y)
    try:
        yield
    except (IndexError, RuntimeError, ValueError, AttributeError, AssertionError, TypeError) as error:
        if "type" in str(error) and x.is_floating_point() and x.dtype != dtype:
            raise BadInput(
                f"the model takes numbers of {dtype}, the samples are {x.dtype}; give victim.to_input(x)"
            ) from error
        if (
            "type" in str(error) and "indices" not in str(error) and not x.is_floating_point()
        ):  # ids are looked up as indices
            raise BadInput(
                f"the model takes numbers of {dtype}, the samples are {x.dtype}; for images of bytes give space.encode(images / 255)"
            ) from error
        try:
            refuse_targets(outputs, loss, x, y)
        except BadInput as refusal:
            raise refusal from error
        raise


def refuse_targets(outputs: Callable[[], Any], loss: Callable[..., Any], x: Tensor, y: Any) -> None:
    """Refuses targets that belong to no batch ``x``, and labels that cross entropy cannot take; any other loss knows its own."""
    if isinstance(y, Mapping):
        _refuse_objects(y, len(x))
    elif not isinstance(y, Tensor):
        raise BadInput(f"targets are a tensor of labels or a mapping of tensors, got {type(y).__name__}")
    elif loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss):
        with torch.no_grad():
            scores = outputs()
        if not isinstance(scores, Tensor):
            raise BadInput(_no_scores(scores))
        if scores.dim() >= 2:
            _refuse_labels(y, scores, loss.ignore_index if isinstance(loss, nn.CrossEntropyLoss) else -100)


def _no_scores(given: Any) -> str:
    kind = type(given).__name__
    if isinstance(getattr(given, "logits", None), Tensor):
        return (
            f"cross entropy takes the scores alone, the model gives a {kind} of Hugging Face; wrap the model in Logits, or for "
            "text in TextLogits, both from leakgauge.integrations.huggingface"
        )
    return f"cross entropy takes a tensor of scores, the model gives a {kind}; give Victim a loss that takes it"


def _refuse_objects(y: Mapping[str, Any], samples: int) -> None:
    image = y.get("image")
    if not isinstance(image, Tensor):
        return
    for name, value in y.items():
        if len(value) != len(image):
            raise BadInput(f"the targets name {len(image)} objects in 'image', but there are {len(value)} {name!r}")
    if len(image) and not 0 <= int(image.min()) <= int(image.max()) < samples:
        raise BadInput(
            f"the 'image' of an object must lie in 0..{samples - 1} for a batch of {samples}, "
            f"the targets have {int(image.min())}..{int(image.max())}"
        )


def _refuse_labels(y: Tensor, scores: Tensor, ignored: int) -> None:
    """``scores`` (B, classes, ...) and labels (B, ...), or class probabilities of the scores' shape."""
    classes, wanted = scores.shape[1], (scores.shape[0], *scores.shape[2:])
    if tuple(y.shape) == tuple(scores.shape) and y.is_floating_point():
        return
    if tuple(y.shape) != wanted:
        raise BadInput(
            f"labels must have shape {wanted}, or {tuple(scores.shape)} for class probabilities, got {tuple(y.shape)}"
        )
    if y.dtype not in (torch.long, torch.uint8):
        raise BadInput(f"labels must be whole numbers of torch.int64, got {y.dtype}; give y.long()")
    told = y[y != ignored]
    if len(told) and not 0 <= int(told.min()) <= int(told.max()) < classes:
        raise BadInput(
            f"labels must lie in 0..{classes - 1} for a model of {classes} classes, "
            f"the batch has {int(told.min())}..{int(told.max())}"
        )
