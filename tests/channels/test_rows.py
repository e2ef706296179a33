"""Rows of a signal as messages of their own: lengths over all tensors, and clipping by hand."""

from __future__ import annotations

import math

import pytest
import torch

from leakgauge.channels.rows import clip_rows, row_norms

SIGNAL = {"a": torch.tensor([[3.0], [0.3], [0.0]]), "b": torch.tensor([[[0.0, 4.0]], [[0.0, 0.4]], [[0.0, 0.0]]])}


def test_lengths_go_over_all_tensors():
    torch.testing.assert_close(row_norms(SIGNAL), torch.tensor([5.0, 0.5, 0.0], dtype=torch.float64), atol=1e-7, rtol=0)


def test_a_parameter_may_be_a_single_number():
    single = {"scale": torch.tensor([3.0, 4.0]), "b": torch.tensor([[4.0], [3.0]])}
    assert row_norms(single).tolist() == [5.0, 5.0]
    assert clip_rows(single, 1.0)["scale"].tolist() == pytest.approx([0.6, 0.8])


def test_only_long_rows_are_shortened():
    found = clip_rows(SIGNAL, 1.0)
    torch.testing.assert_close(found["a"], torch.tensor([[0.6], [0.3], [0.0]]))
    torch.testing.assert_close(found["b"], torch.tensor([[[0.0, 0.8]], [[0.0, 0.4]], [[0.0, 0.0]]]))
    assert all(torch.equal(value, SIGNAL[name]) for name, value in clip_rows(SIGNAL, math.inf).items())


def test_half_precision_is_not_left_longer_than_the_bound():
    """A factor rounded to half precision (1.3e-7 here) left 9.5 % too much, and the noise of DP-SGD is measured by the bound."""
    clipped = clip_rows({"a": torch.full((1, 1000), 60000.0).half()}, 0.25)["a"]
    assert torch.equal(clipped, torch.full((1, 1000), 0.25 / math.sqrt(1000)).half())
