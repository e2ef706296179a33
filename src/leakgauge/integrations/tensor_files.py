"""Files of tensors by name, as frameworks of federated learning save them; nothing in them is run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from leakgauge.errors import BadInput

INSIDE = ("state_dict", "model_state_dict")
"""Under which names a checkpoint holds the tensors among other things."""
WRAPPERS = ("module.", "_orig_mod.", "_module.")
"""What DataParallel, torch.compile and Opacus put before every name."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name of a ``.safetensors`` file, or of a ``.pt`` / ``.pth`` file read without running any code in it.

    They come dense and in numbers of at least 32 bits, as arithmetic needs them: sparse tensors are filled with zeros,
    quantised ones are made numbers again by the scale that they carry.
    """
    if not path.is_file():
        raise BadInput(f"there is no file {path}; give a .safetensors or .pt file of tensors by name")
    return {name: plain(value) for name, value in _named(_loaded(path), path).items()}


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

    Any other beginning that all names share (Lightning's ``model.``) goes where the rest is a name of the model's for every one.
    """
    found = dict(given)
    while found and not any(name in state for name in found):
        prefix = next((p for p in WRAPPERS if all(name.startswith(p) for name in found)), _before_all(found, state))
        if not prefix:
            break
        found = {name.removeprefix(prefix): value for name, value in found.items()}
    return found


def _before_all(given: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """The prefix that all given names have before the model's own names, or nothing."""
    first = next(iter(given))
    ends = [at + 1 for at, letter in enumerate(first) if letter == "."]
    fitting = (first[:end] for end in ends if all(n[:end] == first[:end] and n[end:] in state for n in given))
    return next(fitting, "")
