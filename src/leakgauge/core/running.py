"""Run the user's model safely: refuse what cannot work, leave everything else as it was.

A module that cannot run on given weights is refused, with what to pass instead; any other is copied. A model runs on given weights
with activation checkpoints off and is left unchanged. Samples and targets that do not fit are refused in one sentence.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.core.defaults import users_defaults
from leakgauge.errors import BadInput, one_line

NO_GRADIENT = (
    "the loss does not depend on the model's weights, so there is no gradient to share; return the scores as they are computed, "
    "without detach(), no_grad() or a way through NumPy"
)


def deep_copy(model: nn.Module) -> nn.Module:
    """A copy that shares no tensor with ``model``."""
    try:
        return copy.deepcopy(model)
    except Exception as refusal:  # the user's own __deepcopy__ and __reduce__ may raise anything
        if "graph leaves" in str(refusal):
            raise BadInput(
                "the victim's model cannot be copied because it keeps a tensor of its last forward pass, as nn.utils.weight_norm "
                "and spectral_norm do; run it once inside torch.no_grad() first"
            ) from refusal
        raise BadInput(
            f"the victim's model cannot be copied ({one_line(refusal)}); give one that copy.deepcopy can copy"
        ) from refusal


def switched(model: nn.Module, mode: str) -> nn.Module:
    """``model`` in train or eval mode."""
    try:
        return model.train(mode == "train")
    except Exception as refusal:  # the user's own train() may raise anything
        raise BadInput(
            f"the victim's model cannot be put into {mode} mode: train() raised {one_line(refusal)}"
        ) from refusal


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a module that cannot run on given weights, and say what to pass instead."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise BadInput(f"the victim's model is wrapped in {type(model).__name__}; pass the module inside, model.module")
    if isinstance(model, torch.jit.ScriptModule):
        raise BadInput(
            "the victim's model is TorchScript, which fixes its weights; pass the nn.Module it was made from"
        )
    if any(hasattr(m, "_orig_mod") for m in model.modules()):
        raise BadInput(
            "the victim's model is compiled and cannot be differentiated twice; pass the module inside, model._orig_mod"
        )
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise BadInput("the victim's model has lazy layers without weights; run one batch through it first")
    needed = _required_inputs(model)
    if len(needed) > 1:
        raise BadInput(
            f"the victim's model needs {len(needed)} inputs ({', '.join(needed)}), but one is private and given here; wrap it in a "
            "module that takes that one and fills in the others"
        )
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        if value.layout is not torch.strided:
            raise BadInput(f"{name} of the victim's model is sparse; convert it with to_dense() first")
        if isinstance(value, nn.Parameter) and value.numel() == 0:
            raise BadInput(
                f"{name} of the victim's model has no entries: its shape is {tuple(value.shape)}; remove that layer"
            )
        if value.is_complex():
            raise BadInput(f"{name} of the victim's model holds complex numbers; only real weights can be audited")


def _required_inputs(model: nn.Module) -> list[str]:
    """Names of the inputs without which the model's forward does not run."""
    given = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    parameters = inspect.signature(model.forward).parameters.values()
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in given]


def refuse_without_values(model: nn.Module) -> None:
    """Refuse a model on the meta device, which has shapes and no values."""
    for name, value in chain(model.named_parameters(), model.named_buffers()):
        if value.is_meta:
            raise BadInput(
                f"{name} of the victim's model is on the meta device and has no values; load its weights first"
            )


def drop_rate(module: nn.Module) -> float:
    """The rate at which a layer drops in train mode: dropout, attention dropout, stochastic depth of timm and torchvision."""
    rate = getattr(module, drop_attribute(module), 0.0)
    return float(rate) if isinstance(rate, int | float) else 0.0


def drop_attribute(module: nn.Module) -> str:
    """The attribute in which a layer keeps its :func:`drop_rate`."""
    if isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__ == "StochasticDepth":  # torchvision's
        return "p"
    return "dropout" if isinstance(module, nn.MultiheadAttention) else "drop_prob"  # as timm and transformers write it


