"""Every point where a model can be cut between edge and cloud, with what would be sent and what the edge would compute."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from leakgauge.core import Pixels, Space, Victim
from leakgauge.core.randomness import draw_indices
from leakgauge.errors import BadInput
from leakgauge.graphs import EdgeCost, Point, TensorSpec, example_of, find_point, trace_of

BYTES = {"fp32": 4, "fp16": 2, "int8": 1}
"""Bytes of one number."""

JPEG_QUALITY = 90


@dataclass(frozen=True)
class Sizes:
    """Bytes of one sample without any model: raw, one byte per value, and as JPEG (mean; None without images)."""

    raw_image: int
    jpeg: float | None


@dataclass(frozen=True)
class Cut:
    """One possible cut. ``tensors`` are sent; with more than one it is a multi-tensor cut.

    ``edge_share`` is the share of the model's parameters on the edge, ``edge_flops`` the edge's work for one sample. ``depth`` is the
    cut's position among the single-tensor cuts, in (0, 1]; 1 is the model's output.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    operation: str
    aliases: tuple[str, ...]
    edge_parameters: int
    edge_share: float
    edge_flops: int
    depth: float
    image: Sizes

    @property
    def single(self) -> bool:
        """Whether exactly one tensor crosses."""
        return len(self.tensors) == 1

    @property
    def elements(self) -> int:
        """Numbers sent per sample."""
        return sum(tensor.elements for tensor in self.tensors)

    def bytes(self, numbers: str = "fp32") -> int:
        """Bytes sent per sample when a number is sent as ``fp32``, ``fp16`` or ``int8``."""
        if numbers not in BYTES:
            raise BadInput(f"numbers must be sent as one of {', '.join(BYTES)}, got {numbers!r}")
        return BYTES[numbers] * self.elements


def cuts(
    model: Victim | nn.Module,
    space: Space | tuple[int, int, int] | None = None,
    *,
    multi_tensor: bool = False,
    images: Tensor | None = None,
) -> tuple[Cut, ...]:
    """All cuts of a model, from the input to the output.

    A bare module needs its input ``space``, or the shape of an image. Cuts where several tensors cross (for example inside a
    residual block) are listed with ``multi_tensor=True``. ``images`` (N, C, H, W) in [0, 1] give the JPEG size to compare with.
    """
    victim = as_victim(model, space)
    traced = trace_of(victim)
    costs = traced.costs(example_of(victim, 1 if not traced.any_batch else 2))
    total = sum(parameter.numel() for parameter in victim.model.parameters())
    sizes = Sizes(torch.Size(victim.space.shape).numel(), None if images is None else jpeg_bytes(images))
    singles = [name for name, point in traced.points.items() if len(point.tensors) == 1]
    shown = [point for point in traced.points.values() if multi_tensor or len(point.tensors) == 1]
    passed, found = 0, []
    for point in shown:
        passed += point.name in singles[passed : passed + 1]
        found.append(_cut(point, costs[point.name], total, passed / max(1, len(singles)), sizes))
    return tuple(found)


def _cut(point: Point, cost: EdgeCost, parameters: int, depth: float, sizes: Sizes) -> Cut:
    return Cut(
        name=point.name,
        tensors=point.tensors,
        operation=point.operation,
        aliases=point.aliases,
        edge_parameters=cost.parameters,
        edge_share=cost.parameters / parameters,
        edge_flops=cost.flops,
        depth=depth,
        image=sizes,
    )


def find_cut(found: tuple[Cut, ...], name: str, victim: Victim) -> Cut:
    """The cut of that name, or the cut where the module of that name ends; suggests the nearest names if there is none."""
    point = find_point(trace_of(victim), name)
    for cut in found:
        if cut.name == point.name:
            return cut
    raise BadInput(f"the cut {name!r} sends {len(point.tensors)} tensors; list cuts with multi_tensor=True to see it")


RESHAPES = {
    "dropout",
    "identity",
    "flatten",
    "view",
    "reshape",
    "permute",
    "transpose",
    "contiguous",
    "squeeze",
    "unsqueeze",
    "clone",
    "alias",
}
"""Operations that pass on the same numbers; their cuts repeat the one before."""


def worthwhile(found: Sequence[Cut]) -> tuple[Cut, ...]:
    """The cuts that are worth considering: of neighbours with the same work on the edge, only the best.

    Between a convolution, its normalisation, activation and pooling the edge's FLOPs do not change, and a deeper cut leaks no
    more (data processing). So the one that sends least is kept, and among equals the deepest.
    """
    kept: list[Cut] = []
    for cut in found:
        if kept and cut.edge_flops == kept[-1].edge_flops and cut.single == kept[-1].single:
            if cut.operation not in RESHAPES and cut.elements <= kept[-1].elements:
                kept[-1] = cut
        else:
            kept.append(cut)
    return tuple(kept)


def as_victim(model: Victim | nn.Module, space: Space | tuple[int, int, int] | None = None) -> Victim:
    """The victim itself, or a new one around a bare module, in eval mode."""
    if isinstance(model, Victim):
        return model
    if space is None:
        raise BadInput("a bare model needs its input: give a space such as Pixels((3, 64, 64)), or that shape")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        model = copy.deepcopy(model).requires_grad_(True)  # a model with frozen weights can be cut too
    return Victim(model, Pixels(space) if isinstance(space, tuple) else space)


def jpeg_bytes(images: Tensor, *, quality: int = JPEG_QUALITY, most: int = 64) -> float:
    """Mean number of bytes of an image (N, C, H, W) in [0, 1] as JPEG, over at most ``most`` images drawn at random."""
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise BadInput(f"JPEG needs grey or colour images (N, 1 or 3, H, W), got shape {tuple(images.shape)}")
    pixels = (
        (images[draw_indices(len(images), most)].clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    )
    sizes = []
    for picture in pixels:
        file = io.BytesIO()
        Image.fromarray(np.squeeze(picture, 2) if picture.shape[2] == 1 else picture).save(
            file, "JPEG", quality=quality
        )
        sizes.append(file.tell())
    return float(np.mean(sizes))
