"""The input spaces: images and sentences, and the way between what people see and what the model takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.core import Pixels, Tokens
from leakgauge.errors import BadInput


def test_pixels_encode_is_the_textbook_normalisation():
    space = Pixels((3, 2, 2), mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    image = torch.rand(2, 3, 2, 2)
    expected = torch.stack(
        [(image[:, c] - m) / s for c, (m, s) in enumerate(zip(space.mean, space.std, strict=True))], 1
    )
    torch.testing.assert_close(space.encode(image), expected)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(-1, 1), st.floats(0.05, 3), st.floats(-2, 0.4), st.floats(0.1, 3), st.integers(0, 1000)
)  # fmt: skip
def test_pixels_decode_undoes_encode_and_project_leaves_valid_images(mean, std, low, width, seed):
    space = Pixels((1, 3, 3), bounds=(low, low + width), mean=(mean,), std=(std,))
    unit = torch.rand(2, 1, 3, 3, generator=torch.Generator().manual_seed(seed))
    x = space.encode(low + width * unit)
    torch.testing.assert_close(space.decode(x), unit, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(space.project(x), x)
    far = space.project(x + 100)
    torch.testing.assert_close(space.decode(far), torch.ones_like(unit))
    torch.testing.assert_close(space.project(x - 100), torch.full_like(x, (low - mean) / std))
    assert torch.equal(space.project(far), far)


def test_pixels_decode_clips_to_the_unit_interval():
    assert Pixels((1, 1, 1)).decode(torch.tensor([-3.0, 0.25, 7.0]).view(3, 1, 1, 1)).flatten().tolist() == [0, 0.25, 1]


def test_pixels_start_is_standard_normal_and_follows_its_generator():
    space = Pixels((1, 40, 40))
    first, again = (space.start(5, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert abs(float(first.mean())) < 0.05
    assert abs(float(first.std()) - 1) < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (3, 4)}, r"for series give a Series\(3, 4\)"),
        ({"shape": (30,)}, r"for series give a Series\(1, 30\), .* a Table"),
        ({"shape": ()}, r"got \(\)$"),
        ({"shape": (3, 0, 4)}, "positive sizes"),
        ({"shape": (1, -2, 4)}, "positive sizes"),
        ({"shape": (1, 2, 2), "bounds": (1.0, 1.0)}, "low < high"),
        ({"shape": (3, 2, 2), "mean": (0.1, 0.2)}, "1 or 3 values of mean"),
        ({"shape": (3, 2, 2), "std": (0.1, 0.2)}, "1 or 3 values of std"),
        ({"shape": (1, 2, 2), "std": (0.0,)}, "positive std"),
    ],
)
def test_pixels_refuses(options, message):
    with pytest.raises(BadInput, match=message):
        Pixels(**options)


def test_pixels_can_be_differentiated_after_a_look_in_inference_mode():
    space = Pixels((1, 2, 2), mean=(0.123,), std=(0.4567,))
    with torch.inference_mode():
        space.decode(torch.rand(1, 1, 2, 2))
    x = torch.rand(1, 1, 2, 2, requires_grad=True)
    space.encode(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 0.4567))


def test_pixels_takes_lists_as_configurations_hold_them():
    space = Pixels((1, 1, 1), mean=[0.5], std=[0.25])
    assert float(space.encode(torch.ones(1, 1, 1, 1))) == 2.0


def test_tokens_start_project_and_decode():
    space = Tokens(6, vocab=40)
    ids = space.start(200, torch.Generator().manual_seed(0))
    assert (ids.shape, ids.dtype, space.shape) == ((200, 6), torch.long, (6,))
    assert set(ids.flatten().tolist()) == set(range(40))
    assert torch.equal(space.project(ids), ids)
    assert torch.equal(space.decode(space.encode(ids.int())), ids)
    assert space.project(torch.tensor([-1.0, 2.6, 99.0])).tolist() == [0, 3, 39]


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)])
def test_tokens_need_positive_sizes(sizes):
    with pytest.raises(BadInput, match="positive length and vocabulary"):
        Tokens(sizes[0], vocab=sizes[1])