def keeps_statistics(module: nn.Module) -> bool:
    """Whether a single image changes running statistics of the layer."""
    return isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.running_mean is not None


def output_at(model: nn.Module, state: Mapping[str, Tensor], *args: Any) -> Any:
    """``model(*args)`` with the tensors of ``state`` in place of the parameters and buffers of the same names.

    The model gets copies of ``args``: it may change its input in place. A tied tensor is replaced everywhere, once per
    place. ``functional_call`` alone replaces a layer registered under two names twice; afterwards it restores the tensor that
    it had put in the first time, not the model's own.
    """
    own = tuple(a.clone() if isinstance(a, Tensor) else a for a in args)
    with without_checkpoints(), users_defaults():
        return functional_call(model, _at_every_place(model, state), own, tie_weights=False)


def _at_every_place(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    own_names = {name: id(own) for name, own in named}
    given = {own_names[name]: value for name, value in state.items() if name in own_names}
    placed = {
        f"{path}.{name}" if path else name: given[id(own)]
        for path, module in model.named_modules()  # a module that has two names comes once
        for name, own in (*module._parameters.items(), *module._buffers.items())
        if id(own) in given
    }
    unknown = {name: value for name, value in state.items() if name not in own_names}
    return {**placed, **unknown}  # which functional_call refuses


class _Direct:
    """Replaces ``CheckpointFunction``: runs the function and keeps what the backward pass needs."""

    @staticmethod
    def apply(function: Any, preserve_rng_state: bool, *inputs: Any) -> Any:
        return function(*inputs)


def _nothing_around(*_: Any, **__: Any) -> Iterator[None]:
    """Replaces the generator that a non-reentrant ``checkpoint`` runs around the function."""
    yield


_INSTEAD = {"CheckpointFunction": _Direct, "_checkpoint_without_reentrant_generator": _nothing_around}
_USUAL = {name: vars(torch.utils.checkpoint)[name] for name in _INSTEAD}
_lock, _inside = Lock(), 0


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Inside, ``torch.utils.checkpoint`` just calls the function, under whatever name a library imported it.

    A checkpoint runs part of the model again during the backward pass. By then a model that ran on given weights has its
    own weights back, so every local step but the first would silently use the wrong weights. Kernels chosen around the
    forward pass are no longer selected either. The memory that checkpoints save is not worth that here.
    """
    global _inside
    with _lock:
        _inside += 1
        _put(_INSTEAD)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:  # another thread may still be inside
                _put(_USUAL)


def _put(functions: dict[str, Any]) -> None:
    for name, function in functions.items():
        setattr(torch.utils.checkpoint, name, function)


def refuse_samples(x: Any, shape: tuple[int, ...], *, who: str = "share") -> None:
    """Refuse ``x`` unless it is a batch of samples of ``shape``; ``who`` needs it."""
    if not isinstance(x, Tensor):
        raise BadInput(f"{who} needs samples as a tensor of shape (batch, *{shape}), got {type(x).__name__}")
    if x.dim() == 0:
        raise BadInput(f"{who} needs samples as a tensor of shape (batch, *{shape}), got a single number")
    if len(x) == 0:
        raise BadInput(f"{who} needs at least one sample, got an empty batch")
    if tuple(x.shape[1:]) != tuple(shape):
        raise BadInput(f"{who} needs samples of shape {shape}, got {tuple(x.shape[1:])}")
    if x.is_complex():
        raise BadInput(f"{who} needs samples of real numbers, got {x.dtype}")


@contextmanager
def explaining_mistakes(
    outputs: Callable[[], Any], loss: Callable[..., Any], x: Tensor, y: Any, *, dtype: torch.dtype, before: bool
) -> Iterator[None]:
    """Turns PyTorch's errors about wrong samples and targets into one sentence.

    ``outputs`` computes the model's output for ``x``; ``dtype`` is the model's type. ``before`` checks the targets first: on a
    GPU a label out of range makes the device unusable for the rest of the process.
    """
    if before:
        refuse_targets(outputs, loss, x, y)
    try:
        yield
    except (IndexError, RuntimeError, ValueError, AttributeError, AssertionError, TypeError) as error:
        if "type" in str(error) and x.is_floating_point() and x.dtype != dtype:
            raise BadInput(
                f"the model takes {dtype}, but the samples are {x.dtype}; pass victim.to_input(x)"
            ) from error
        if (
            "type" in str(error) and "indices" not in str(error) and not x.is_floating_point()
        ):  # ids are looked up as indices
            raise BadInput(
                f"the model takes {dtype}, but the samples are {x.dtype}; for images of bytes pass space.encode(images / 255)"
            ) from error
        if "does not require grad" in str(error):
            raise BadInput(NO_GRADIENT) from error
        try:
            refuse_targets(outputs, loss, x, y)
        except BadInput as refusal:
            raise refusal from error
        raise


def refuse_targets(outputs: Callable[[], Any], loss: Callable[..., Any], x: Tensor, y: Any) -> None:
    """Refuse targets that do not belong to the batch ``x``, and labels that cross entropy cannot take. Other losses check their own."""
    classifies = loss is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    if isinstance(y, Mapping) and not classifies:
        _refuse_objects(y, len(x))
    elif not isinstance(y, Tensor):
        wanted = "a tensor of labels" if classifies else "a tensor of labels or a mapping of tensors"
        raise BadInput(f"targets must be {wanted}, got {type(y).__name__}")
    elif classifies:
        with torch.no_grad():
            scores = outputs()
        if not isinstance(scores, Tensor):
            raise BadInput(_no_scores(scores))
        if not scores.is_floating_point():
            raise BadInput(f"cross entropy needs scores of a floating-point type, but the model returns {scores.dtype}")
        if scores.dim() >= 2:
            _refuse_labels(y, scores, loss.ignore_index if isinstance(loss, nn.CrossEntropyLoss) else -100)


def _no_scores(given: Any) -> str:
    kind = type(given).__name__
    if isinstance(getattr(given, "logits", None), Tensor):
        return (
            f"cross entropy needs the logits, but the model returns Hugging Face's {kind}; wrap the model in Logits, or for "
            "text in TextLogits, both from leakgauge.integrations.huggingface"
        )
    return f"cross entropy needs a tensor of logits, but the model returns a {kind}; give Victim a loss that takes it"


def _refuse_objects(y: Mapping[str, Any], samples: int) -> None:
    image = y.get("image")
    if not isinstance(image, Tensor):
        return
    for name, value in y.items():
        if len(value) != len(image):
            raise BadInput(
                f"the targets list {len(image)} objects in 'image' but {len(value)} in {name!r}; give one of each per object"
            )
    if len(image) and not 0 <= int(image.min()) <= int(image.max()) < samples:
        raise BadInput(
            f"the 'image' of an object must be in 0..{samples - 1} for a batch of {samples}, "
            f"the targets have {int(image.min())}..{int(image.max())}"
        )


def _refuse_labels(y: Tensor, scores: Tensor, ignored: int) -> None:
    """``scores`` are (B, classes, ...); ``y`` are labels (B, ...) or class probabilities of the scores' shape."""
    classes, wanted = scores.shape[1], (scores.shape[0], *scores.shape[2:])
    if tuple(y.shape) == tuple(scores.shape) and y.is_floating_point():
        return
    if tuple(y.shape) != wanted:
        raise BadInput(
            f"labels must have shape {wanted}, or {tuple(scores.shape)} for class probabilities, got {tuple(y.shape)}"
        )
    if y.dtype not in (torch.long, torch.uint8):
        raise BadInput(f"labels must be torch.int64, got {y.dtype}; pass y.long()")
    counted = y[y != ignored]
    if len(counted) and not 0 <= int(counted.min()) <= int(counted.max()) < classes:
        raise BadInput(
            f"labels must be in 0..{classes - 1} for a model with {classes} classes, "
            f"the batch has {int(counted.min())}..{int(counted.max())}"
        )
