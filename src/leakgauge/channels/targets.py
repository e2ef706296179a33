"""The targets of some samples of a batch: those of a minibatch, of one client or of a single sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from leakgauge.core import Targets
from leakgauge.errors import BadInput

IMAGE = "image"
"""The key that marks a mapping as a list of objects (such as COCO's boxes): for each object, the index of its image in the batch."""


def of_samples(y: Targets, rows: Sequence[int] | Tensor, *, samples: int) -> Targets:
    """The targets of the samples ``rows`` of a batch of ``samples``, in that order; a sample may occur twice.

    Labels, and mappings with one row per sample, are indexed by row. A list of objects can hold any number per image: the
    objects of the images ``rows`` are taken, and these images are renumbered from 0.

    >>> boxes = {"boxes": torch.eye(4)[:3], "image": torch.tensor([0, 1, 1])}
    >>> of_samples(boxes, [1], samples=2)["image"]
    tensor([0, 0])
    """
    if isinstance(y, Tensor):
        _require(y, samples, "targets")
        return y[rows]
    if IMAGE in y:
        return _objects(y, rows)
    for name, value in y.items():
        _require(value, samples, f"{name!r} among the targets")
    return {name: value[rows] for name, value in y.items()}


def _objects(y: Mapping[str, Tensor], rows: Sequence[int] | Tensor) -> dict[str, Tensor]:
    image = y[IMAGE]
    of_each = [(image == int(row)).nonzero().flatten() for row in rows]
    chosen = torch.cat(of_each)
    found = {name: value[chosen] for name, value in y.items()}
    counts = torch.tensor([len(objects) for objects in of_each], device=image.device)
    found[IMAGE] = torch.repeat_interleave(torch.arange(len(of_each), device=image.device), counts).to(image.dtype)
    return found


def _require(value: Tensor, samples: int, what: str) -> None:
    found = len(value) if value.dim() else 0
    if found != samples:
        raise BadInput(f"the batch has {samples} samples, but there are {found} {what}; give one for each sample")
