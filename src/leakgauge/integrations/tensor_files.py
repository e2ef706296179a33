"""Files of tensors by name, as frameworks of federated learning save them; nothing in them is run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.families.nearest import nearest

INSIDE = ("state_dict", "model_state_dict")
"""Under which names a checkpoint holds the tensors among other things."""
COUNT = "num_batches_tracked"
"""The buffer in which a normalisation layer counts the batches that it saw."""
WRAPPERS = ("module.", "_orig_mod.", "_module.")
"""What DataParallel, torch.compile and Opacus put before every name."""


MOST_FILLED = 1 << 30
"""Bytes that a sparse or expanded tensor may take when it is written out."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name of a ``.safetensors`` file, or of a ``.pt`` / ``.pth`` file read without running any code in it.

    They come dense and in numbers of at least 32 bits, as arithmetic needs them: sparse tensors are filled with zeros,
    quantised ones are made numbers again by the scale that they carry.
    """
    if path.suffix.lower() in (".npz", ".npy"):
        raise BadInput(f"{path} is a NumPy file; save the tensors by name with safetensors or torch.save")
    if not path.is_file():
        raise BadInput(f"there is no file {path}; give a .safetensors or .pt file of tensors by name")
    named = _named(_loaded(path), path)
    for name, value in named.items():
        if value.is_meta:
            raise BadInput(f"{name!r} in {path} is a meta tensor, which has a shape and no values; save the values")
        refuse_unstored(value, f"{name!r} in {path}")
    return {name: plain(value) for name, value in named.items()}


def refuse_unstored(value: Tensor, what: str) -> None:
    """Refuses a small tensor (sparse, or expanded) that would become large when all its entries are written out."""
    stored = value.untyped_storage().nbytes() if value.layout == torch.strided else 0
    if value.numel() * value.element_size() > max(stored, MOST_FILLED):
        raise BadInput(
            f"{what} says shape {tuple(value.shape)}, which takes {value.numel() * value.element_size() / 2**30:.0f} GiB "
            "when it is written out, but far less is stored; make it dense"
        )


def _loaded(path: Path) -> object:
    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's own, on how an old or a harmful file was written
            return torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise BadInput(f"{path} is no safetensors file: {error}") from error
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror or error}); check the file") from error
    except Exception as error:  # torch stumbles over bytes that are no tensors in many ways, IndexError among them
        raise BadInput(
            f"{path} holds more than tensors, or is damaged; save a state dict with torch.save or safetensors"
        ) from error


def _named(found: object, path: Path) -> dict[str, Tensor]:
    """The tensors by name in what a file held, or ``BadInput`` that says what it held instead."""
    if isinstance(found, Mapping):
        found = next((found[key] for key in INSIDE if isinstance(found.get(key), Mapping)), found)
    if not isinstance(found, Mapping):
        raise BadInput(
            f"{path} must hold tensors by name (a state dict), it holds a {type(found).__name__}; "
            "tensors by position have no names to check"
        )
    if not found:
        raise BadInput(f"{path} must hold tensors by name (a state dict), it is empty")
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise BadInput(
                f"{path} must hold tensors by name (a state dict) and nothing else, its {str(name)!r} is a "
                f"{type(value).__name__}; save the state dict alone"
            )
    return {str(name): value for name, value in found.items()}


def plain(value: Tensor) -> Tensor:
    """The tensor detached, dense, not quantised, and in numbers of at least 32 bits where they are floats."""
    value = value.detach()
    value = value.dequantize() if value.is_quantized else value
    value = value if value.layout == torch.strided else value.to_dense()
    return value.float() if value.is_floating_point() and value.element_size() < 4 else value


def unwrapped(given: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the model's own names: without what a wrapper put before all of them, unless the model has it too.

    Any other beginning that all names share (Lightning's ``model.``) goes where the rest is a name of the model's for every one. Names of a
    Hugging Face model, or of an adapter that ``peft`` saved, get the beginning that they have inside our wrapper.
    """
    found = dict(given)
    while found and not any(name in state for name in found):
        prefix = next((p for p in WRAPPERS if all(name.startswith(p) for name in found)), _before_all(found, state))
        if not prefix:
            break
        found = {name.removeprefix(prefix): value for name, value in found.items()}
    if not found or any(name in state for name in found):
        return found
    inner = {f"{INNER}{_of_adapter(name)}": value for name, value in found.items()}
    return inner if all(name in state for name in inner) else found


INNER = "model."
"""What our own wrapper of a Hugging Face model puts before its names."""


def _of_adapter(name: str) -> str:
    """The name of a factor of an adapter inside the model; ``peft`` saves it without the adapter's own name, ``default``."""
    return re.sub(r"\.(lora_[AB])\.weight$", r".\1.default.weight", name)


def _before_all(given: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """The prefix that all given names have before the model's own names, or nothing."""
    first = next(iter(given))
    ends = [at + 1 for at, letter in enumerate(first) if letter == "."]
    fitting = (first[:end] for end in ends if all(n[:end] == first[:end] and n[end:] in state for n in given))
    return next(fitting, "")


def with_weights(model: nn.Module, weights: Mapping[str, Tensor], *, source: str, hint: str = "") -> nn.Module:
    """The model with the given state; names and shapes must all fit. ``hint`` ends the complaint about a name.

    Of the names of one tied weight a file needs one. Counts of batches, which some frameworks leave out, may be missing
    where nothing hangs on them.
    """
    state, own = model.state_dict(), own_names(model)
    weights = unwrapped(weights, state)
    refuse_misfits(weights, state, source=source, hint=hint)
    given = {own.get(name, name) for name in weights}
    missing = [name for name in state if own.get(name, name) not in given and not _spare(model, name)]
    if missing:
        raise BadInput(f"{source} lacks {missing[0]!r} ({len(missing)} of {len(state)} names); is it of another model?")
    model.load_state_dict(dict(weights), strict=False)
    return model


def own_names(model: nn.Module) -> dict[str, str]:
    """The name under which ``named_parameters`` has a parameter, by each name that it has: a tied weight has several."""
    first: dict[Tensor, str] = {}
    return {name: first.setdefault(value, name) for name, value in model.named_parameters(remove_duplicate=False)}


def _spare(model: nn.Module, name: str) -> bool:
    """Whether a name counts the batches of a layer whose running statistics are no plain average of them."""
    layer, _, what = name.rpartition(".")
    return what == COUNT and getattr(model.get_submodule(layer), "momentum", None) is not None


def refuse_misfits(given: Mapping[str, Tensor], state: Mapping[str, Tensor], *, source: str, hint: str = "") -> None:
    """Refuses tensors that the model does not have, or has in another shape or kind; ``hint`` ends the complaint about a name."""
    for name, value in given.items():
        if name not in state:
            complaint = f"{source} names {name!r}, which the model does not have; {nearest(name, list(state))}"
            raise BadInput(f"{complaint}{hint}")
        if value.shape != state[name].shape:
            raise BadInput(
                f"{name} in {source} has shape {tuple(value.shape)}, the model's has {tuple(state[name].shape)}"
            )
        if state[name].is_floating_point() and not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise BadInput(
                f"{name} in {source} holds numbers of type {kind}, the model's are floating point; undo the quantisation first"
            )
        if not bool(value.isfinite().all()):
            raise BadInput(
                f"{name} in {source} holds NaN or Inf; the client's training has diverged or the file is damaged"
            )
