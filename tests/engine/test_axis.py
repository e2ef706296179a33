"""Where the samples are after a function, also where sizes cannot tell."""

import pytest
import torch
from torch import Tensor

from leakgauge.engine.tape import axes_after

SAMPLES_FIRST, SAMPLES_SECOND = torch.zeros(4, 4, 4), torch.zeros(4, 4, 4)


def axis_of(value: object) -> int | None:
    return {id(SAMPLES_FIRST): 0, id(SAMPLES_SECOND): 1}.get(id(value))


def after(func, *args, **kwargs) -> list[int]:
    result = func(*args, **kwargs)
    count = 1 if isinstance(result, Tensor) else len(result)
    found = axes_after(func, args, kwargs, result, axis_of)
    return [axis for axis, _ in zip(found, range(count), strict=False)]


@pytest.mark.parametrize(
    ("func", "args", "axes"),
    [
        (Tensor.transpose, (SAMPLES_FIRST, 0, 1), [1]),
        (Tensor.transpose, (SAMPLES_FIRST, 1, 2), [0]),
        (torch.permute, (SAMPLES_SECOND, (1, 0, 2)), [0]),
        (torch.movedim, (SAMPLES_SECOND, 0, 2), [0]),
        (Tensor.mT.__get__, (SAMPLES_SECOND,), [2]),
        (Tensor.unsqueeze, (SAMPLES_FIRST, 0), [1]),
        (torch.stack, ([SAMPLES_FIRST, SAMPLES_FIRST],), [1]),
        (torch.einsum, ("snd->nsd", SAMPLES_SECOND), [0]),
        (Tensor.__getitem__, (SAMPLES_SECOND, 0), [0]),
        (Tensor.__getitem__, (SAMPLES_SECOND, slice(2)), [1]),
        (Tensor.mean, (SAMPLES_SECOND, 0), [0]),
        (Tensor.mean, (SAMPLES_FIRST, 1), [0]),
        (Tensor.unbind, (SAMPLES_SECOND,), [0] * 4),
        (Tensor.chunk, (SAMPLES_SECOND, 2, -1), [1, 1]),
        (torch.cat, ([SAMPLES_SECOND, SAMPLES_SECOND],), [1]),
        (torch.relu, (SAMPLES_SECOND,), [1]),
        (Tensor.add, (SAMPLES_SECOND, torch.zeros(4, 1, 4)), [1]),
        (Tensor.add, (SAMPLES_SECOND, torch.zeros(4, 4, 4)), [1]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_samples_are_found_among_dimensions_of_one_size(func, args, axes):
    assert after(func, *args) == axes


def test_the_first_dimension_is_taken_where_it_is_not_known():
    assert after(Tensor.reshape, SAMPLES_SECOND, 2, 8, 4) == [0]
    assert after(Tensor.flatten, SAMPLES_SECOND, 0, 1) == [0]
