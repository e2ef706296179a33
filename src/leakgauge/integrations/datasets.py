"""Images and labels of a PyTorch dataset or loader, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from leakgauge.audit.session import one_of_each_class
from leakgauge.errors import BadInput
from leakgauge.integrations.tensor_files import plain, refuse_unstored

MOST = 2000
"""Images that are taken of a dataset or a loader: as many as an audit can use in its time."""
PAIRS = (("image", "label"), ("images", "labels"), ("pixel_values", "labels"), ("x", "y"))
"""Names of image and label where a dataset gives them by name."""


def collect(data: Dataset[Any] | DataLoader[Any]) -> tuple[np.ndarray, np.ndarray]:
    """At most ``MOST`` images and their labels. One image of each class comes first, then the next ones.

    A dataset is often sorted by class, and a batch would then hold one of them.
    """
    pairs = list(_taken(data))
    if not pairs:
        raise BadInput(f"the {type(data).__name__} holds no image")
    sizes = {image.shape for image, _ in pairs}
    if len(sizes) > 1:
        raise BadInput(
            f"the images differ in shape ({', '.join(map(str, sorted(sizes)[:3]))}); resize them in the dataset"
        )
    images, labels = np.stack([image for image, _ in pairs]), np.array([label for _, label in pairs])
    order = one_of_each_class(torch.from_numpy(np.unique(labels, return_inverse=True)[1])).numpy()
    return images[order], labels[order]


def as_array(value: Any, where: str) -> np.ndarray:
    if isinstance(value, Tensor) and value.is_meta:
        raise BadInput(f"{where} returns a tensor on the meta device, which holds no values; return images and labels")
    if isinstance(value, Tensor):
        refuse_unstored(value, f"a tensor of {where}")
        return plain(value).cpu().numpy()  # NumPy has neither bfloat16 nor sparse arrays
    try:
        return np.asarray(value)
    except ValueError as error:
        raise BadInput(f"{where} returns a list with rows of different length; return tensors or arrays") from error


def _taken(data: Dataset[Any] | DataLoader[Any]) -> Iterable[tuple[np.ndarray, int]]:
    """Images and labels one by one: of a dataset with a length evenly from all of it, of any other as many as come first."""
    if isinstance(data, DataLoader):
        batches = (_pair(batch) for batch in data)
        samples: Iterable[Any] = chain.from_iterable(zip(x, y, strict=True) for x, y in batches)
    elif isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        samples = (_pair(one) for one in cast(Iterable[Any], data))
    else:
        count = len(cast(Sequence[Any], data))
        places = torch.linspace(0, count - 1, min(count, MOST)).long().unique().tolist() if count else []
        samples = (_pair(data[place]) for place in places)
    for number, (image, label) in enumerate(samples):
        if number == MOST:
            return
        yield _pixels(image), _class_number(label)


def _pair(sample: Any) -> tuple[Any, Any]:
    if isinstance(sample, Mapping):
        for image, label in PAIRS:
            if image in sample and label in sample:
                return sample[image], sample[label]
        raise BadInput(
            f"the data gives {', '.join(map(str, sample))}; name image and label as {' or '.join(map(' and '.join, PAIRS))}"
        )
    if isinstance(sample, tuple | list) and len(sample) >= 2:
        return sample[0], sample[1]
    raise BadInput(f"the data must give pairs (image, label), it gave {type(sample).__name__}")


def _pixels(image: Any) -> np.ndarray:
    if isinstance(image, Image.Image):
        return np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return as_array(image, "data")


def _class_number(label: Any) -> int:
    label = as_array(label, "data")
    if label.size != 1 or label.dtype.kind not in "iufb" or not float(label.item()).is_integer():
        got = f"of shape {label.shape}" if label.size != 1 else repr(label.item())
        raise BadInput(f"the data gives a label {got}; one class number per image is expected")
    return int(label.item())
